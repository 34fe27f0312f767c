"""The quarter of an hour on a GPU, without one: limits, what comes back, and what travels.

`make gpu-rehearsal` runs every part at a tiny size.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from benchmarks.quarter import Keeper, Part, run_parts, tables

WRITES = "import json, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(json.dumps({'copy': {'GB/s': 2.5}}));"


def part(work: Path, name: str, code: str, limit: float = 30.0, **more: object) -> Part:
    return Part(name, "Rates", ("-c", code, str(work / "parts" / f"{name}.json")), limit, **more)  # type: ignore[arg-type]


def test_a_part_that_fails_or_hangs_is_reported_with_what_it_measured_and_the_others_run(tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    hangs = (
        WRITES
        + "import subprocess, time; subprocess.Popen(['sleep', '60']); print('waits', flush=True); time.sleep(60)"
    )
    parts = [
        part(work, "bad", "print('begins'); raise ValueError('no such kernel')"),
        part(work, "slow", hangs, limit=3.0),
        part(work, "absent", "", needs=("no_such_package",)),
        part(work, "cuda", "", on_cpu=False),
        part(work, "good", WRITES.replace("copy", "good")),
    ]
    keep = Keeper(parts, work, out)
    found = run_parts(parts, work, "cpu", 60.0, keep)
    assert [found[one.name]["status"] for one in parts] == ["FAILED", "FAILED", "SKIPPED", "SKIPPED", "OK"]
    text = (out / "table.md").read_text()
    assert text == tables(parts, found)
    assert "| copy | 2.5 |" in text  # before it hung
    assert "| good | 2.5 |" in text
    assert "- bad: FAILED, exit code 1: ValueError: no such kernel" in text
    assert "- slow: FAILED, longer than its 3 s; last line: waits" in text
    assert "- absent: SKIPPED, without no_such_package" in text
    assert json.loads((out / "results.json").read_text()) == found
    assert "no such kernel" in (out / "parts.log").read_text()


def test_the_results_are_on_disk_after_each_part_and_no_part_outlives_the_whole_time(tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    parts = [
        part(work, "first", WRITES),
        part(work, "endless", "import time; time.sleep(60)", limit=50.0),
        part(work, "last", WRITES),
    ]
    seen = []
    keep = Keeper(parts, work, out)

    def watched(found: dict[str, dict[str, object]]) -> None:
        keep(found)  # type: ignore[arg-type]
        seen.append(list(json.loads((out / "results.json").read_text())))

    started = time.monotonic()
    found = run_parts(parts, work, "cpu", 4.0, watched)
    assert time.monotonic() - started < 12
    assert seen == [["first"], ["first", "endless"], ["first", "endless", "last"]]
    assert found["endless"]["status"] == "FAILED"
    assert found["last"]["reason"] == "no time left"
    assert Keeper(parts, work, tmp_path / "second").unfinished() == ["endless", "last"]
