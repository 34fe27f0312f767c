"""The quarters of an hour on a GPU, without one: limits, what comes back, what travels, and what the scripts take.

`make gpu-rehearsal` and `make cluster-rehearsal` run every part at a tiny size.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import cluster_parts, cluster_quarter, gpu_parts, gpu_quarter
from benchmarks.quarter import CALL_BYTES, MEBI, ROOT, Keeper, Part, check_sizes, run_parts, tables, tree_bytes
from nemo_uecr.config.recipes import load_recipe
from nemo_uecr.nemo import recipe, rules
from tests.gpu import one_gpu
from tools.cluster import strip_fatbin

QUARTERS = ("gpu_quarter", "cluster_quarter")

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


def run(words: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable, **more}
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("quarter", QUARTERS)
@pytest.mark.parametrize("words", [[], ["--third"], ["--prepare"], ["--first", "out"], ["--second"]], ids=" ".join)
def test_a_script_that_is_called_otherwise_says_how_and_does_nothing(quarter: str, words: list[str]) -> None:
    done = run(["bash", f"tools/{quarter}.sh", *words])
    assert done.returncode == 2
    for call in ("--prepare DIR", "--first OUT DIR", "--second OUT DIR", "--only PART..."):
        assert call in done.stderr
    assert "shellcheck" not in done.stderr


def test_what_cannot_be_prepared_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    words = ["bash", "tools/cluster_quarter.sh", "--prepare", str(tmp_path / "carried")]
    done = run(words, NEMO_RL_SOURCE=str(tmp_path / "nowhere"))
    assert done.returncode == 2
    assert f"got {tmp_path}/nowhere, expected NeMo-RL's source tree; set NEMO_RL_SOURCE" in done.stderr
    (tmp_path / "nemo_rl").mkdir()
    done = run(words, NEMO_RL_SOURCE=str(tmp_path))  # these tests' torch is another
    assert done.returncode == 2
    assert "expected Python 3.12 with torch 2.11.0+cu130; set PYTHON" in done.stderr


@pytest.mark.parametrize("quarter", QUARTERS)
def test_a_part_that_is_not_there_is_refused_with_those_that_are(quarter: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", f"benchmarks.{quarter}", "first", str(tmp_path / "out"), "--work", str(tmp_path)]
    done = run([*words, "--seconds", "10", "--only", "models", "teachers"])
    assert done.returncode == 2
    assert "--only teachers; expected some of " in done.stderr
    assert "models" in done.stderr.rpartition("expected some of")[2]


@pytest.mark.parametrize(("quarter", "known"), [(gpu_quarter, gpu_parts), (cluster_quarter, cluster_parts)])
def test_every_part_of_both_calls_can_be_run(quarter: object, known: object, tmp_path: Path) -> None:
    for device in ("cuda", "cpu"):
        parts = [*quarter.first_parts(tmp_path, device), *quarter.second_parts(tmp_path, device)]  # type: ignore[attr-defined]
        assert len({part.name for part in parts}) == len(parts)
        for part in parts:
            assert 30 <= part.limit <= 225
            if part.words[:2] == ("-m", known.__name__):  # type: ignore[attr-defined]
                assert part.words[2] in {*known.PARTS, "run"}  # type: ignore[attr-defined]
            elif part.words[0] != "-m":
                assert (ROOT / part.words[0]).is_file()


def test_the_shipped_recipe_is_one_that_the_parts_and_the_loop_can_run(tmp_path: Path) -> None:
    run = cluster_parts.configured(tmp_path, "cuda", fp8=True, micro=4096)
    assert run.teacher["megatron_cfg"]["fp8_cfg"]["enabled"]
    assert not run.student["megatron_cfg"]["fp8_cfg"]["enabled"]
    assert {run.student["sequence_packing"][f"{one}_mb_tokens"] for one in ("train", "logprob")} == {4096}
    assert (run.student["model_name"], run.teacher["model_name"]) == tuple(
        str(tmp_path.resolve() / "models" / name) for name in ("student", "teacher")
    )
    assert run.student_request.temperatures == {"rollout_logp": 0.7, "logp": 1.0}
    for words in (run.overrides, one_gpu.overrides(tmp_path)):
        values = load_recipe(cluster_parts.CONFIG, words).values
        assert rules.faults_of(values, recipe.section_of(values)) == []


def test_what_does_not_fit_a_call_is_refused_with_its_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, size in ((first, 50), (second, 57)):
        folder.mkdir()
        with (folder / "site.tar.xz").open("wb") as file:
            file.truncate(size * MEBI)
    with pytest.raises(SystemExit, match=r"second: 57\.0 MiB, 62\.5 with the tree; expected at most 62; carry less"):
        check_sizes([first, second], int(5.5 * MEBI))
    assert capsys.readouterr().out == f"{first}: 50.0 MiB, 55.5 with the tree, of {CALL_BYTES // MEBI}\n"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the tree is no clone")
def test_the_tree_leaves_room_for_what_is_carried() -> None:
    assert MEBI < tree_bytes() < 10 * MEBI


def test_an_assertion_that_fails_is_written_down_and_the_part_goes_on(tmp_path: Path) -> None:
    report = cluster_parts.Report(tmp_path / "parts" / "student.json")
    report.row("scoring", tokens_per_s=2.5)
    report.check("speed", False, "0.5, bound 0.7", guessed=True)
    with report.attempt("scores"):
        raise ValueError("no such column")
    report.check("gradient", True, "norm 1")
    assert report.failed == ["speed", "scores"]
    assert json.loads(report.path.read_text()) == {
        "scoring": {"tokens per s": 2.5},
        "assert: speed": {"holds": "NO, guessed bound", "seen": "0.5, bound 0.7"},
        "assert: scores": {"holds": "NO", "seen": "ValueError: no such column"},
        "assert: gradient": {"holds": "yes", "seen": "norm 1"},
    }


def test_a_stripped_library_keeps_its_size_and_the_wanted_machine_code() -> None:
    def entry(kind: int, architecture: int, image: bytes) -> bytes:
        header = struct.pack("<HHIQ", kind, 0, 64, len(image)).ljust(28, b"\0") + struct.pack("<I", architecture)
        return header.ljust(64, b"\0") + image

    def binary(*entries: bytes) -> bytes:
        return struct.pack("<IHHQ", strip_fatbin.MAGIC, 1, 16, len(b"".join(entries))) + b"".join(entries)

    code = {a: entry(strip_fatbin.MACHINE_CODE, a, bytes([a]) * 8 * (1 + a // 90)) for a in (80, 90, 100)}
    text, other = entry(1, 90, b"ptx ptx "), b"symbols!"
    one, two = binary(code[80], code[90], text), binary(code[100], code[80])
    data = bytearray(other + one + bytes(8) + two)
    where = {".nv_fatbin": (8, len(data) - 8), ".symtab": (0, 8)}
    assert strip_fatbin.strip(data, where, {90}) == len(code[90]) + len(code[80])
    first, second = binary(code[90]), binary(code[80])  # a driver refuses an empty one
    assert data == bytes(8) + first.ljust(len(one) + 8, b"\0") + second.ljust(len(two), b"\0")
