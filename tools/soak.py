"""Nothing is lost: runs that are ended at random moments and resumed equal a run that nobody disturbed.

    python tools/soak.py [--minutes 60] [--folder runs/soak] [--config FILE] [--evaluate WORDS] [key=value ...]

One run of the local back end is trained and evaluated in peace. Then, until the time is over, the same is done in new
folders while signals fall: SIGKILL, Ctrl-C, SIGTERM and SIGUSR1, each to the whole command. After every signal the same
command goes on. Metrics but for times, evaluations, weights and optimizer must be equal, byte for byte where they are
files of weights. It prints one line a round and fails at the first difference, whose folder is kept.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyarrow import parquet

from nemo_uecr.files import file_sha256
from nemo_uecr.slurm.replicas import MEASURED
from nemo_uecr.stopping import STOPPED

#: What a signal may make a command return: the second is before Python listens.
ENDS = {
    signal.SIGKILL: {-signal.SIGKILL},
    signal.SIGINT: {130, -signal.SIGINT},
    signal.SIGTERM: {STOPPED, -signal.SIGTERM},
    signal.SIGUSR1: {STOPPED, -signal.SIGUSR1},
}
#: Steps and evaluations of the demo in a minute: enough for a kill in each part of either.
SMALL = (
    "train.steps=12", "rollout.prompts_per_step=4", "checkpoint.every=2", "checkpoint.keep_last=2",
    "evaluation.every=4", "telemetry.progress=off",
)  # fmt: skip
LAST = "checkpoints/step-000012"


def command(folder: Path, arguments: argparse.Namespace) -> list[list[str]]:
    """Train, and evaluate what was trained."""
    train = ["train", arguments.config, *arguments.overrides, *SMALL, f"run.folder={folder / 'run'}"]
    evaluate = ["evaluate", str(folder / "run" / LAST), "--benchmarks", "demo:bench/level2", "--samples", "4"]
    evaluate += ["--max-tokens", "64", "--engine", "transformers", "--dtype", "float32", "--batch", "8"]
    evaluate += ["--out", str(folder / "evaluations"), *shlex.split(arguments.evaluate)]
    return [[sys.executable, "-m", "nemo_uecr", *words] for words in (train, evaluate)]


def disturbed(words: Sequence[str], folder: Path, seconds: float, rng: random.Random) -> Counter[str]:
    """Run a command to its end, ending it now and then at a random moment; returns how often by which signal."""
    ended = Counter[str]()
    while True:
        resume = ["--resume"] if "train" in words and (folder / "run" / "config.yaml").exists() else []
        process = subprocess.Popen([*words, *resume], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        number = rng.choice(list(ENDS))
        try:
            process.communicate(timeout=rng.uniform(0.0, 2.0 * seconds))
            allowed = {0}
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            allowed = {0, *ENDS[number]}  # 0: it had ended by itself
        said = process.communicate()[1]
        if "Could not import runpy module" in said:  # Ctrl-C before Python runs any of the command; its code is 1
            allowed = {1}
        if process.returncode not in allowed:
            raise SystemExit(f"{number.name}: exit code {process.returncode}; {' '.join(words)}\n{said}")
        if process.returncode == 0:
            return ended
        ended[number.name] += 1


def outcome(folder: Path) -> dict[str, Any]:
    """What must be equal: records without times and memory, samples in any order, weights and optimizer."""
    run, evaluated = folder / "run", next((folder / "evaluations").glob("*/responses.parquet"))

    def records(name: str) -> list[dict[str, Any]]:
        lines = map(json.loads, (run / name).read_text(encoding="utf-8").splitlines())
        return [{key: line[key] for key in line if not key.startswith((*MEASURED, "seconds"))} for line in lines]

    found: dict[str, Any] = {name: records(name) for name in ("metrics.jsonl", "evaluation.jsonl")}
    for path in sorted((run / LAST).glob("*")):  # a signal adds checkpoints before it
        if path.suffix in (".safetensors", ".pt"):
            found[str(path.relative_to(run))] = file_sha256(path)
    return found | {"samples": sorted(map(str, parquet.read_table(evaluated).to_pylist()))}


def main() -> None:
    """Soak until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--folder", type=Path, default=Path("runs/soak"))
    parser.add_argument("--config", default="examples/configs/local/demo.yaml")
    parser.add_argument("--evaluate", default="", help="more words for it: '--environment FILE.py:CLASS --stop ='")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    if arguments.folder.exists():
        parser.error(f"{arguments.folder} exists; expected a new folder: move it away or choose another --folder")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores Ctrl-C
    end, rng = time.monotonic() + 60 * arguments.minutes, random.Random(arguments.seed)
    peace, seconds = arguments.folder / "undisturbed", []
    for words in command(peace, arguments):
        started = time.monotonic()
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.monotonic() - started)
    expected, total, rounds = outcome(peace), Counter[str](), 0
    while time.monotonic() < end:
        rounds, folder = rounds + 1, arguments.folder / f"round-{rounds + 1}"
        ended = Counter[str]()
        for words, needed in zip(command(folder, arguments), seconds, strict=True):
            ended += disturbed(words, folder, needed, rng)
        found = outcome(folder)
        differing = [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]
        if differing:
            raise SystemExit(f"{folder}: differs from {peace} in {', '.join(sorted(differing))}")
        shutil.rmtree(folder)
        total += ended
        sys.stdout.write(f"round {rounds}: ended {ended.total()} times, equal\n")
        sys.stdout.flush()
    said = ", ".join(f"{count} {name}" for name, count in sorted(total.items()))
    sys.stdout.write(f"{rounds} rounds, ended {total.total()} times ({said}); nothing lost, every round equal\n")


if __name__ == "__main__":
    main()
