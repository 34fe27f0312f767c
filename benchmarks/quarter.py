"""The runner of `gpu_quarter` and `cluster_quarter`: parts of a call on a GPU, one process each.

Each part has a time limit; one that fails or is too slow does not end the others. results.json, table.md and parts.log
are in OUT as soon as a part is done, and the table is printed last.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
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
#: What travels in one call, the tree included, and what is left free of it.
CALL_BYTES, SPARE_BYTES = 64 * MEBI, 2 * MEBI
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


def tree_bytes() -> int:
    """Bytes of the clone's own files, which travel with each call: tracked, or new and not ignored."""
    words = ["git", "ls-files", "-coz", "--exclude-standard"]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return sum((ROOT / name).stat().st_size for name in names if name and (ROOT / name).is_file())


def check_sizes(folders: Sequence[Path], tree: int) -> None:
    """Say how large each call is with the tree.

    Raises:
        SystemExit: one is too large.
    """
    for folder in folders:
        call = size_of(folder) + tree
        carried = f"{folder}: {size_of(folder) / MEBI:.1f} MiB, {call / MEBI:.1f} with the tree"
        if call + SPARE_BYTES > CALL_BYTES:
            sys.exit(f"{carried}; expected at most {(CALL_BYTES - SPARE_BYTES) / MEBI:.0f}; carry less")
        sys.stdout.write(f"{carried}, of {CALL_BYTES // MEBI}\n")


# -- a call -----------------------------------------------------------------------------------------------------------

Parts = Callable[[Path, str], list[Part]]


def main(description: str | None, first_parts: Parts, second_parts: Parts, prepare: Callable[[Path], None]) -> int:
    """Complete what is carried, or run a call's parts; the second runs what the first left unfinished, too."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("prepare").add_argument("carried", type=Path)
    for action in ("first", "second"):
        call = actions.add_parser(action)
        call.add_argument("out", type=Path)
        call.add_argument("--work", type=Path, required=True, help="where models, runs and logs stay between the calls")
        call.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
        call.add_argument("--seconds", type=float, required=True, help="time of all parts together")
        call.add_argument("--patience", type=float, default=1.0, help="multiplies the limits of single parts")
        call.add_argument("--only", nargs="+", metavar="PART", help="these parts of the first call alone")
    args = parser.parse_args()
    if args.action == "prepare":
        prepare(args.carried.resolve())
        return 0
    work = args.work.resolve()
    first = first_parts(work, args.device)
    keep = Keeper(first, work, args.out.resolve())
    if args.only:
        names = [part.name for part in first]
        if unknown := [name for name in args.only if name not in names]:
            parser.error(f"--only {' '.join(unknown)}; expected some of {' '.join(names)}")
        keep.chosen = [part for part in first if part.name in args.only]
    elif args.action == "second":
        unfinished = keep.unfinished()
        keep.chosen = second_parts(work, args.device) + [part for part in first if part.name in unfinished]
    keep.chosen = [replace(part, limit=part.limit * args.patience) for part in keep.chosen]
    found = run_parts(keep.chosen, work, args.device, args.seconds, keep)
    sys.stdout.write("\n" + tables(keep.chosen, found))
    return int(any(one["status"] == "FAILED" for one in found.values()))
