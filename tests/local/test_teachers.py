"""Several teachers by problem, and the student as its own teacher behind another prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nemo_uecr.errors import ConfigError, DataError
from nemo_uecr.generation.prompts import ChatSettings, prompt_ids
from nemo_uecr.local.rollout import ids_sha256
from nemo_uecr.report.page import write_report
from nemo_uecr.responses.table import read_responses
from tests.data.made import write_jsonl
from tests.local import tiny
from tests.local.tiny import metrics, tensors
from tests.responses.tables import rows_of

SAVED = ("telemetry.save_batch_every=1", "train.steps=1")
TWO = f"teachers={{a: {{model_name: {tiny.TEACHER}}}, b: {{model_name: {tiny.STUDENT}}}}}"
ROUTED = ("teacher=null", "routing.key=kind", "data.id_key=id")


def problems(folder: Path, **columns: list[object]) -> str:
    """The tiny problems with further columns, as an override."""
    rows = [json.loads(line) for line in tiny.assets().problems.read_text().splitlines()]
    for place, row in enumerate(rows):
        row |= {name: values[place % len(values)] for name, values in columns.items() if values[place % len(values)]}
    return f"data.train={write_jsonl(folder / 'problems.jsonl', rows)}"


def test_each_problem_has_the_scores_of_its_own_teacher(tmp_path: Path) -> None:
    data = problems(tmp_path, kind=["a", "b"])
    words = (*SAVED, data, "data.shuffle=false", "offload=teacher")  # the step's two problems: a, then b
    found = tensors(tiny.run(tmp_path / "two", *words, *ROUTED, TWO))
    for name, rows in (("teacher", slice(0, 4)), ("student", slice(4, 8))):
        alone = tensors(tiny.run(tmp_path / name, *words, f"teacher.model_name={tiny.STUDENT.with_name(name)}"))
        for column in ("teacher_logp", "teacher_entropy"):
            torch.testing.assert_close(found[column][rows], alone[column][rows], rtol=0, atol=1e-5, equal_nan=True)
    record = metrics(tmp_path / "two")[0]
    assert record["teacher/a/response_share"] == 0.5
    assert abs(record["teacher/b/gap_mean"]) < 1e-5 < record["teacher/a/gap_std"]
    for kind in ("top1_agreement", "top20_overlap"):  # b is the student itself
        assert record[f"teacher/a/{kind}"] < record[f"teacher/{kind}"] < record[f"teacher/b/{kind}"] == 1
    saved = read_responses(tmp_path / "two" / "batches" / "step-000001.parquet")
    assert saved.column("teacher") == ["a"] * 4 + ["b"] * 4
    gap_BT = (found["teacher_logp"] - found["old_logp"]).nan_to_num().abs()
    assert gap_BT[4:].max() < 1e-5 < gap_BT[:4].max()


def test_two_names_of_one_model_are_one_teacher(tmp_path: Path) -> None:
    data, both = problems(tmp_path, kind=["a", "b"]), TWO.replace(str(tiny.STUDENT), f"{tiny.TEACHER}/")
    words = (*tiny.every(), "telemetry.save_batch_every=1", data)
    two = tiny.run(tmp_path / "two", *words, *ROUTED, both)
    one = tiny.run(tmp_path / "one", *words)
    found = [{name: value for name, value in step.items() if name.count("/") < 2} for step in metrics(two)]
    assert found == metrics(one)
    assert all(torch.equal(a.nan_to_num(), tensors(one)[name].nan_to_num()) for name, a in tensors(two).items())


@pytest.mark.parametrize("more", [(), ("student.lora_rank=4", "offload=all")], ids=["copy", "adapter off"])
def test_the_initial_student_with_its_own_prompt_has_no_gap_at_first(more: tuple[str, ...], tmp_path: Path) -> None:
    own = 'teacher={self: initial, prompt_template: "{question}"}'
    folder = tiny.run(tmp_path / "run", *SAVED, "train.steps=2", own, *more)
    first = tensors(folder)
    assert torch.equal(first["teacher_logp"][first["sampled"]], first["old_logp"][first["sampled"]])
    steps = metrics(folder)
    assert steps[0]["teacher/gap_abs_mean"] == 0 < steps[1]["teacher/gap_abs_mean"]


def test_the_current_student_reads_the_hint(tmp_path: Path) -> None:
    """Without a hint there is never a gap; with one, the scores are a plain forward's over hint and response."""
    data = problems(tmp_path, hint=["0", "1", "2", "3"])
    own, hint = (f'teacher={{self: current, prompt_template: "{text}"}}' for text in ("{question}", "{question}{hint}"))
    plain = metrics(tiny.run(tmp_path / "plain", data, own))
    assert [step["teacher/gap_abs_mean"] for step in plain] == [0, 0]
    folder = tiny.run(tmp_path / "hint", data, hint, "telemetry.save_batch_every=1")
    found, saved = tensors(folder), read_responses(folder / "batches" / "step-000001.parquet")
    assert saved.about["teachers"] == {"teacher": {"weights": "step 0", "prompt_template": "{question}{hint}"}}
    model, tokenizer = tiny.load().module, tiny.tokenizer()
    for row, said in enumerate(rows_of(saved)):
        prompt = prompt_ids(tokenizer, said["question"] * 2, ChatSettings("{question}", None, False))
        response = found["token_ids"][row][found["sampled"][row]]
        assert said["teacher_prompt_sha256"] == ids_sha256(prompt)
        assert said["teacher_response_sha256"] == ids_sha256(response.tolist())
        with torch.no_grad():
            logits = model(torch.cat((torch.tensor(prompt), response)).unsqueeze(0)).logits[0, len(prompt) - 1 : -1]
        logp = logits.log_softmax(dim=-1).gather(1, response.unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(found["teacher_logp"][row][: len(response)], logp, rtol=0, atol=1e-5)


def test_what_a_problem_lacks_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"problem 'p1' has 'c' under 'kind' .* teachers a, b: "):
        tiny.run(tmp_path / "run", *ROUTED, TWO, problems(tmp_path, kind=["a", "c"]))
    tiny.run(tmp_path / "default", *ROUTED, TWO, "routing.default=b", problems(tmp_path, kind=["a", "c"]))
    with pytest.raises(DataError, match=r"no problem has a column 'kimd'; the first has id, "):
        tiny.run(
            tmp_path / "run", *ROUTED, TWO, "routing.default=b", "routing.key=kimd", problems(tmp_path, kind=["a"])
        )
    hint = 'teacher={self: initial, prompt_template: "{question} {hint}"}'
    with pytest.raises(DataError, match=r"problem 'p1' has no text under 'hint'"):
        tiny.run(tmp_path / "run", hint, problems(tmp_path, hint=["0", None]))
    long = f'teacher={{self: initial, prompt_template: "{{question}}{"2" * 600}"}}'
    with pytest.raises(DataError, match=r"the student .* reads at most"):
        tiny.run(tmp_path / "run", long)
    with pytest.raises(ConfigError, match="routing: missing"):
        tiny.run(tmp_path / "run", "teacher=null", TWO)


def test_ten_steps_with_two_teachers_and_a_hint_in_the_report(tmp_path: Path) -> None:
    three = TWO[:-1] + ', hint: {self: initial, prompt_template: "{question} {answer}"}}'
    data = problems(tmp_path, kind=["a", "b", "hint"])
    folder = tiny.run(tmp_path / "run", *ROUTED, three, data, "train.steps=10", "offload=all")
    found = metrics(folder)
    assert len(found) == 10
    assert {name.split("/")[1] for step in found for name in step if name.count("/") == 2} == {"a", "b", "hint"}
    page = write_report([folder], tmp_path / "report.html").read_text()
    assert "Gap by teacher" in page
    assert page.count("share of responses") == 3
