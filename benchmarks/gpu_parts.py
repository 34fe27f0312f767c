"""What the parts of a quarter of an hour on a GPU do; `gpu_quarter` gives each a process of its own.

    python -m benchmarks.gpu_parts PART WORK --device cuda

A part leaves its figures in WORK/parts/PART.json, and renews them as it goes on: rows by name, or one row.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu_quarter import RUNS
from benchmarks.quarter import MEBI, ROOT

GIB = 2**30
BASE = ROOT / "examples" / "configs" / "local" / "base.yaml"
SIZES = ("hidden_size", "intermediate_size", "layers", "heads", "key_value_heads", "head_dim")
#: By device: both models' sizes, columns, tokens of a response, GiB moved and copied, side of a product; attention:
#: rows, heads, head dimension, tokens; scoring: tokens, columns; sums: steps, prompts, responses, tokens, held out.
SCALE: dict[str, dict[str, Any]] = {
    "cuda": {"model": (2048, 6144, 28, 16, 8, 128), "vocabulary": 151_936, "tokens": 192, "gib": 2, "side": 8192,
             "attention": (16, 16, 128, 256), "scoring": (4096, 151_936), "sums": (15, 16, 8, 32, 200)},
    "cpu": {"model": (64, 128, 2, 2, 1, 32), "vocabulary": 1200, "tokens": 8, "gib": 2**-6, "side": 128,
            "attention": (2, 2, 32, 16), "scoring": (32, 20_011), "sums": (3, 2, 2, 6, 4)},
}  # fmt: skip
Rows = dict[str, Any]
Part = Callable[[Path, str], Iterator[Rows]]


def wait(device: str) -> None:
    """Until the device has nothing left to do."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def seconds_of(run: Callable[[], Any], device: str, *, repeat: int = 1) -> float:
    """Median of the wall seconds of single calls, the device idle before and after each."""
    found = []
    for _ in range(repeat):
        wait(device)
        started = time.perf_counter()
        run()
        wait(device)
        found.append(time.perf_counter() - started)
    return median(found)


def write_rows(path: Path, rows: Rows) -> None:
    """A part's figures until now, whole at each moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".new").write_text(json.dumps(rows, indent=1) + "\n")
    path.with_suffix(".new").replace(path)


# -- machine and attention --------------------------------------------------------------------------------------------


def machine(work: Path, device: str) -> Iterator[Rows]:
    """What there is, and the ceilings: copies count bytes read and written."""
    import torch

    from nemo_uecr.local.memory import Placement
    from nemo_uecr.reproducible import installed

    scale, row = SCALE[device], Rows()
    if device == "cuda":
        query = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
        row["device"] = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
        row["cuDNN"] = torch.backends.cudnn.version()
    else:
        row["device"] = "CPU"
    row |= {name: installed(name) or "none" for name in ("torch", "triton", "transformers", "numpy")}
    yield {"machine": row}
    size = int(scale["gib"] * GIB)
    source = torch.randn(size // 4, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    row["copy GB/s"] = 2 * size / 1e9 / seconds_of(lambda: target.copy_(source), device, repeat=10)
    side = scale["side"]
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    row["bf16 product TFLOP/s"] = 2 * side**3 / 1e12 / seconds_of(lambda: a @ b, device, repeat=10)
    yield {"machine": row}
    pieces = [torch.ones(size // 32 // 4) for _ in range(32)]
    placement = Placement("all", torch.device(device), {"student": lambda: pieces})
    names = ("to the device, first", "back, first", "to the device", "back", "to the device", "back")
    for name, needed in zip(names, (("student",), ()) * 3, strict=True):
        row[f"{name} GB/s"] = size / 1e9 / seconds_of(lambda needed=needed: placement.move_to_device(*needed), device)
    assert all(bool((piece == 1).all()) for piece in pieces)
    yield {"machine": row}


@contextmanager
def cudnn_attention(*, on: bool) -> Iterator[None]:
    """With or without cuDNN among the kinds of attention."""
    import torch

    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(on)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def attention(work: Path, device: str) -> Iterator[Rows]:
    """Which kind torch chooses, what a new length costs, and whether bits stay."""
    import torch
    from torch.nn.attention import SDPBackend
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    batch, heads, dim, tokens = SCALE[device]["attention"]
    rows = Rows()

    def drawn(length: int, *, trained: bool = False) -> Any:
        return torch.randn(batch, heads, length, dim, device=device, dtype=torch.bfloat16).requires_grad_(trained)

    def kind(*given: Any, **options: Any) -> str:
        try:
            return SDPBackend(torch._fused_sdp_choice(*given, **options)).name.removesuffix("_ATTENTION")
        except (RuntimeError, ValueError) as error:
            return str(error)[:40]

    def passes(length: int) -> list[Any]:
        torch.manual_seed(length)
        q, k, v = (drawn(length, trained=True) for _ in range(3))
        out = sdpa(q, k, v, is_causal=True)
        out.backward(torch.randn_like(out))
        with torch.no_grad():
            quiet = sdpa(q.detach(), k.detach(), v.detach(), is_causal=True)
        return [out.detach(), quiet, q.grad, k.grad, v.grad]

    def tokens_of(length: int) -> Any:
        return sdpa(drawn(1), drawn(length), drawn(length))

    def masked(length: int) -> Any:
        mask = torch.ones(batch, 1, 1, length, dtype=torch.bool, device=device)
        return sdpa(drawn(1), drawn(length), drawn(length), attn_mask=mask)

    def milliseconds(run: Callable[[int], Any], lengths: list[int]) -> float:
        return 1e3 * median(seconds_of(partial(run, length), device) for length in lengths)

    passes(8)  # the device's own start, and that of every kind of operation
    for start, (name, on) in enumerate({"cuDNN off": False, "as torch chooses": True}.items()):
        with cudnn_attention(on=on):
            lengths = [tokens + 1 + 7 * start + step for step in range(6)]
            q, long, mask = drawn(1), drawn(tokens), torch.ones(batch, 1, 1, tokens, dtype=torch.bool, device=device)
            row = rows[name] = Rows()
            row["prompt"] = kind(long, long, long, is_causal=True)
            row["one token"] = kind(q, long, long)
            row["one token, mask"] = kind(q, long, long, attn_mask=mask)
            yield rows
            row["new length ms"], row["seen length ms"] = (milliseconds(tokens_of, lengths) for _ in range(2))
            row["new length, mask ms"] = milliseconds(masked, lengths)
            row["new length, training ms"] = milliseconds(passes, lengths)
            yield rows
            one, two = passes(lengths[0]), passes(lengths[0])
            row["no grad = grad"] = torch.equal(one[0], one[1])
            row["backward twice equal"] = all(map(torch.equal, one[2:], two[2:]))
            yield rows


# -- models of 1.7 billion parameters, and runs of them ---------------------------------------------------------------


def keep_in_memory(folder: Path, device: str, gib: int) -> None:
    """Make a folder: a link into memory on a machine with a GPU and so much room there, so that models need no disk."""
    memory = Path("/dev/shm")
    if device == "cuda" and not folder.exists() and shutil.disk_usage(memory).free > gib * GIB:
        (memory / folder.parent.name).mkdir(exist_ok=True)
        folder.symlink_to(memory / folder.parent.name)
    folder.mkdir(exist_ok=True)


def filled_tokenizer(columns: int, longest: int) -> Any:
    """The demo's tokenizer with a token for each column."""
    from tokenizers import Tokenizer

    from nemo_uecr.demo.task import build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.model_max_length = longest
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    fillers = {f"~{number}": number for number in range(len(tokenizer), columns)}
    described["model"]["vocab"] |= tokenizer.get_added_vocab() | fillers
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(described))
    return tokenizer


def random_model(sizes: tuple[int, ...], tokenizer: Any, seed: int, device: str) -> Any:
    """A Qwen3 of `SIZES` with random weights, made on the device."""
    import torch

    from nemo_uecr.demo.cache import RECIPE
    from nemo_uecr.demo.supervised import build_model

    with torch.device(device):
        return build_model(RECIPE.student.model_copy(update=dict(zip(SIZES, sizes, strict=True))), tokenizer, seed)


def models(work: Path, device: str) -> Iterator[Rows]:
    """A student and a teacher with random weights, a tokenizer that fills their vocabulary, and problems."""
    folder, scale, row = work / "models", SCALE[device], Rows()
    keep_in_memory(folder, device, gib=24)
    tokenizer = filled_tokenizer(scale["vocabulary"], longest=4096)
    for seed, name in enumerate(("student", "teacher")):
        started = time.perf_counter()
        model = random_model(scale["model"], tokenizer, seed, device)
        row["parameters"] = model.num_parameters()
        model.bfloat16().save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        row[f"{name} s"] = time.perf_counter() - started
        del model
    write_problems(folder / "problems.jsonl", [(f"{a} + {a} = ?", str(2 * a)) for a in range(64)])
    yield {"models": row | {"folder": str(folder.resolve())}}


def write_problems(path: Path, pairs: list[tuple[str, str]]) -> None:
    """Questions and answers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"id": str(number), "question": asked, "answer": answer} for number, (asked, answer) in enumerate(pairs)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run_words(name: str, work: Path, device: str) -> list[str]:
    """Configuration and overrides of a run; its tolerances end no run, as they are measured here."""
    made, tokens = work / "models", SCALE[device]["tokens"]
    return [
        str(BASE), f"device={device}", f"student.model_name={made / 'student'}", "student.dtype=bfloat16",
        f"teacher.model_name={made / 'teacher'}", "teacher.dtype=bfloat16", f"data.train={made / 'problems.jsonl'}",
        "data.max_prompt_tokens=64", "rollout.prompts_per_step=4", "rollout.responses_per_prompt=4",
        f"rollout.max_response_tokens={tokens}", "rollout.microbatch_responses=16", "loss.reference_kl=0",
        "train.steps=2", "train.microbatch_responses=8", "evaluation.at_start=false", "checkpoint.every=0",
        "telemetry.tensorboard=off", "telemetry.progress=off", "telemetry.save_batch_every=0",
        "tolerances.first_ratio=1", "tolerances.first_ratio_p99=100", f"run.folder={work / 'runs' / name}", *RUNS[name],
    ]  # fmt: skip


def observed_run(name: str, work: Path, device: str) -> Iterator[Rows]:
    """Two steps, watched: memory beside the plan's, times of the second, first ratios. No checkpoint is written."""
    import torch

    from nemo_uecr.cli.main import entry_point
    from nemo_uecr.local import run, trainer

    ratios: list[torch.Tensor] = []
    update = trainer.update

    def watched(*given: Any, **named: Any) -> Any:
        outcome = update(*given, **named)
        ratios.append(outcome.first_ratio_N.double())
        return outcome

    words, folder, plan = run_words(name, work, device), work / "runs" / name, work / "parts" / f"plan-{name}.json"
    shutil.rmtree(folder, ignore_errors=True)
    total = torch.cuda.mem_get_info()[1] / GIB if device == "cuda" else 0
    on = ["--device", "h100", "--memory", f"{total:.1f}"] if device == "cuda" else ["--device", "cpu"]
    entry_point(["plan", *words, *on, "--json", str(plan)])
    # torch does not see what CUDA itself holds
    phases = [phase["device"] for phase in json.loads(plan.read_text())["phases"]]
    planned = max(sum(item["size"] for item in items if item["name"] != "process") for items in phases) / GIB
    yield {f"run-{name}": {"plan GiB": planned}}
    trainer.update, run.input_hashes = watched, lambda *given: {}  # the models' hashes take longer than the steps
    trainer.Trainer._save_checkpoint = lambda *given, **named: None  # type: ignore[method-assign]
    code = entry_point(["train", *words])
    records = folder / "metrics.jsonl"
    steps = [json.loads(line) for line in records.read_text().splitlines()] if records.exists() else []
    if not steps:
        sys.exit(code or 1)
    key = "memory/peak_gpu_mb" if device == "cuda" else "memory/peak_rss_mb"
    last, off_N = steps[-1], (torch.cat(ratios) - 1).abs()
    peak = max(step[key] for step in steps) * MEBI / GIB
    row = {
        "peak GiB": peak,
        "plan GiB": planned,
        "peak / plan": peak / planned,
        "step s": last["time/step_s"],
        **{f"{phase} s": last[f"time/{phase}_s"] for phase in ("rollout", "score_student", "score_teacher", "update")},
        "first step s": steps[0]["time/step_s"],
        "tokens": last["count/valid_tokens"],
        "ratio off 1: mean": float(off_N.mean()),
        "p99": float(off_N.quantile(0.99)),
        "max": float(off_N.max()),
    }
    if device == "cuda":
        free, held = torch.cuda.mem_get_info()[0] / GIB, torch.cuda.memory_reserved() / GIB
        row["outside torch GiB"] = total - free - held
    yield {f"run-{name}": row}
    if code:
        sys.exit(code)


# -- scoring beside others --------------------------------------------------------------------------------------------


def scoring(work: Path, device: str) -> Iterator[Rows]:
    """bfloat16 logits in one process: this package, plain float32, TRL; error against float64."""
    import torch

    from benchmarks import scoring as cases

    tokens, vocab = SCALE[device]["scoring"]
    rows = Rows()
    for case in cases.cases():
        wanted = case.kind in ("dense/ours", "dense/plain", "dense/trl") and case.dtype == "bfloat16"
        if not wanted or case.native != "1":
            continue
        with torch.no_grad():
            found = cases.measure(replace(case, tokens=tokens, vocab=vocab, device=device), 0)
        rows[case.name] = (
            found if "absent" in found
            else {"ms": 1e3 * found["wall_s"], "MiB": found["peak_extra_mb"], "error log p": found["error_logp"],
                  "error H": found["error_entropy"]}
        )  # fmt: skip
        yield rows


# -- a pretrained model learns sums -----------------------------------------------------------------------------------

REWARD = '''"""1 where the last number of the response is the answer, else 0."""
import re


def right(solution_str, ground_truth):
    numbers = re.findall(r"-?\\d+", solution_str.replace(",", ""))
    return float(bool(numbers) and numbers[-1] == ground_truth)
'''
#: Half of the steps are behind it when the run is resumed.
CONFIG = """defaults: {base}
device: {device}
run: {{folder: {folder}}}
student: {{model_name: {model}, dtype: {dtype}}}
teacher: {{model_name: {model}}}
data: {{train: {problems}, max_prompt_tokens: 64}}
reward: {{call: "{reward}:right"}}
rollout: {{prompts_per_step: {prompts}, responses_per_prompt: {responses}, max_response_tokens: {tokens}}}
method: {{std_floor: 0.1}}
train: {{steps: {steps}, microbatch_responses: {half}, learning_rate: 2.0e-5}}
checkpoint: {{every: {saved}}}
evaluation: {{at_start: false}}
telemetry: {{tensorboard: "off", progress: lines}}
tolerances: {{first_ratio: 1.0, first_ratio_p99: 100.0}}
"""


def smollm2(work: Path, device: str) -> Iterator[Rows]:
    """SmolLM2-135M-Instruct as a Hugging Face folder, from the pieces of its GGUF, with sums to learn."""
    import random

    import gguf
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder, carried, started = work / "sums", work / "carried" / "tokenizer", time.perf_counter()
    folder.mkdir(exist_ok=True)
    pieces = sorted((work / "carried").glob("smollm2.gguf.*"))
    assert len(pieces) == 2, f"{len(pieces)} pieces of the weights; expected 2: the first call's machine is gone"
    (folder / "model.gguf").write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    gguf.get_tensor_name_map = cache(gguf.get_tensor_name_map)  # else made anew for each of 400 modules
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file="model.gguf", config=AutoConfig.from_pretrained(carried), dtype=torch.bfloat16
    )
    if device == "cpu":
        del model.model.layers[2:]
        model.config.num_hidden_layers = 2
        model.config.layer_types = None
    model.hf_quantizer, model.is_quantized = None, False  # else it refuses to be saved
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(folder / "model")
    shutil.copytree(carried, folder / "model", ignore=shutil.ignore_patterns("config.json"), dirs_exist_ok=True)
    steps, prompts, responses, tokens, held_out = SCALE[device]["sums"]
    sums = [(f"What is {a} plus {b}?", str(a + b)) for a in range(10, 60) for b in range(10, 60)]
    products = [(f"What is {a} times {b}?", str(a * b)) for a in range(2, 31) for b in range(2, 31)]
    random.Random(0).shuffle(sums)
    random.Random(0).shuffle(products)
    half, reward = held_out // 2, folder / "reward.py"
    write_problems(folder / "held_out.jsonl", sums[:half] + products[:half])
    write_problems(folder / "problems.jsonl", sums[half : half + 600] + products[half : half + 600])
    reward.write_text(REWARD)
    (folder / "sums.yaml").write_text(
        CONFIG.format(
            base=BASE, device=device, folder=folder / "run", model=folder / "model", reward=reward, tokens=tokens,
            problems=folder / "problems.jsonl", prompts=prompts, responses=responses, half=prompts * responses // 2,
            steps=steps, saved=2 * steps // 3, dtype="bfloat16" if device == "cuda" else "float32",
        )
    )  # fmt: skip
    yield {"smollm2": {"parameters": model.num_parameters(), "load and save s": time.perf_counter() - started}}


def _records(folder: Path) -> dict[int, dict[str, float]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {record["step"]: record for record in map(json.loads, lines)}


def sums(work: Path, device: str) -> Iterator[Rows]:
    """Train it; the teacher is the model as it was."""
    from nemo_uecr.cli.main import entry_point

    folder = work / "sums" / "run"
    shutil.rmtree(folder, ignore_errors=True)
    code = entry_point(["train", str(work / "sums" / "sums.yaml")])
    if code:
        sys.exit(code)
    records = _records(folder)
    columns = (
        "reward/right/mean", "teacher/gap_abs_mean", "policy/first_ratio_error", "policy/entropy",
        "response/length_mean", "time/step_s", "time/rollout_s", "time/update_s", "memory/peak_gpu_mb",
    )  # fmt: skip
    rows = {f"step {step}": {key: one[key] for key in columns if key in one} for step, one in records.items()}
    yield {name: row for number, (name, row) in enumerate(rows.items()) if number % 3 == 0 or number == len(rows) - 1}


def resumed(work: Path, device: str) -> Iterator[Rows]:
    """The run as a kill after its first checkpoint leaves it, resumed: do its records go on as without the kill?"""
    from nemo_uecr.cli.main import entry_point

    whole, folder = work / "sums" / "run", work / "sums" / "resumed"
    shutil.rmtree(folder, ignore_errors=True)
    last, saved = SCALE[device]["sums"][0], 2 * SCALE[device]["sums"][0] // 3
    shutil.copytree(whole, folder, copy_function=os.link, ignore=shutil.ignore_patterns(f"step-{last:06d}*", "*.jsonl"))
    for records in whole.glob("*.jsonl"):  # these grow
        shutil.copy(records, folder)
    code = entry_point(["train", str(work / "sums" / "sums.yaml"), f"run.folder={folder}", "--resume"])
    if code:
        sys.exit(code)
    one, two, measured = _records(whole), _records(folder), ("time/", "memory/", "throughput/")
    off = {
        key: abs(one[step][key] - two[step][key]) / max(abs(one[step][key]), 1e-12)
        for step in range(saved + 1, last + 1)
        for key in one[step]
        if not key.startswith(measured)
        and isinstance(one[step][key], float)
        and one[step][key] != two[step].get(key, float("nan"))
    }
    row = {
        "steps": f"{saved + 1} to {last}",
        "metrics that differ": len(off),
        "most, relative": max(off.values(), default=0.0),
    }
    yield {"resumed": row}


def evaluated(work: Path, device: str) -> Iterator[Rows]:
    """Held-out sums, greedy: right by the last number, before and after."""
    from nemo_uecr.cli.main import entry_point
    from nemo_uecr.responses.table import read_responses

    folder, (_, _, _, tokens, held_out) = work / "sums", SCALE[device]["sums"]
    for name in ("trained", "evaluation"):
        shutil.rmtree(folder / name, ignore_errors=True)
    named = {"before": folder / "model", "after": folder / "trained"}
    words = [f"{label}={model}" for label, model in named.items()]
    # In bfloat16 most of what so few steps changed would be rounded away.
    more = (
        "--temperature",
        "0",
        "--samples",
        "1",
        "--engine",
        "transformers",
        "--batch",
        str(held_out),
        "--dtype",
        "float32",
    )
    for command in (
        ["export", str(folder / "run"), "--merged", str(folder / "trained")],
        ["evaluate", *words, "--benchmarks", str(folder / "held_out.jsonl"), "--max-tokens", str(tokens), *more,
         "--out", str(folder / "evaluation")],
    ):  # fmt: skip
        if code := entry_point(command):
            sys.exit(code)
    space: dict[str, Any] = {}
    exec((folder / "reward.py").read_text(), space)  # noqa: S102 - written by `smollm2`
    rows = Rows()
    for label in named:
        table = read_responses(folder / "evaluation" / label / "responses.parquet")
        texts = zip(table.column("response"), table.column("answer"), strict=True)
        right = [space["right"](response, answer) for response, answer in texts]
        rows[label] = {"held-out problems": len(right), "right": sum(right) / len(right)}
    yield rows


PARTS: dict[str, Part] = {
    "machine": machine, "attention": attention, "models": models, "scoring": scoring,
    "smollm2": smollm2, "sums": sums, "resumed": resumed, "evaluated": evaluated,
}  # fmt: skip


def main() -> None:
    """Run one part in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=(*PARTS, "run"))
    parser.add_argument("work", type=Path)
    parser.add_argument("--device", choices=tuple(SCALE), required=True)
    parser.add_argument("--name", choices=tuple(RUNS), help="of a run")
    args = parser.parse_args()
    name, part = args.part, PARTS.get(args.part, partial(observed_run, args.name))
    result = args.work / "parts" / (f"run-{args.name}.json" if name == "run" else f"{name}.json")
    for rows in part(args.work, args.device):
        write_rows(result, rows)


if __name__ == "__main__":
    main()
