"""A method from a user's file: it trains, is recorded with its hash, replays and resumes like a shipped one."""

from __future__ import annotations

import hashlib
import json
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nemo_uecr.cli.main import entry_point
from nemo_uecr.core.functions import method_advantage
from nemo_uecr.core.methods import method_of
from nemo_uecr.core.methods.baselines import Grpo
from nemo_uecr.core.record import ScoredBatch
from nemo_uecr.errors import CheckpointError, ConfigError
from nemo_uecr.local import checkpoint
from nemo_uecr.report.page import render_page
from nemo_uecr.responses.table import read_responses, write_again
from nemo_uecr.telemetry.run_folder import read_run
from tests.local import tiny
from tests.local.tiny import in_child, outcome, same
from tests.reliability.commands import refused
from tests.reliability.test_kills import die_inside

SOURCE = '''
"""GRPO's credit, up to doubled where the teacher sides with the verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from nemo_uecr.core.methods import Advantages
from nemo_uecr.core.methods.base import TEACHER
from nemo_uecr.core.methods.baselines import Grpo
from nemo_uecr.ranges import Range


@dataclass(frozen=True, kw_only=True)
class SoftGate(Grpo):
    """A = 2 sigmoid(sign(A^GRPO) delta / width) A^GRPO."""

    reads = TEACHER
    identities, monitored = ("finite", "sign_kept"), ("budget",)

    width: Annotated[float, Range(0.001, 1000, unit="nats")] = 1.0  # Gap that makes the weight 1.46 or 0.54.

    def __call__(self, batch) -> Advantages:
        grpo = super().__call__(batch)
        w_BT = 2.0 * (grpo.advantage_BT.sign() * batch.gap_BT / self.width).sigmoid()
        state = {"seen": batch.run.state.get("seen", 0.0) + 1.0}
        return replace(
            grpo, advantage_BT=w_BT * grpo.advantage_BT, weight_BT=w_BT, teacher_reward_B=batch.teacher_reward_B,
            state=state,
        )


@dataclass(frozen=True, kw_only=True)
class Needs(Grpo):
    """A = strength A^GRPO."""

    strength: float

    def __call__(self, batch) -> Advantages:
        found = super().__call__(batch)
        return replace(found, advantage_BT=self.strength * found.advantage_BT)


class Undecorated(Grpo):
    strength: float = 1.0


def function(batch): ...
'''
EVERY = ("train.steps=3", "checkpoint.every=1", "telemetry.save_batch_every=1")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the working folder, so that a run names it by a relative path."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my_method.py"
    path.write_text(SOURCE)
    return path


def test_it_trains_is_recorded_and_replays(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own, digest = ("method.name=my_method.py:SoftGate", "method.width=0.5"), hashlib.sha256(SOURCE.encode()).hexdigest()
    words = tiny.train_words(tiny.assets(), Path("run"), *EVERY, *own)
    assert entry_point(["config", "check", *words[1:]]) == 0
    told = capsys.readouterr().out
    assert "A = 2 sigmoid(sign(A^GRPO) delta / width) A^GRPO" in told
    assert "width = 0.5" in told
    assert entry_point(words) == 0
    record = json.loads(Path("run/provenance.json").read_text())
    assert record["code"] == {"method.name": digest}
    steps = tiny.metrics(Path("run"))
    assert [step["identity/sign_kept"] for step in steps] == [0, 0, 0]
    assert all(step["identity/budget_error"] > 1e-3 for step in steps)
    saved = read_responses(Path("run/batches/step-000002.parquet"))
    assert saved.about["method_sha256"] == digest
    assert saved.about["run"]["state"] == {"seen": 1.0}
    plain = tiny.run(Path("grpo"), *EVERY, "method.name=grpo")
    assert not torch.equal(saved.padded("advantage"), tiny.tensors(plain, 2)["advantage"])
    for words in (["replay", "run", "--check"], ["report", "run", "--verify"], ["report", "run"]):
        assert entry_point(words) == 0
    told = capsys.readouterr().out
    assert "3 of 3 saved steps reproduced" in told
    assert "0 changed" in told
    out = ["--set", "width=0.5", "--out", "out.parquet"]
    assert entry_point(["replay", "run/batches/step-000001.parquet", "--method", "my_method.py:SoftGate", *out]) == 0


def test_the_report_runs_no_changed_or_missing_file(file: Path) -> None:
    run = read_run(tiny.run(Path("run"), *EVERY, "method.name=my_method.py:SoftGate"))
    whole = render_page([run])
    assert "No credit map" not in whole
    file.write_text(f"open({str(file.with_name('ran'))!r}, 'w')\n{SOURCE}")
    changed = render_page([run])
    assert "No credit map, which needs the run&#39;s method: my_method.py: sha256" in changed
    file.unlink()
    missing = render_page([run])
    for page in (whole, changed, missing):
        assert "my_method.py:SoftGate" in page
        assert "A = 2 sigmoid(sign(A^GRPO) delta / width) A^GRPO" in page
        assert "sign_kept" in page
    assert not file.with_name("ran").exists()


def test_it_goes_on_after_a_kill_bit_for_bit(file: Path) -> None:
    own, folder = (*EVERY, "method.name=my_method.py:SoftGate"), file.with_name("killed")
    whole = outcome(tiny.run(file.with_name("whole"), *own))

    def work() -> None:
        die_inside(checkpoint, "save_pretrained", call=2)
        tiny.run(folder, *own)

    assert in_child(work)[0] == -signal.SIGKILL
    assert [path.name for path in (folder / "checkpoints").glob("step-*")] == ["step-000001"]
    tiny.run(folder, *own, resume=True)
    assert same(outcome(folder), whole) == []


def test_a_changed_file_is_refused_at_resume_and_by_replay(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ("train.steps=1", "checkpoint.every=1", "telemetry.save_batch_every=1", "method.name=my_method.py:SoftGate")
    tiny.run(Path("run"), *own)
    file.write_text(SOURCE.replace("2.0 *", "3.0 *"))
    changed = (
        r"run/config\.yaml: method\.name: my_method\.py: sha256 \w{12} here, \w{12} in the run; put the run's content"
    )
    with pytest.raises(CheckpointError, match=changed):
        tiny.run(Path("run"), *own, "train.steps=2", resume=True)
    line = refused(capsys, "replay", "run", "--check")
    assert "step-000001.parquet names method my_method.py:SoftGate: my_method.py: sha256" in line
    assert "in the run; put the run's content of the file back" in line
    file.unlink()
    assert "my_method.py: no such file" in refused(capsys, "replay", "run", "--check")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["my_method.py:SoftGate", "width=0"], "method.width: got 0.0, expected a number >= 0.001 and <= 1000 nats"),
        (["my_method.py:SoftGate", "width=wide"], "method.width: got 'wide', expected a valid number"),
        (["my_method.py:SoftGate", "widht=1"], "unknown key method.widht (set on the command line); the nearest known"),
        (["my_method.py:Needs"], "method.strength: missing, but method my_method.py:Needs needs it"),
        (["my_method.py:Gate"], "method.name: my_method.py has no 'Gate'; expected a class that derives from"),
        (["my_method.py:function"], "method.name: my_method.py:function is a function; expected a class that derives"),
        (["my_method.py:Undecorated"], "my_method.py:Undecorated: expected @dataclass(frozen=True, kw_only=True)"),
        (["nothing.py:Gate"], "method.name: nothing.py: no such file; expected FILE.py:NAME"),
        (["my_method.py"], "method.name: got 'my_method.py', the nearest method is"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_one_line(
    file: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    overrides = [f"method.name={words[0]}", *(f"method.{word}" for word in words[1:])]
    assert line in refused(capsys, *tiny.train_words(tiny.assets(), Path("run"), *overrides))
    assert not Path("run").exists()


def test_a_configuration_file_names_it(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = Path("mine.yaml")
    mine.write_text(
        f"defaults: {tiny.assets().config}\nrun: {{folder: run}}\n"
        "method: {name: 'my_method.py:SoftGate', width: 2.0}\n"
    )
    assert entry_point(["config", "show", "mine.yaml"]) == 0
    told = capsys.readouterr().out
    assert "width: 2.0" in told
    assert "# mine.yaml" in told
    mine.write_text(mine.read_text().replace("width", "widht"))
    line = refused(capsys, "config", "check", "mine.yaml")
    assert "unknown key method.widht (set in mine.yaml); the nearest known key is method.width" in line


def test_the_library_takes_it_too(file: Path) -> None:
    batch = ScoredBatch(
        torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), torch.ones(2, 1, dtype=torch.bool),
        torch.tensor([[-1.0], [-1.0]]), teacher_logp_BT=torch.tensor([[-1.0], [-1.0]]),
    )  # fmt: skip
    found = method_advantage("my_method.py:SoftGate", batch, width=3.0)
    assert torch.equal(found.advantage_BT, method_advantage("grpo", batch).advantage_BT)
    assert method_of("my_method.py:SoftGate", {}) == method_of("my_method.py:SoftGate", {})
    assert Grpo.name == "grpo"


def test_another_process_gets_it_by_the_files_path(file: Path) -> None:
    """As a worker of Ray would, on another node."""
    method = method_of("my_method.py:SoftGate", {"width": 3.0})
    sent = pickle.dumps(method)
    assert pickle.loads(sent) == method
    code = "import pickle, sys; print(repr(pickle.loads(bytes.fromhex(sys.argv[1]))))"
    words = [sys.executable, "-c", code, sent.hex()]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == repr(method), done.stderr
    file.write_text(SOURCE + "\n")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "put the run's content of the file back" in done.stderr


def test_code_that_a_downloaded_run_or_batch_brings_is_not_run(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run folder names any file; one inside it, or beside a single batch, is never run."""
    folder = tiny.run(Path("run"), "train.steps=1", "telemetry.save_batch_every=1", "method.name=my_method.py:SoftGate")
    evil = f"open({str(file.with_name('ran'))!r}, 'w')\n{SOURCE}"
    for place in (folder / "my_method.py", folder / "batches" / "my_method.py"):
        place.write_text(evil)
        named = str(place)
        config = (folder / "config.yaml").read_text()
        (folder / "config.yaml").write_text(config.replace("my_method.py:SoftGate", f"{named}:SoftGate"))
        assert "inside the run folder" in refused(capsys, "report", "run", "--verify")
        (folder / "config.yaml").write_text(config)
    alone = Path("alone")
    alone.mkdir()
    (alone / "m.py").write_text(evil)
    saved = read_responses(folder / "batches" / "step-000001.parquet")
    about = {**saved.about, "method": "alone/m.py:SoftGate"}
    write_again(saved, alone / "step-000001.parquet", rows={}, tokens={}, without=frozenset(), about=about)
    assert "whose file lies beside it" in refused(capsys, "replay", alone / "step-000001.parquet", "--check")
    assert not file.with_name("ran").exists()


def test_settings_named_like_the_runs_state_are_refused(file: Path) -> None:
    file.write_text(SOURCE.replace("width:", "seed:").replace("self.width", "self.seed"))
    with pytest.raises(ConfigError, match=r"my_method\.py:SoftGate: the setting seed of SoftGate has the name"):
        method_of("my_method.py:SoftGate", {})
