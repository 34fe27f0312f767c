"""The command `plan`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.plan.shapes import KNOWN

CONFIGS = Path(__file__).resolve().parents[2] / "examples" / "configs"
FOUR = [str(CONFIGS / "uecr_qwen3_4b.yaml"), "teacher.model_name=Qwen/Qwen3-8B", "data.subset=null"]
DEMO = [str(CONFIGS / "local" / "demo.yaml")]


def test_the_file_has_bytes_and_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    assert entry_point(["plan", *FOUR, "--response-tokens", "5000", "--json", str(out)]) == 0
    plan = json.loads(out.read_text())
    train = next(phase for phase in plan["phases"] if phase["name"] == "train")
    assert train["size"] == sum(one["size"] for one in train["device"])
    assert plan["seconds"] == pytest.approx(sum(phase["seconds"] for phase in plan["phases"]))
    assert plan["fits"] is True
    assert set(plan["placements"]) == {"colocated, 8 GPUs", "7 + 1 GPUs"}
    assert len(plan["layout"]) == 8
    capsys.readouterr()


def test_what_cannot_fit_is_refused_with_what_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    models = ["student.model_name=Qwen/Qwen3-14B", "--device", "h100", "--json", str(out)]
    assert entry_point(["plan", *FOUR, *models]) == 2
    printed = capsys.readouterr()
    assert "what fits: student.parallel.tensor=2 student.parallel.sequence=true" in printed.err
    assert "phases of a step" in printed.out
    written = json.loads(out.read_text())
    assert written["fits"] is False
    assert written["what_fits"][0] in printed.err


@pytest.mark.parametrize(("method", "kept"), [("pg_opd", False), ("g_opd", True)])
def test_the_initial_student_is_counted_where_the_method_reads_it(
    method: str, kept: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry_point(["plan", *DEMO, f"method.name={method}", "loss.reference_kl=0.0"]) == 0
    told = capsys.readouterr().out
    assert ("reference weights" in told) == kept
    assert ("score reference" in told) == kept


def test_a_local_run_that_does_not_fit_names_its_lever(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry_point(["plan", *DEMO, "--memory", "0.3"]) == 2
    assert "lower train.microbatch_responses" in capsys.readouterr().err
    assert entry_point(["plan", *DEMO, "--memory", "0.3", "train.microbatch_responses=16"]) == 0


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        (["teacher.model_name=nobody/knows"], "whose sizes are not known"),
        (["--device", "cpu"], "NeMo-RL's workers need GPUs"),
    ],
)
def test_a_users_mistake_is_one_line(more: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry_point(["plan", *FOUR, *more]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert fault in printed.err
    assert printed.err.count("\n") == 1


def test_a_teacher_with_other_output_columns_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One column more than the student; the student's own number is the remedy."""
    student = KNOWN["Qwen/Qwen3-4B"].vocabulary
    sizes = {
        "model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 64, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"vocab_size": student + 1}))
    assert entry_point(["plan", *FOUR, f"teacher.model_name={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert f"the student has {student} output columns, the teacher {student + 1}" in error
    assert f"take a teacher whose config.json has vocab_size {student}" in error
