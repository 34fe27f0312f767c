"""Scoring on one CUDA GPU: its error against float64, then speed with events after warm-up.

    python -m benchmarks.kernels --json kernels.json [--sweep] [--old FILE]

Whether the kernels are right is what `pytest -m gpu tests/scoring` asks. Inputs are fresh at random each run (the seed
is in the output). Speeds are shares of the bandwidth of a large copy on the same GPU: what a kernel has to move, each
byte once, over its time. `--sweep` also times other tiles, each checked first; `--old` times the `reduce_with_triton`
of another triton_kernels.py beside this one. `TRITON_INTERPRET=1 ... --tiny` rehearses all of it on a CPU. Exit code 1
when a check fails; speeds are reported, not judged.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import TritonError

from nemo_uecr.scoring import triton_kernels
from nemo_uecr.scoring.dense import token_scores
from nemo_uecr.scoring.records import StatisticsLayout

TINY = "--tiny" in sys.argv
VOCAB = 9000 if TINY else 151_936
VOCABULARIES = (VOCAB, 61) if TINY else (VOCAB, 37_987, 61)
TIMED_TOKENS = 3 if TINY else 8192
CHECKED_TOKENS = 3 if TINY else 65
REPETITIONS = 1 if TINY else 20
BOUND = 5e-6
#: What is timed: temperatures and whether the entropy is asked.
KINDS = {"one": ((1.0,), True), "two": ((1.0, 0.7), True), "other": ((0.7,), False)}
SWEPT = (("one", "bfloat16"), ("two", "bfloat16"), ("one", "float32"))
FORWARDS = [
    {"LANES": lanes, "STAGES": stages, "num_warps": warps, **({"maxnreg": registers} if registers else {})}
    for lanes, stages, warps, registers in (
        (1024, 1, 4, 0),
        (1024, 2, 4, 0),
        (1024, 3, 4, 0),
        (1024, 1, 4, 72),
        (512, 1, 2, 0),
        (512, 2, 2, 0),
        (512, 3, 2, 0),
        (256, 1, 1, 0),
        (2048, 1, 8, 0),
    )
]
BACKWARDS = [
    {"BLOCK": block, "num_warps": warps}
    for block, warps in ((1024, 4), (2048, 4), (4096, 4), (4096, 8), (8192, 8), (16_384, 8))
]


def say(line: str) -> None:
    """One line of the output, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def peaked(tokens: int, vocab: int, log_z: float) -> tuple[Tensor, Tensor]:
    """Logits with a few likely tokens over a noisy floor, moved to the given log-partition, and targets."""
    logits = torch.randn(tokens, vocab) * 2.0
    likely = torch.randint(0, vocab, (tokens, 8))
    logits.scatter_(1, likely, torch.rand(tokens, 8) * 6.0 + 14.0)
    logits += log_z - torch.logsumexp(logits, 1, keepdim=True)
    other = torch.randint(0, vocab, (tokens,))
    return logits, torch.where(torch.arange(tokens) % 2 == 0, likely[:, 0], other)


def exact(logits: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy in float64."""
    log_p = torch.log_softmax(logits.double() / temperature, 1)
    entropy = -torch.special.xlogy(log_p.exp(), log_p.exp()).sum(1)
    return log_p.gather(1, target.unsqueeze(1)).squeeze(1), entropy


def check_logits(errors: dict[str, float]) -> None:
    """Largest error of each kind of logits pass into `errors`, all below the bound."""
    for vocab in VOCABULARIES:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for log_z in (8.0, 25.0):
                logits, target = peaked(CHECKED_TOKENS, vocab, log_z)
                logits = logits.to(dtype)
                scores = token_scores(logits, target, temperatures=(1.0, 0.7), entropy=True)
                warm, _ = exact(logits, target, 0.7)
                logp, entropy = exact(logits, target, 1.0)
                assert scores.entropy is not None
                pairs = (scores.at(1.0), logp), (scores.at(0.7), warm), (scores.entropy, entropy)
                errors[f"{vocab} {dtype} log Z {log_z}"] = max(float((ours - own).abs().max()) for ours, own in pairs)
    assert all(error <= BOUND for error in errors.values()), "an error beyond the bound, or NaN"


def milliseconds(run: Callable[[], Any], repetitions: int = REPETITIONS) -> float:
    """Median time between events, after warm-up; a single run by the clock on a CPU."""
    if TINY:
        start = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start)
    for _ in range(3):
        run()
    begins, ends = ([torch.cuda.Event(enable_timing=True) for _ in range(repetitions)] for _ in range(2))
    for begin, end in zip(begins, ends, strict=True):  # no wait between: on an idle device a launch would be timed, too
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(map(torch.cuda.Event.elapsed_time, begins, ends))


@contextmanager
def shape(constants: dict[str, int], values: dict[str, int]) -> Iterator[None]:
    """The kernels with other tiles."""
    before = dict(constants)
    constants.clear()
    constants.update(values)
    try:
        yield
    finally:
        constants.clear()
        constants.update(before)


def reduction(
    module: Any, logits: Tensor, target: Tensor, layout: StatisticsLayout
) -> tuple[Callable[[], Any], Tensor]:
    """The kernel alone, and what it writes."""
    stats = torch.full((layout.width, len(target)), float("nan"))
    return lambda: module.reduce_with_triton(logits, target, layout, 0, stats), stats


def slope(logits: Tensor, target: Tensor) -> tuple[Callable[[], Any], Tensor]:
    """The gradient's kernel alone, at a temperature of 0.7, and what it writes."""
    layout = StatisticsLayout((0.7,), False)
    merged = torch.empty(3, len(target), dtype=torch.float64)
    merged[0], merged[1], merged[2] = logits.amax(1), 0.0, 5.0
    grad, gradient = torch.rand(len(target)), torch.full_like(logits, float("nan"))
    return (
        lambda: triton_kernels.write_gradient_with_triton(logits, target, merged, layout, grad, gradient),
        gradient,
    )


def measure(found: dict[str, float], old: Any, *, sweep: bool) -> None:
    """Milliseconds and shares of copy bandwidth of kernels and of whole calls, into `found`."""
    wide, target = peaked(TIMED_TOKENS, VOCAB, 15.0)
    for dtype in (torch.bfloat16, torch.float32):
        logits = wide.to(dtype)
        size, name = logits.numel() * logits.element_size(), str(dtype).removeprefix("torch.")
        room = torch.empty_like(logits)
        copy = milliseconds(lambda a=room, b=logits: a.copy_(b))
        del room
        found[f"{name} copy TB/s"] = 2 * size / copy / 1e9

        def record(key: str, took: float, moved: int, copy: float = copy, name: str = name) -> None:
            share = moved * copy / (2 * took)
            found[f"{name} {key}, ms"], found[f"{name} {key}, share of copy"] = round(took, 4), round(share, 3)
            say(f"{name:9} {key:70} {took:8.3f} ms {share:6.3f} of copy")

        for kind, (temperatures, entropy) in KINDS.items():
            layout = StatisticsLayout(temperatures, entropy)
            run, stats = reduction(triton_kernels, logits, target, layout)
            record(f"kernel {kind}", milliseconds(run), 1)
            if old is not None:
                record(f"old kernel {kind}", milliseconds(reduction(old, logits, target, layout)[0]), 1)
            call = milliseconds(
                lambda b=logits, t=temperatures, e=entropy: token_scores(b, target, temperatures=t, entropy=e)
            )
            record(f"call {kind}", call, 1)
            for values in FORWARDS if sweep and (kind, name) in SWEPT else ():
                with shape(triton_kernels.FORWARD, values):
                    other, theirs = reduction(triton_kernels, logits, target, layout)
                    try:
                        took = milliseconds(other)
                    except (RuntimeError, TritonError) as error:  # a tile that does not fit this GPU
                        say(f"{name} {kind} {values}: {str(error)[:80]}")
                        continue
                    torch.testing.assert_close(theirs, stats, rtol=1e-5, atol=1e-5)
                    record(f"{kind} {values}", took, 1)
        run, gradient = slope(logits, target)
        record("backward", milliseconds(run), 2)
        for values in BACKWARDS if sweep else ():
            expected = gradient[:64].clone()
            with shape(triton_kernels.BACKWARD, values):
                gradient.fill_(float("nan"))
                took = milliseconds(run)
                assert not gradient.isnan().any(), values
                torch.testing.assert_close(gradient[:64], expected, rtol=1e-2, atol=1e-4)
                record(f"backward {values}", took, 2)
        del gradient
        del logits


def module_of(path: Path) -> Any:
    """A module of another place."""
    specification = importlib.util.spec_from_file_location("old_triton_kernels", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def main() -> int:
    """Check, then time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--old", type=Path, help="another triton_kernels.py, timed beside this one")
    parser.add_argument("--sweep", action="store_true", help="time other tiles")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal on a CPU; needs TRITON_INTERPRET=1")
    arguments = parser.parse_args()
    if not (arguments.tiny or torch.cuda.is_available()):
        say("no CUDA device here")
        return 2
    torch.set_default_device("cpu" if arguments.tiny else "cuda")
    seed = int.from_bytes(os.urandom(4), "little")
    torch.manual_seed(seed)
    begun = time.perf_counter()
    result: dict[str, Any] = {
        "seed": seed,
        "device": "cpu" if arguments.tiny else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": importlib.metadata.version("triton"),
        "errors": {},
    }
    failed = []

    def check(name: str, run: Callable[[], Any]) -> None:
        """What it found into the result; the rest still runs where it fails."""
        try:
            found = run()
        except AssertionError as error:
            failed.append(f"{name}: {error}"[:500])
            say(f"FAILED {failed[-1]}")
        else:
            result.update({} if found is None else {name: found})

    def write() -> None:
        result["failed"], result["seconds"] = failed, round(time.perf_counter() - begun, 1)
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")

    with torch.no_grad():
        check("logits", lambda: check_logits(result["errors"]))
        say(f"largest error {max(result['errors'].values()):.2g}")
        result["seconds of checks"] = round(time.perf_counter() - begun, 1)
        result["speed"] = {}
        write()
        old = module_of(arguments.old) if arguments.old else None
        check("measured", lambda: measure(result["speed"], old, sweep=arguments.sweep))
    write()
    say(f"{len(failed)} failed; {result['seconds']} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
