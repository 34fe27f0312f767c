"""What only a GPU can show, measured in half an hour without a network: `tools/gpu_hour.sh` calls it.

    python -m benchmarks.gpu_hour --out DIR [--models DIR] [--device cpu] [--minutes 30]

Each part is a process of its own with a time limit. It leaves PART.log and PART.json in DIR as soon as it is done;
one that fails does not end the others. table.md, printed last, is for docs/benchmarks.md. On a CPU everything but CUDA
itself runs, at tiny sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT
from nemo_uecr.cli.common import write_json
from nemo_uecr.cli.main import entry_point
from nemo_uecr.plan.records import GIB, MEBI

BASE = ROOT / "examples" / "configs" / "local" / "base.yaml"
SIZES = ("hidden_size", "intermediate_size", "layers", "heads", "key_value_heads", "head_dim")
#: By device: models (those of Qwen3-0.6B and 4B), columns, prompts a step, tokens a response, GiB moved.
SCALE: dict[str, dict[str, Any]] = {
    "cuda": {"student": (1024, 3072, 28, 16, 8, 128), "teacher": (2560, 9728, 36, 32, 8, 128), "vocabulary": 151_936,
             "prompts": 4, "tokens": 768, "gib": 4},
    "cpu": {"student": (64, 128, 2, 2, 1, 32), "teacher": (64, 128, 2, 2, 1, 32), "vocabulary": 1200,
            "prompts": 2, "tokens": 8, "gib": 2**-6},
}  # fmt: skip
CHECKPOINTING, OFFLOAD = "train.activation_checkpointing=true", "offload=all"
FLOORED = "method.scoring_noise=0.05", "method.std_floor=0.1"  # asked for beside a quantised teacher
#: What each run changes of micro-batches of one response with nothing moved, and the packages that it needs.
RUNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "micro-batch 1": ((), ()),
    "checkpointing": ((CHECKPOINTING,), ()),
    "teacher offloaded": ((CHECKPOINTING, "offload=teacher"), ()),
    "all offloaded": ((CHECKPOINTING, OFFLOAD), ()),
    "adamw8bit": ((CHECKPOINTING, OFFLOAD, "train.optimizer=adamw8bit"), ("bitsandbytes",)),
    "LoRA": ((CHECKPOINTING, OFFLOAD, "student.lora_rank=32"), ("peft",)),
    "adamw8bit_sr": ((CHECKPOINTING, OFFLOAD, "train.optimizer=adamw8bit_sr"), ("torchao",)),
    "int8 teacher": ((CHECKPOINTING, "teacher.quantize=int8", *FLOORED), ("torchao",)),
    "nf4 teacher": ((CHECKPOINTING, "teacher.quantize=nf4", *FLOORED), ("bitsandbytes",)),
    "float32": ((CHECKPOINTING, "student.dtype=float32"), ()),
    "vLLM": ((CHECKPOINTING, OFFLOAD, "rollout.engine=vllm"), ("vllm",)),
    "vLLM, LoRA": ((CHECKPOINTING, OFFLOAD, "rollout.engine=vllm", "student.lora_rank=32"), ("vllm", "peft")),
}


@dataclass(frozen=True)
class Part:
    """One process; what it writes to NAME.json becomes rows of figures, or else its last line does.

    Attributes:
        name: row of a table, and its files' name.
        table: heading of the table.
        words: what follows ``python``.
        needs: packages without which it is skipped.
        on_cpu: whether it runs without a GPU.
        limit: seconds.
    """

    name: str
    table: str
    words: tuple[str, ...]
    needs: tuple[str, ...] = ()
    on_cpu: bool = True
    limit: float = 240.0


def parts(out: Path, models: Path, device: str) -> list[Part]:
    """Every part: first what the others need, last what may take the longest."""
    same = "--out", str(out), "--models", str(models), "--device", device
    own = "-m", "benchmarks.gpu_hour"
    cases = ("dense",) if device == "cuda" else ("dense/ours/bfloat16", "dense/plain/bfloat16", "--quick")
    rivals = "-m", "benchmarks.scoring", "--device", device, "--json", str(out / "rivals.json"), "--cases", *cases
    kernels = "tests/gpu/scoring_gpu.py", "--json", str(out / "kernels.json")
    nemo_rl = "tests/gpu/one_gpu.py", str(models / "student"), str(out / "nemo_rl")
    return [
        Part("models", "Machine", (*own, "models", *same)),
        Part("kernels", "Scoring kernels", kernels, ("triton",), on_cpu=False),
        Part("offload", "Host link", (*own, "offload", *same)),
        *(Part(name, "Runs", (*own, "run", *same, "--name", name), needs) for name, (_, needs) in RUNS.items()),
        Part("gpu tests", "Tests", ("-m", "pytest", "-q", "-m", "gpu", "tests/gpu"), ("pytest",)),
        Part("rivals", "Scoring beside others", rivals, limit=420),
        Part("NeMo-RL", "Tests", nemo_rl, ("transformer_engine", "nemo_rl"), on_cpu=False, limit=480),
    ]


def _rows(name: str, found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of `benchmarks.scoring` a row a case, of `scoring_gpu.py` a row a figure, of all others one."""
    if "cases" in found:
        keys = ("wall_s", "peak_extra_mb", "error_logp")
        return {case: {key: values.get(key) for key in keys} for case, values in found["cases"].items()}
    if "speed" in found:
        figures = {"largest error, nats": max(found["errors"].values()), **found["speed"]}
        return {figure: {"measured": value} for figure, value in figures.items()}
    return {name: found}


# -- one part after the other ----------------------------------------------------------------------------------------


def run_parts(chosen: Sequence[Part], out: Path, device: str, seconds: float) -> dict[str, dict[str, Any]]:
    """Run the parts until the time is up; status, seconds and rows of each, on disk as soon as it is done."""
    ends, found = time.monotonic() + seconds, {}
    for part in chosen:
        left = ends - time.monotonic()
        absent = [name for name in part.needs if find_spec(name) is None]
        if device == "cpu" and not part.on_cpu:
            absent = ["a CUDA device"]
        if absent or left <= 0:
            reason = f"without {', '.join(absent)}" if absent else "no time left"
            found[part.name] = {"status": "SKIPPED", "reason": reason, "seconds": 0.0}
        else:
            found[part.name] = _run_part(part, out, device, min(part.limit, left))
        one = found[part.name]
        write_json(out / "results.json", found)
        sys.stdout.write(f"{one['status']:<8} {part.name} ({one['seconds']:.0f} s) {one.get('reason', '')}\n")
        sys.stdout.flush()
    return found


def _run_part(part: Part, out: Path, device: str, limit: float) -> dict[str, Any]:
    log, result, started = out / f"{part.name}.log", out / f"{part.name}.json", time.monotonic()
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    settings = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": paths}
    if device == "cpu":
        settings["TORCHDYNAMO_DISABLE"] = "1"  # torchao would compile its step, for minutes
    result.unlink(missing_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *part.words], cwd=ROOT, env={**os.environ, **settings}, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with what it has started
                process.wait()
    took = time.monotonic() - started
    said = log.read_text(errors="replace").strip().splitlines() or ["nothing was printed"]
    if code != 0:
        reason = f"longer than its {limit:.0f} s" if took >= limit else f"exit code {code}: {said[-1][:300]}"
        return {"status": "FAILED", "reason": reason, "seconds": took}
    figures = json.loads(result.read_text()) if result.exists() else {"outcome": said[-1].strip("= ")}
    return {"status": "OK", "seconds": took, "rows": _rows(part.name, figures)}


def tables(chosen: Sequence[Part], found: Mapping[str, Mapping[str, Any]]) -> str:
    """One Markdown table a heading, each part's rows in it, and what was skipped or failed below."""
    lines = []
    for heading in dict.fromkeys(part.table for part in chosen):
        names = [part.name for part in chosen if part.table == heading]
        rows = {row: cells for name in names for row, cells in found[name].get("rows", {}).items()}
        columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
        lines += [f"## {heading}", ""]
        if rows:
            lines += ["| " + " | ".join(["", *columns]) + " |", "|---" * (len(columns) + 1) + "|"]
            lines += [
                f"| {row} | {' | '.join(_cell(cells.get(name)) for name in columns)} |" for row, cells in rows.items()
            ]
            lines.append("")
        missing = [(name, found[name]) for name in names if found[name]["status"] != "OK"]
        lines += [f"- {name}: {one['status']}, {one['reason']}" for name, one in missing] + [""] * bool(missing)
    return "\n".join(lines)


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


# -- what the parts do ------------------------------------------------------------------------------------------------


def make_models(models: Path, device: str) -> dict[str, Any]:
    """A student and a teacher with random weights, a tokenizer that fills their vocabulary, and sums to solve.

    Returns:
        What the machine is.
    """
    import torch
    from tokenizers import Tokenizer

    from nemo_uecr.study.demo import RECIPE
    from nemo_uecr.study.models import build_model
    from nemo_uecr.study.task import build_tokenizer

    scale, tokenizer = SCALE[device], build_tokenizer()
    tokenizer.model_max_length = 4096
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    fillers = {f"~{number}": number for number in range(len(tokenizer), scale["vocabulary"])}
    described["model"]["vocab"] |= tokenizer.get_added_vocab() | fillers
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(described))
    for seed, name in enumerate(("student", "teacher")):
        if not (models / name / "config.json").exists():
            sizes = dict(zip(SIZES, scale[name], strict=True))
            with torch.device(device):
                model = build_model(RECIPE.student.model_copy(update=sizes), tokenizer, seed)
            model.bfloat16().save_pretrained(models / name)
            tokenizer.save_pretrained(models / name)
    rows = [{"id": str(a), "question": f"{a} + {a} = ?", "answer": str(2 * a)} for a in range(64)]
    (models / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return {"device": name, "torch": torch.__version__, "CUDA": torch.version.cuda or "none"}


def run_words(name: str, out: Path, models: Path, device: str) -> list[str]:
    """Configuration and overrides of a run; its tolerances end no run, as they are measured here."""
    scale = SCALE[device]
    return [
        str(BASE), f"device={device}", f"student.model_name={models / 'student'}", "student.dtype=bfloat16",
        f"teacher.model_name={models / 'teacher'}", "teacher.dtype=bfloat16", f"data.train={models / 'problems.jsonl'}",
        "data.max_prompt_tokens=64", f"rollout.prompts_per_step={scale['prompts']}", "rollout.responses_per_prompt=4",
        f"rollout.max_response_tokens={scale['tokens']}", f"rollout.microbatch_responses={4 * scale['prompts']}",
        "rollout.gpu_memory=0.3", "train.steps=2", "train.microbatch_responses=1", "evaluation.at_start=false",
        "checkpoint.every=0", "telemetry.tensorboard=off", "telemetry.progress=off", "telemetry.save_batch_every=0",
        "tolerances.first_ratio=1", "tolerances.rollout_gap=100", f"run.folder={out / 'runs' / name}", *RUNS[name][0],
    ]  # fmt: skip


def observed_run(name: str, out: Path, models: Path, device: str) -> dict[str, Any]:
    """A run of two steps, watched: memory beside the plan's, times, first ratios, and what it moved."""
    import torch

    from nemo_uecr.local import memory, trainer, vllm_sampler

    calls: dict[str, list[tuple[float, float]]] = {}  # seconds, and GiB that became free
    ratios: list[torch.Tensor] = []

    def clock(owner: Any, method: str) -> None:
        inner = getattr(owner, method)

        def clocked(*given: Any, **named: Any) -> Any:
            free, started = _free(device), time.perf_counter()
            outcome = inner(*given, **named)
            after = _free(device)
            calls.setdefault(method, []).append((time.perf_counter() - started, (after - free) / GIB))
            return outcome

        setattr(owner, method, clocked)

    def keep_ratios(outcome: Any, *given: Any) -> None:
        ratios.append(outcome.first_ratio_N.double())

    words, folder, plan = run_words(name, out, models, device), out / "runs" / name, out / f"plan of {name}.json"
    shutil.rmtree(folder, ignore_errors=True)
    on = ["--device", "cpu"]
    if device == "cuda":
        on = ["--device", "h100", "--memory", f"{torch.cuda.mem_get_info()[1] / GIB:.1f}"]
    entry_point(["plan", *words, *on, "--json", str(plan)])
    clock(memory.Placement, "need")
    if "rollout.engine=vllm" in words:
        from vllm import LLM

        clock(LLM, "wake_up")
        clock(LLM, "sleep")
        clock(vllm_sampler.VllmSampler, "_hand_over")
    trainer.check_ratios = keep_ratios
    if code := entry_point(["train", *words]):
        sys.exit(code)
    shutil.rmtree(folder / "checkpoints")  # gigabytes
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last, ratio_N = steps[-1], torch.cat(ratios)
    peak = max(step["memory/peak_gpu_mb" if device == "cuda" else "memory/peak_rss_mb"] for step in steps) * MEBI / GIB
    phases = [phase["device"] for phase in json.loads(plan.read_text())["phases"]]  # torch does not see CUDA's own part
    planned = max(sum(item["size"] for item in items if item["name"] != "process") for items in phases) / GIB
    figures = {
        "peak GiB": peak,
        "plan GiB": planned,
        "peak / plan": peak / planned,
        "step s": last["time/step_s"],
        **{f"{phase} s": last[f"time/{phase}_s"] for phase in ("rollout", "score_student", "score_teacher", "update")},
        "moving s": sum(seconds for seconds, _ in calls["need"]) / len(steps),
        "tokens": last["count/valid_tokens"],
        "ratio is 1": float((ratio_N == 1).double().mean()),
        "ratio off 1": float((ratio_N - 1).abs().max()),
        "rollout gap": last.get("policy/rollout_gap"),
    }
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        figures["outside torch GiB"] = (total - free - torch.cuda.memory_reserved()) / GIB
    if "_hand_over" in calls:
        figures["sync s"] = calls["_hand_over"][-1][0]
    if "wake_up" in calls:  # for the weights and for the cache; the last draw is a warm one
        figures["wake s"] = sum(seconds for seconds, _ in calls["wake_up"][-2:])
        figures["sleep s"], figures["sleep frees GiB"] = calls["sleep"][-1]
    return {column: value for column, value in figures.items() if value is not None}


def _free(device: str) -> int:
    """Bytes that no process holds on the GPU, once it has nothing left to do."""
    import torch

    if device == "cpu":
        return 0
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def offload_rates(device: str) -> dict[str, float]:
    """GB/s of `local.memory.Placement` in both directions; the first departure makes the pinned copy."""
    import torch

    from nemo_uecr.local.memory import Placement

    pieces = [torch.ones(int(SCALE[device]["gib"] * GIB / 32 / 4)) for _ in range(32)]
    placement = Placement("all", torch.device(device), {"student": lambda: pieces})
    size, seconds = sum(piece.nbytes for piece in pieces), []
    for names in (("student",), (), ("student",), ()):
        _free(device)
        started = time.perf_counter()
        placement.need(*names)
        _free(device)
        seconds.append(time.perf_counter() - started)
    _, pinning, to_device, to_host = (size / 1e9 / one for one in seconds)
    return {"GiB": size / GIB, "to the device GB/s": to_device, "back GB/s": to_host, "back, first time GB/s": pinning}


def main() -> int:
    """Run everything, or one part in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", default="all", choices=("all", "models", "offload", "run"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--models", type=Path, help="where the models are or will be made (default: OUT/models)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--name", choices=tuple(RUNS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    out, device = args.out.resolve(), args.device
    models = (args.models or out / "models").resolve()
    if args.action == "models":
        write_json(out / "models.json", make_models(models, device))
    elif args.action == "offload":
        write_json(out / "offload.json", offload_rates(device))
    elif args.action == "run":
        write_json(out / f"{args.name}.json", observed_run(args.name, out, models, device))
    else:
        out.mkdir(parents=True, exist_ok=True)
        chosen = parts(out, models, device)
        found = run_parts(chosen, out, device, 60.0 * args.minutes)
        text = tables(chosen, found)
        (out / "table.md").write_text(text)
        sys.stdout.write("\n" + text)
        return int(any(one["status"] == "FAILED" for one in found.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
