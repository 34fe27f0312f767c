"""The quarter of an hour on a GPU, without one: limits, what comes back, and what travels.

`make gpu-rehearsal` runs every part at a tiny size.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu_quarter import (
    CALL_BYTES,
    MEBI,
    SPARE_BYTES,
    Keeper,
    Part,
    divide,
    first_parts,
    run_parts,
    second_parts,
    size_of,
    tables,
)
from benchmarks.gpu_quarter import main as quarter

WRITES = "import json, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(json.dumps({'copy': {'GB/s': 2.5}}));"
BACK = 8  # files that come back


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


def test_the_second_call_repeats_what_the_first_left_and_prints_its_table_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work, carried = tmp_path / "work", tmp_path / "carried"
    carried.mkdir()
    (work / "parts").mkdir(parents=True)
    sums, kernels, decode = (part(work, name, WRITES.replace("copy", name)) for name in ("sums", "kernels", "decode"))
    monkeypatch.setattr("benchmarks.gpu_quarter.first_parts", lambda work, device: [kernels, decode])
    monkeypatch.setattr("benchmarks.gpu_quarter.second_parts", lambda work, device: [sums])
    left = {"kernels": {"status": "FAILED", "reason": "x", "seconds": 1.0}, "decode": {"status": "OK", "seconds": 1.0}}
    (work / "results.json").write_text(json.dumps(left))

    def called(*more: str) -> str:
        words = [
            "second",
            str(tmp_path / "out"),
            str(carried),
            "--work",
            str(work),
            "--device",
            "cpu",
            "--seconds",
            "60",
        ]
        monkeypatch.setattr(sys, "argv", ["gpu_quarter", *words, *more])
        assert quarter() == 0
        return capsys.readouterr().out

    printed = called()
    assert re.findall(r"^OK +(\w+)", printed, re.MULTILINE) == ["sums", "kernels"]
    assert printed.endswith((tmp_path / "out" / "table.md").read_text())
    assert "| kernels | 2.5 |" in printed
    assert re.findall(r"^OK +(\w+)", called("--only", "decode"), re.MULTILINE) == ["decode"]
    assert len(list((tmp_path / "out").iterdir())) <= BACK


def test_names_of_results_come_back_from_the_machine(tmp_path: Path) -> None:
    for device in ("cuda", "cpu"):
        for one in (*first_parts(tmp_path, device), *second_parts(tmp_path, device)):
            assert re.fullmatch(r"[A-Za-z0-9._-]+", one.name)
            assert one.limit <= 120


def test_the_weights_are_cut_so_that_both_calls_have_one_size_or_are_refused(tmp_path: Path) -> None:
    gguf, folders = tmp_path / "model.gguf", [tmp_path / "first", tmp_path / "second"]
    content = bytes(range(256)) * 4000
    gguf.write_bytes(content)
    for folder, wheels in zip(folders, (30_000, 10_000), strict=True):
        folder.mkdir()
        (folder / "wheels").write_bytes(b"0" * wheels)
    divide(gguf, folders, tree=5 * MEBI)
    assert b"".join(next(folder.glob("smollm2.gguf.*")).read_bytes() for folder in folders) == content
    assert abs(size_of(folders[0]) - size_of(folders[1])) <= 1
    with pytest.raises(SystemExit, match="MiB in a call"):
        divide(gguf, folders, tree=CALL_BYTES - SPARE_BYTES - 500_000)
