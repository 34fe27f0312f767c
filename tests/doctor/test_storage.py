"""Folders that cannot be written, that are too small, that other nodes do not see; problem files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_uecr.cli.look import sizes
from nemo_uecr.cli.main import entry_point
from nemo_uecr.doctor import storage
from tests.doctor.subjects import local, nemo

MOUNTS = Path("/proc/mounts")


def test_a_folder_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    assert storage.writable_finding(str(tmp_path / "runs" / "new")).status == "ok"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["/proc/run", "/sys/run"])
def test_a_read_only_place_is_a_fail(folder: str) -> None:
    found = storage.writable_finding(folder)
    assert found.status == "fail"
    assert "cannot write" in found.message


def test_a_file_in_the_way_is_a_fail(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    assert "cannot write" in storage.writable_finding(str(tmp_path / "run")).message


def test_checkpoints_that_do_not_fit_are_a_fail(tmp_path: Path) -> None:
    """4 checkpoints of 4.02 billion parameters x 14 bytes; a million of them fit nowhere."""
    (few,) = storage.space_findings(nemo(run_folder=str(tmp_path)), sizes=sizes)
    assert "4 checkpoints of 52.45 GiB need 209.8" in few.message
    (many,) = storage.space_findings(nemo(run_folder=str(tmp_path), kept_checkpoints=10**6), sizes=sizes)
    assert many.status == "fail"
    (small,) = storage.space_findings(local(run_folder=str(tmp_path)), sizes=sizes)
    assert small.status == "ok"
    (unknown,) = storage.space_findings(nemo("student.model_name=nobody/knows"), sizes=sizes)
    assert unknown.status == "warn"


def test_one_node_shares_with_nobody() -> None:
    assert storage.shared_findings(nemo(), mounts=MOUNTS) == []


def test_a_file_system_of_this_node_alone_is_a_fail() -> None:
    """/dev/shm is memory of this machine on every Linux."""
    found = storage.shared_findings(nemo("cluster.nodes=2", "run.folder=/dev/shm/run"), mounts=MOUNTS)
    by_key = {one.check: one for one in found}
    assert by_key["shared run.folder"].status == "fail"
    assert "/dev/shm is on tmpfs" in by_key["shared run.folder"].message


def test_the_nearest_mount_decides(tmp_path: Path) -> None:
    """In whatever order they stand (an early system mounts `/dev` before `/`); of two on one place the later."""
    mounts = tmp_path / "mounts"
    inner = tmp_path / "with space"
    inner.mkdir()
    escaped = str(inner).replace(" ", "\\040")
    lines = [
        f"c {escaped} strange rw 0 0", f"hidden {tmp_path} ext4 rw 0 0", f"b {tmp_path} nfs4 rw 0 0", "a / ext4 rw 0 0",
    ]  # fmt: skip
    mounts.write_text("\n".join(lines) + "\n")
    subject = nemo("cluster.nodes=2", f"run.folder={tmp_path}/run", f"data.train={inner}/train.jsonl")
    kinds = {one.check: one.status for one in storage.shared_findings(subject, mounts=mounts)}
    assert kinds == {"shared run.folder": "ok", "shared data.train": "warn"}


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "no such file"),
        ("", "cannot be read"),
        ('{"question": "q"}\n', "no field 'final_answer'"),
        ("[1]\n", "no field"),
    ],
)
def test_problem_files(content: str | None, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    if content is not None:
        path.write_text(content)
    found = storage.problems_finding(nemo(f"data.train={path}"))
    assert found.status == "fail"
    assert fault in found.message


def test_a_good_problem_file(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "q", "final_answer": "1"}\n')
    assert storage.problems_finding(nemo(f"data.train={path}")).status == "ok"


def prepared(tmp_path: Path) -> Path:
    source = tmp_path / "source.jsonl"
    source.write_text(json.dumps({"question": "What is 2 + 3?", "final_answer": "5", "difficulty": 6}) + "\n")
    screen = tmp_path / "screen.jsonl"
    screen.write_text(json.dumps({"question": "How many primes lie below 40?", "answer": "12"}) + "\n")
    words = ["--source", str(source), "--screen", str(screen), "--difficulty", "5", "7", "--out", str(tmp_path / "out")]
    assert entry_point(["data", "prepare", *words]) == 0
    return tmp_path / "out"


def test_a_prepared_folder_is_read_by_its_kept_rows(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    found = storage.problems_finding(nemo(f"data.train={folder}", "data.answer_key=answer"))
    assert (found.status, found.message) == ("ok", f"{folder}/train.jsonl, fields 'question' and 'answer'")
    assert "no field 'final_answer'" in storage.problems_finding(nemo(f"data.train={folder}")).message


def test_a_prepared_folder_altered_by_hand_is_a_fail(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    (folder / "train.jsonl").write_text('{"question": "q", "answer": "1"}\n')
    found = storage.problems_finding(nemo(f"data.train={folder}", "data.answer_key=answer"))
    assert found.status == "fail"
    assert "is not the one of the manifest" in found.message
