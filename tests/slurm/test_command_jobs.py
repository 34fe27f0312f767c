"""Jobs of one command on one node, evaluations and conversions, on a real Slurm."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import pytest

from tests.conversion.saved import imported
from tests.local.tiny import Assets
from tests.slurm.one_host import OneHostSlurm
from tests.slurm.page import ROOT, at_home
from tests.slurm.page import job as shown_job

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_evaluate(slurm: OneHostSlurm, tmp_path: Path, tiny: Assets, environment_folder: Path) -> None:
    """The CPU evaluation of docs/cluster.md, with what is here; clone and environment by names without their folder."""
    (tmp_path / "clone").symlink_to(ROOT)
    (tmp_path / "environment").symlink_to(environment_folder)
    here = {"uecr=models/uecr-4b": f"uecr={tiny.student}", "problems.jsonl": f"digits={tiny.problems}"}
    words = [here.get(word, word) for word in at_home(shown_job("eval"), Path("environment"))]
    job = slurm.submit(tmp_path, "--hold", *words, UECR_ROOT="clone")
    older = tmp_path / "slurm-logs" / f"{job}-0"  # of a job with this number, as another cluster leaves it
    older.mkdir(parents=True)
    (older / "cause").write_text("node n9: died long ago\n")
    slurm.call("scontrol", "release", str(job))
    end = slurm.wait_for_end(job, tmp_path / f"uecr-eval-{job}.log")
    assert (end.state, end.last.startswith("slurm: DONE: ")) == ("COMPLETED", True), end.lines
    assert (tmp_path / "evaluations" / "uecr" / "result.json").is_file()


def wait_for_parts(folder: Path, count: int, log: Path) -> None:
    """Wait until an evaluation has written so many parts."""
    deadline = time.monotonic() + 60
    while len(list(folder.glob("part-*"))) < count:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.3)


def test_an_evaluation_is_requeued_and_goes_on(
    slurm: OneHostSlurm, tmp_path: Path, tiny: Assets, environment_folder: Path
) -> None:
    here = {"uecr=models/uecr-4b": f"uecr={tiny.student}", "problems.jsonl": f"digits={tiny.problems}"}
    words = [here.get(word, word) for word in at_home(shown_job("eval"), environment_folder)]
    words[words.index("--samples") + 1] = "100000"
    job = slurm.submit(tmp_path, *words, "--batch", "64", UECR_ROOT=str(ROOT))
    log, parts = tmp_path / f"uecr-eval-{job}.log", tmp_path / "evaluations" / "uecr" / "parts"
    wait_for_parts(parts, 1, log)
    slurm.call("scancel", "--batch", "--signal=USR1", str(job))
    slurm.wait_for_line(log, "slurm: REQUEUED: ")
    assert "slurm: REQUEUED: srun" not in log.read_text(), "the run's own last line is asked for"
    written = len(list(parts.iterdir()))
    slurm.wait_for_line(log, f"slurm: job {job} attempt 1 on n")
    wait_for_parts(parts, written + 1, log)
    slurm.call("scancel", str(job))
    assert slurm.wait_for_end(job, log).state == "CANCELLED"


def test_convert(slurm: OneHostSlurm, tmp_path: Path, tiny: Assets, environment_folder: Path) -> None:
    """The conversion of docs/cluster.md, of weights that Megatron-Bridge wrote: they need no training with Megatron."""
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.bridge") is None:
        pytest.skip("megatron-bridge is not installed")
    out = tmp_path / "converted"
    megatron = imported(tiny.student, tmp_path / "megatron")
    here = {"runs/uecr_qwen3_4b/checkpoints/step_160": str(megatron), "models/uecr-4b": str(out)}
    words = [here.get(word, word) for word in at_home(shown_job("convert"), environment_folder)]
    words += ["--hf", str(tiny.student)]
    job = slurm.submit(tmp_path, *words, UECR_ROOT=str(ROOT))
    end = slurm.wait_for_end(job, tmp_path / f"uecr-convert-{job}.log", seconds=300)
    assert (end.state, end.last.startswith("slurm: DONE: ")) == ("COMPLETED", True), end.lines
    assert (out / "conversion.json").is_file()
