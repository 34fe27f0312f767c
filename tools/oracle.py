"""What an earlier version did, frozen: whether a redesign still gives the same numbers.

    python tools/oracle.py check [PART...]    compare this tree with the frozen numbers; exit code 1 on a difference
    python tools/oracle.py freeze [PART...]   write the numbers of this tree; a change is a decision for CHANGELOG.md

Everything is driven through the commands, on the models in oracle/models/ and on inputs made here from fixed seeds.
On the frozen versions and kind of processor every number must be equal bit for bit; elsewhere hashes are ignored
and numbers compared to a tolerance. A part that cannot run here says why and counts as skipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import io
import json
import math
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent / "oracle"
ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))
MODELS = HERE / "models"
SHARED = Path(os.environ.get("NEMO_UECR_DATA", ROOT.parent / "shared" / "data"))

#: What is imported by name, beside the commands. A redesign that moves one of these edits this line and no other.
NAMES = {
    "main": "nemo_uecr.cli.main:entry_point",
    "judge": "nemo_uecr.verifier.pool:judge",
    "check_response": "nemo_uecr.verifier.pool:check_response",
    "check_responses": "nemo_uecr.verifier.pool:check_responses",
    "comparison_pool": "nemo_uecr.verifier.pool:comparison_pool",
    "imported": "tests.conversion.saved:imported",
    "trials": "tools.verifier_selftest:trials",
}

METHODS = (
    "atod", "distilled_rl", "ecr_alpha_zero", "ecr_full_advantage", "ecr_no_entropy", "ecr_no_gap",
    "ecr_no_projection", "g_opd", "grpo", "grpo_plus_opd", "pg_opd", "puu", "rlsd", "separate_norm",
    "shuffled_entropy", "uecr",
)  # fmt: skip
#: Relative and absolute tolerance on another kind of processor or other versions.
TOLERANCE = (1e-4, 1e-6)
#: Numbers that are measured, not computed.
MEASURED = ("time/", "throughput/", "memory/")

Numbers = dict[str, Any]


class Skip(Exception):
    """Why a part cannot run here."""


def named(name: str) -> Any:
    """Import one of `NAMES`."""
    module, _, attribute = NAMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def command(*words: object) -> str:
    """Standard output of a command, which must succeed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = named("main")([str(word) for word in words])
    if code not in (0, None):
        raise RuntimeError(f"{' '.join(map(str, words))}: exit code {code}\n{err.getvalue()[-2000:]}")
    return out.getvalue()


def hashed(tensor: Any) -> Numbers:
    """A tensor's hash, and the values at a few places; the sign of a zero does not count."""
    flat = tensor.contiguous().flatten()
    flat = flat + 0.0 if tensor.is_floating_point() else flat
    places = sorted({0, len(flat) // 3, len(flat) // 2, len(flat) - 1})
    return {
        "dtype": str(tensor.dtype),
        "shape": list(tensor.shape),
        "sha256": hashlib.sha256(flat.numpy().tobytes()).hexdigest(),
        "size": float(flat.double().abs().sum()),  # a residual sums to 0 but for rounding
        "values": [float(flat[place]) for place in places],
    }


# -- advantages ------------------------------------------------------------------------------------------------------

SETTINGS = {
    "plain": "alpha=1 rho=0.5 tau_delta=1 tau_entropy=1 step=0 seed=7".split(),
    "other": "alpha=1.3 rho=0.7 tau_delta=0.8 tau_entropy=0.9 std_floor=0.05 sample_std=true opd_coef=0.6 step=45 "
    "seed=11".split(),
}


def _batches(folder: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Saved steps and what is in them: mixed, degenerate, and ragged groups with holes, and one of several blocks."""
    import torch

    from nemo_uecr.responses.table import write_responses

    shapes = {  # group sizes, tokens, rewards, share of holes
        "mixed": ([8] * 4, 48, (0.0, 1.0), 0.0),
        "degenerate": ([4] * 4, 32, (1.0,), 0.0),
        "ragged": ([2, 5, 3, 7, 4], 61, (0.0, 0.5, 1.0), 0.2),
        "blocks": ([8] * 12, 1500, (0.0, 1.0), 0.0),
    }
    paths = {}
    for number, (name, (sizes, width, rewards, holes)) in enumerate(shapes.items()):
        dice = random.Random(number)
        generator = torch.Generator().manual_seed(number)
        rows = sum(sizes)
        length_B = torch.tensor([dice.randint(1, width) for _ in range(rows)])
        mask_BT = torch.arange(width) < length_B[:, None]
        if holes:
            mask_BT &= torch.rand(rows, width, generator=generator) >= holes
            mask_BT[torch.arange(rows), length_B - 1] = True
        old_BT = torch.randn(rows, width, generator=generator).abs().neg()
        gap_BT = torch.randn(rows, width, generator=generator) * torch.rand(rows, width, generator=generator) * 3
        entropy_BT = torch.rand(rows, width, generator=generator) * 4
        initial_BT = old_BT - torch.rand(rows, width, generator=generator)
        # every token of a row in one of three segments
        segment_BT = torch.randint(0, 3, (rows, width), generator=generator)
        order = list(range(rows))
        dice.shuffle(order)
        group = [number for number, size in enumerate(sizes) for _ in range(size)]
        tensors = {
            "task_reward": torch.tensor([dice.choice(rewards) for _ in range(rows)]),
            "group": torch.tensor([group[place] for place in order]),
            "mask": mask_BT,
            "old_logp": old_BT,
            "teacher_logp": (old_BT + gap_BT).clamp(max=0.0),
            "teacher_entropy": entropy_BT,
            "initial_logp": initial_BT,
            "segments": segment_BT,
        }
        path, columns = folder / f"{name}.parquet", dict(tensors)
        rows = {"reward": columns.pop("task_reward").numpy(), "group": list(map(str, columns.pop("group").tolist()))}
        renamed = {"mask": "sampled", "segments": "turn"}
        write_responses(path, rows, {renamed.get(key, key): value for key, value in columns.items()}, about={})
        paths[name] = path, tensors
    return paths


def advantages(work: Path) -> Numbers:
    """Every method on every batch, with every token-level detail."""
    import torch

    from nemo_uecr.responses.replay import OF_A_METHOD
    from nemo_uecr.responses.table import TOKENS, read_responses

    found: Numbers = {}
    for batch, (path, tensors) in _batches(work).items():
        found[f"{batch} (input)"] = {name: hashed(tensor)["sha256"] for name, tensor in tensors.items()}
        for method in METHODS:
            for label, settings in SETTINGS.items():
                if batch == "blocks" and label == "other":
                    continue
                out = work / "out.parquet"
                command("replay", path, "--method", method, "--set", *settings, "--out", out)
                table = read_responses(out)
                made = {
                    name: table.padded(name) if name in TOKENS else torch.from_numpy(table.numbers(name))
                    for name in sorted(OF_A_METHOD & {*table.names})
                }
                if "weight" in made:  # a token that no one sampled has none; the method's neutral one is 1
                    made["weight"] = made["weight"].masked_fill(~tensors["mask"], 1)
                found[f"{batch} {method} {label}"] = {name: hashed(tensor) for name, tensor in made.items()}
    return found


# -- training and audits ---------------------------------------------------------------------------------------------

TINY = (
    "device=cpu threads=1 rollout.prompts_per_step=2 rollout.responses_per_prompt=4 rollout.max_response_tokens=6 "
    "rollout.microbatch_responses=8 rollout.temperature=0.8 data.max_prompt_tokens=64 train.minibatch_responses=4 "
    "train.microbatch_responses=2 train.learning_rate=0.003 train.steps=3 evaluation.at_start=true evaluation.every=3 "
    "evaluation.samples=2 evaluation.max_tokens=6 checkpoint.every=0 "
    "telemetry.tensorboard=off telemetry.progress=off telemetry.save_batch_every=1"
).split()


def _trained(work: Path, *changes: str) -> Path:
    problems = work / "problems.jsonl"
    rows = [{"id": f"p{i}", "question": str(i % 4), "answer": str(i % 4)} for i in range(6)]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = work / "-".join(["run", *changes]).replace("=", "_")
    command(
        "train", ROOT / "examples/configs/local/base.yaml", *TINY, f"run.folder={folder}", f"data.train={problems}",
        f"student.model_name={MODELS / 'student'}", f"teacher.model_name={MODELS / 'teacher'}",
        f"evaluation.benchmarks={{a: {problems}}}", *changes,
    )  # fmt: skip
    return folder


def _records(path: Path) -> list[Numbers]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if not name.startswith(MEASURED) and name != "seconds"}
        for line in lines
    ]


def run(work: Path) -> Numbers:
    """Metrics, evaluations and last saved batch of a tiny run of four methods."""
    found: Numbers = {}
    for method in ("uecr", "grpo_plus_opd", "atod", "grpo"):
        folder = _trained(work, f"method.name={method}")
        found[method] = {
            "metrics": _records(folder / "metrics.jsonl"),
            "evaluation": _records(folder / "evaluation.jsonl"),
            "batch": {name: hashed(tensor) for name, tensor in sorted(_step(folder).items())},
        }
        command("replay", folder, "--check")
    return found


def _step(folder: Path) -> dict[str, Any]:
    """The last saved step by the names of 0.1.0, without what it did not save."""
    import torch

    from nemo_uecr.responses.replay import scored_batch
    from nemo_uecr.responses.table import read_responses

    saved = read_responses(folder / "batches" / "step-000003.parquet")
    columns = [name for name in saved.token_columns if name not in ("teacher_rank", "weight")]
    renamed = {"sampled": "mask", "turn": "segments"}
    found = {renamed.get(name, name): saved.padded(name) for name in columns}
    return found | {"task_reward": torch.from_numpy(saved.numbers("reward")), "group": scored_batch(saved).group_B}


def _responses(path: Path, checkpoints: Sequence[int], problems: int, samples: int) -> Path:
    """Responses to score: chains of sums, some with an error, in the words of the demo's task."""
    dice = random.Random(5)
    with path.open("w") as lines:
        for checkpoint in checkpoints:
            for problem in range(problems):
                start, steps = dice.randint(2, 40), [dice.randint(2, 9) for _ in range(4)]
                question = f"Start with {start}: {' '.join(f'+{step}' for step in steps)} = ?"
                for sample in range(samples):
                    right = problem != 1 and (problem == 2 or dice.random() < 0.4)
                    wrong_at = None if right else dice.randrange(len(steps))
                    value, written = start, []
                    for place, step in enumerate(steps):
                        after = value + step + (dice.choice((-2, -1, 1, 2)) if place == wrong_at else 0)
                        written.append(f"{value}+{step}={after}\n")
                        value = after
                    row = {
                        "problem": f"p{problem}", "checkpoint": checkpoint, "sample": sample, "question": question,
                        "answer": str(start + sum(steps)), "reward": float(right), "truncated": False,
                        "response": "".join(written) + f"\\boxed{{{value}}}", "prompt": f"{question}\n",
                    }  # fmt: skip
                    lines.write(json.dumps(row) + "\n")
    return path


def _scored(work: Path, name: str, **made: Any) -> Path:
    rows = _responses(work / f"{name}.jsonl", **made)
    student, teacher = MODELS / "student", MODELS / "teacher"
    out = work / name
    command(
        "score", rows, "--teacher", teacher, "--student", student, "--anchor", f"base={teacher}", "--out", out,
        "--device", "cpu",
    )  # fmt: skip
    return out


def _labelled(judging: Path, labels: Path) -> None:
    """A judge that decides by the text of a step, so that the labels do not depend on the order of the items."""
    with labels.open("w") as lines:
        for text in (judging / "steps.jsonl").read_text().splitlines():
            item = json.loads(text)
            words = [
                ("valid", "invalid", "valid", "uncertain")[hashlib.sha256(step["text"].encode()).digest()[0] % 4]
                if "=" in step["text"]
                else "not_reasoning"
                for step in item["steps"]
            ]
            first = words.index("invalid") + 1 if "invalid" in words else None
            lines.write(json.dumps({"item": item["item"], "labels": words, "first_error": first}) + "\n")


def audits(work: Path) -> Numbers:
    """numbers.json of every audit, on responses scored here and on the folder of a tiny run."""
    settings = ["--set", *"alpha=1 rho=.5 tau_delta=1 tau_entropy=1".split()]
    groups = _scored(work, "groups", checkpoints=(0, 30), problems=6, samples=12)
    steps = _scored(work, "steps", checkpoints=(0,), problems=6, samples=8)
    judging, labels = work / "judging", work / "labels.jsonl"
    command("audit", "localization", steps, "--write-steps", judging)
    _labelled(judging, labels)
    trained = _trained(work, "method.name=uecr")
    calls: dict[str, list[object]] = {
        "signal": [groups],
        "token-credit": [steps, *settings],
        "group-signal": [groups],
        "alpha-sweep": [groups],
        "localization": [
            steps, "--judge", labels, "--key", judging / "key.jsonl", *settings, "--shuffles", "4",
            "--replicates", "200",
        ],
        "teacher": [steps, "--engines", "transformers", "transformers-bf16", "--responses", "8"],
        "batch": [trained],
        "efficiency": [_with_fixed_times(trained)],
    }  # fmt: skip
    found: Numbers = {}
    for audit, words in calls.items():
        out = work / "audits" / audit
        command("audit", audit, *words, "--out", out)
        text = (out / "numbers.json").read_text().replace(str(work), "WORK").replace(str(MODELS), "MODELS")
        found[audit] = json.loads(text)
    return found


def _with_fixed_times(folder: Path) -> Path:
    """The run with made numbers in the place of the measured ones, so that its efficiency is a computation."""
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for number, line in enumerate(lines, start=1):
        for place, name in enumerate(sorted(name for name in line if name.startswith(MEASURED))):
            line[name] = 100.0 + number if name == "time/step_s" else 0.25 * (place + 1) + 0.01 * number
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


# -- configurations and plans ----------------------------------------------------------------------------------------

#: What the user gives for a shipped recipe or configuration.
SCALES = {
    "uecr_qwen3_1p7b": ["uecr.teacher.model_name=Qwen/Qwen3-4B"],
    "uecr_qwen3_4b": ["uecr.teacher.model_name=Qwen/Qwen3-8B", "uecr.data.subset=2000"],
}
SHIPPED: dict[str, list[str]] = {
    **SCALES,
    "uecr_qwen3_4b_by_30b_a3b": ["uecr.data.subset=2000"],
    "uecr_qwen3_30b_a3b": ["uecr.data.subset=2000"],
    "grpo_teacher_qwen3_4b": [],
    "grpo_teacher_qwen3_8b": [],
    "local/demo": [],
    "local/my_problems": [],
}


def _shipped() -> Iterator[tuple[str, str, list[str]]]:
    """Label, file and overrides of every shipped run: the files, and each other method of the demo."""
    for name, given in SHIPPED.items():
        yield name, name, given
    for method in METHODS:
        if method != "uecr":
            yield f"local/demo {method}", "local/demo", [f"method.name={method}"]


def _differences(whole: Mapping[str, Any], base: Mapping[str, Any]) -> Numbers:
    return {
        key: _differences(value, base[key]) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in whole.items()
        if key not in base or value != base[key]
    }


def configurations(work: Path) -> Numbers:
    """Every value of the first recipe and the local configurations; of others only what differs from those."""
    import yaml

    found: Numbers = {}
    for label, name, given in _shipped():
        text = command("config", "show", ROOT / "examples/configs" / f"{name}.yaml", *given)
        values = yaml.safe_load(text)
        base = name if label != name else next(iter(SHIPPED)) if "grpo" in values else label
        found[label] = _differences(values, found[base]) if base in found else values
    return found


def plans(work: Path) -> Numbers:
    """The plan of every shipped configuration in bytes and seconds; a few methods and layouts at both scales."""
    small, large = SCALES
    extra = {
        f"{small} two nodes": (small, [*SCALES[small], "cluster.num_nodes=2"]),
        f"{large} tensor 2": (large, [*SCALES[large], "policy.megatron_cfg.tensor_model_parallel_size=2"]),
        **{f"{name} {method}": (name, [*given, f"uecr.method.name={method}"])
           for name, given in SCALES.items() for method in ("grpo", "puu")},
        "local/demo g_opd": ("local/demo", ["method.name=g_opd"]),
    }  # fmt: skip
    kept = {name: (name, given) for name, given in SHIPPED.items() if name != "local/my_problems"}
    found: Numbers = {}
    for label, (name, given) in (kept | extra).items():
        out = work / "plan.json"
        command("plan", ROOT / "examples/configs" / f"{name}.yaml", *given, "--json", out)
        found[label] = json.loads(out.read_text().replace(str(ROOT), "ROOT"))
    return found


# -- verifier --------------------------------------------------------------------------------------------------------


def verifier(work: Path) -> Numbers:
    """The pairs of verifier.json, which must pass or must fail; a pair is added there with any verdict, then frozen."""
    tables = json.loads((HERE / "verifier.json").read_text())["numbers"]
    judge = named("judge")
    return {
        name: [[given, answer, judge(given, answer).value] for given, answer, _ in rows]
        for name, rows in tables.items()
    }


def benchmarks(work: Path) -> Numbers:
    """Verdicts on the four benchmarks: each answer in every form of the self-test, and each against the next one's."""
    files = {name: SHARED / f"{name}.jsonl" for name in ("aime24", "amc23", "math500", "gsm8k_test")}
    absent = [str(path) for path in files.values() if not path.is_file()]
    if absent:
        raise Skip(f"no {absent[0]}; name the folder with NEMO_UECR_DATA")
    found: Numbers = {}
    with named("comparison_pool")(2) as pool:
        for name, path in files.items():
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            answers = [str(row["answer"]).rpartition("#### ")[2] for row in rows]  # GSM8K answers end in "#### 18"
            forms = [(t.response, t.answer) for each in answers for t in named("trials")("p", each)]
            neighbours = [f"The answer is \\boxed{{{answer}}}." for answer in [*answers[1:], answers[0]]]
            pairs = [*forms, *zip(neighbours, answers, strict=True)]
            checked = named("check_responses")([pair[0] for pair in pairs], [pair[1] for pair in pairs], pool)
            verdicts = [each.verdict.value for each in checked]
            found[name] = {
                "problems": len(rows),
                "counts": {word: verdicts.count(word) for word in sorted(set(verdicts))},
                "exact sha256": hashlib.sha256(" ".join(verdicts).encode()).hexdigest(),
            }
    return found


# -- conversion ------------------------------------------------------------------------------------------------------


def conversion(work: Path) -> Numbers:
    """Hugging Face to Megatron and back: the same weights, and the log-probabilities of fixed tokens."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.bridge") is None:
        raise Skip("megatron-bridge is not installed; `make test-real` installs it into .venv-real")
    named("imported")(MODELS / "teacher", work / "megatron")
    command("convert", work / "megatron", "--to", work / "back", "--hf", MODELS / "teacher", "--tolerance", "1e-5")
    command("convert", work / "back", "--check")
    model = AutoModelForCausalLM.from_pretrained(work / "back", dtype=torch.float32).eval()
    ids = torch.randint(0, model.config.vocab_size, (4, 24), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        logp = model(input_ids=ids).logits[:, :-1].double().log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    weights = {
        name: hashed(tensor)["sha256"]
        for path in sorted((work / "back").glob("*.safetensors"))
        for name, tensor in sorted(load_file(path).items())
    }
    return {"logp": [[round(value, 9) for value in row] for row in logp.tolist()], "exact weights": weights}


PARTS: dict[str, Callable[[Path], Numbers]] = {
    "advantages": advantages,
    "run": run,
    "audits": audits,
    "configurations": configurations,
    "plans": plans,
    "verifier": verifier,
    "benchmarks": benchmarks,
    "conversion": conversion,
}


# -- comparing -------------------------------------------------------------------------------------------------------


def machine() -> Numbers:
    """What bit for bit equality depends on."""
    import torch

    return {
        "torch": torch.__version__.split("+")[0],
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": next(
            (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")), "unknown"
        ),
    }


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.is_file() else []


def differences(found: Any, frozen: Any, where: str, *, exact: bool) -> Iterator[str]:
    """Where two trees differ, a line each."""
    if isinstance(found, dict) and isinstance(frozen, dict):
        for key in sorted(found.keys() | frozen.keys()):
            if key not in found or key not in frozen:
                yield f"{where}/{key}: only {'frozen' if key in frozen else 'found'}"
            elif exact or not key.endswith("sha256") or key.startswith("exact"):
                yield from differences(found[key], frozen[key], f"{where}/{key}", exact=exact)
    elif isinstance(found, list) and isinstance(frozen, list) and len(found) == len(frozen):
        for place, (one, other) in enumerate(zip(found, frozen, strict=True)):
            yield from differences(one, other, f"{where}/{place}", exact=exact)
    elif not exact and isinstance(found, float) and isinstance(frozen, float | int):
        both_nan = found != found and frozen != frozen
        if not (both_nan or math.isclose(found, frozen, rel_tol=TOLERANCE[0], abs_tol=TOLERANCE[1])):
            yield f"{where}: found {found!r}, frozen {frozen!r}"
    elif found != frozen and not (found != found and frozen != frozen):
        yield f"{where}: found {str(found)[:120]!r}, frozen {str(frozen)[:120]!r}"


def main(words: Sequence[str]) -> int:
    """Check or freeze the named parts, or all."""
    if not words or words[0] not in ("check", "freeze") or set(words[1:]) - PARTS.keys():
        sys.stderr.write(f"expected check or freeze, and parts of {', '.join(PARTS)}\n")
        return 2
    import torch

    torch.set_num_threads(1)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    failed, here = 0, machine()
    for name in words[1:] or PARTS:
        started, path = time.monotonic(), HERE / f"{name}.json"
        work = Path(tempfile.mkdtemp(prefix="oracle-"))
        try:
            found = json.loads(json.dumps(PARTS[name](work)))
        except Skip as reason:
            sys.stdout.write(f"{name}: SKIPPED: {reason}\n")
            continue
        except Exception as error:  # noqa: BLE001 - the other parts are still of interest
            sys.stdout.write(f"{name}: FAILED: {type(error).__name__}: {error}\n")
            failed += 1
            continue
        finally:
            shutil.rmtree(work)
        if words[0] == "freeze":
            path.write_text(json.dumps({"machine": here, "numbers": found}, indent=0) + "\n")
            sys.stdout.write(f"{name}: frozen, {path.stat().st_size} bytes, {time.monotonic() - started:.0f} s\n")
            continue
        frozen = json.loads(path.read_text())
        exact = frozen["machine"] == here
        told = list(differences(found, frozen["numbers"], name, exact=exact))
        failed += bool(told)
        kind = "bit for bit" if exact else f"to {TOLERANCE[0]:g}: frozen on {frozen['machine']}"
        sys.stdout.write(
            f"{name}: {f'{len(told)} DIFFERENCES' if told else 'same'} ({kind}), {time.monotonic() - started:.0f} s\n"
        )
        sys.stdout.writelines(f"  {line}\n" for line in told[:10])
        sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
