"""The paper's tables: marks, intervals, and the three formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.tables import Row, Score, build_table, html_table, latex, markdown, read_rows, rounded


def row(method: str, *values: float) -> Row:
    names = ("aime24", "average")
    return Row(method, {name: Score(v, v - 1, v + 1) for name, v in zip(names, values, strict=True)})


ROWS = [row("initial", 90.0, 90.0), row("grpo", 7.78, 11.45), row("puu", 7.781, 12.0), row("uecr", 15.24, 11.0)]


def test_best_and_second_as_printed_and_the_initial_student_is_not_ranked() -> None:
    table = build_table(ROWS, layout="main", k=12)
    assert table.head == ("Method, Avg@12 (%)", "AIME24", "Avg.")
    assert [line[0].text for line in table.lines] == ["Initial student", "Vanilla-GRPO", "PUU", "UECR-GRPO"]
    # 7.78 and 7.781 print alike, so both are second.
    assert [line[1].rank for line in table.lines] == [0, 2, 2, 1]
    assert [line[2].rank for line in table.lines] == [0, 2, 1, 0]


def test_three_formats() -> None:
    table = build_table(ROWS[1:], layout="main", k=12)
    assert "| UECR-GRPO | **15.24** [14.24, 16.24] | 11.00 [10.00, 12.00] |" in markdown(table)
    assert "| PUU | <u>7.78</u> [6.78, 8.78] |" in markdown(table)
    assert r"UECR-GRPO & \textbf{15.24} {\scriptsize [14.24, 16.24]} & 11.00" in latex(table)
    assert r"\underline{7.78}" in latex(table)
    assert r"Avg@12 (\%)" in latex(table)
    assert "<strong>15.24</strong> <small>[14.24, 16.24]</small>" in html_table(table)


def test_ablation_marks() -> None:
    table = build_table(
        [row("puu", 1, 2), row("ecr_no_entropy", 2, 3), row("[mine] & others", 0, 0)], layout="ablation", k=4
    )
    assert table.head[1:7] == ("Task", "Teacher", "Joint norm.", "Gap", "Entropy", "Proj.")
    assert "".join(cell.text for cell in table.lines[0][1:7]) == "\u2713\u2713\u2713\u00d7\u00d7\u00d7"
    assert "".join(cell.text for cell in table.lines[1][1:7]) == "\u2713\u2713\u2713\u2713\u00d7\u2713"
    assert table.lines[2][1].text == "\u2013"
    assert "\n{[mine] \\& others} &" in latex(table)  # a bracket after \\ would be its argument
    assert "[mine] &amp; others" in html_table(table)


def test_rows_of_an_evaluation_and_of_a_training_run(tmp_path: Path) -> None:
    entry = {"avg": 0.25, "low": 0.2, "high": 0.3, "problems": 30}
    (tmp_path / "ev").mkdir()
    result = {"label": "mine", "samples": 12, "sets": {"aime24": entry}, "average": entry}
    (tmp_path / "ev/result.json").write_text(json.dumps(result))
    (tmp_path / "run").mkdir()
    old, new = ({"step": step, "samples": 12, "sets": {"aime24": {**entry, "avg": avg}}, "average": entry}
                for step, avg in ((0, 0.1), (40, 0.4)))  # fmt: skip
    (tmp_path / "run/evaluation.jsonl").write_text(f"{json.dumps(old)}\n{json.dumps(new)}\n")
    (tmp_path / "run/config.yaml").write_text("method:\n  name: puu\n")
    rows, k = read_rows([str(tmp_path / "ev"), f"grpo={tmp_path / 'ev'}", str(tmp_path / "run")])
    assert [each.method for each in rows] == ["mine", "grpo", "puu"]
    assert k == 12
    assert rows[2].scores["aime24"].value == pytest.approx(40.0)
    (tmp_path / "run/evaluation.jsonl").write_text(json.dumps(old | {"samples": 4}) + "\n")
    with pytest.raises(DataError, match="same k"):
        read_rows([str(tmp_path / "ev"), str(tmp_path / "run")])
    with pytest.raises(DataError, match="expected an evaluation folder or a run folder"):
        read_rows([str(tmp_path)])


def test_averages_over_other_benchmarks_have_no_column_and_a_line_says_why() -> None:
    one = row("grpo", 10, 90)
    two = Row("uecr", {name: Score(v, v, v) for name, v in (("aime24", 20), ("amc23", 30), ("average", 25))})
    table = build_table([one, two], layout="main", k=4)
    assert table.head == ("Method, Avg@4 (%)", "AIME24", "AMC23")
    assert table.note.startswith("No Avg.: benchmarks of Vanilla-GRPO are aime24, of UECR-GRPO aime24, amc23")
    for text in (markdown(table), latex(table), html_table(table)):
        assert "No Avg.: benchmarks" in text


def written(folder: Path, name: str, avg: float, **plan: object) -> str:
    """An evaluation folder with a result and a plan."""
    (folder / name).mkdir(parents=True)
    interval = {"avg": avg, "low": avg, "high": avg}
    sets = {each: interval | {"problems": 30} for each in ("aime24", "amc23")}
    (folder / name / "result.json").write_text(json.dumps({"samples": 4, "sets": sets, "average": interval}))
    content = {
        "decoding": {"temperature": 0.6}, "chat": {"thinking": False}, "engine": "vllm", "dtype": "bfloat16",
        "benchmarks": {each: {"problems": 30, "row_set": "5f" * 32} for each in sets},
    }  # fmt: skip
    (folder / name / "settings.json").write_text(json.dumps(content | plan))
    return str(folder / name)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"chat": {"thinking": True}}, r'chat settings of a are {"thinking": false}, of b {"thinking": true}'),
        ({"engine": "transformers"}, 'engines of a are "vllm", of b "transformers"'),
        ({"decoding": {"temperature": 1.0}}, "decoding settings of a are"),
    ],
)
def test_rows_taken_in_another_way_are_neither_averaged_nor_ranked(
    change: dict[str, object], what: str, tmp_path: Path
) -> None:
    given = [written(tmp_path, "a", 0.5), written(tmp_path, "b", 0.25, **change)]
    table = build_table(read_rows(given)[0], layout="main", k=4)
    assert table.head[1:] == ("AIME24", "AMC23")
    assert [cell.rank for line in table.lines for cell in line] == [0] * 6
    assert f"No Avg.: {what}" in table.note
    assert f"No ranks in AIME24, AMC23: {what}" in table.note


def test_a_column_over_other_problem_sets_is_not_ranked_and_the_others_are(tmp_path: Path) -> None:
    # The two sets have their first eleven digits in common.
    sets = {"aime24": {"row_set": "5f5f5f5f5f5a"}, "amc23": {"row_set": "5f" * 32}}
    given = [written(tmp_path, "a", 0.5), written(tmp_path, "b", 0.25, benchmarks=sets)]
    table = build_table(read_rows(given)[0], layout="main", k=4)
    assert [[line[1].rank, line[2].rank] for line in table.lines] == [[0, 1], [0, 2]]
    assert "No ranks in AIME24: problem sets of aime24 of a are 5f5f5f5f5f5f, of b 5f5f5f5f5f5a." in table.note
    assert "**" not in markdown(table).split("|")[-4]


@pytest.mark.parametrize(
    ("value", "decimals", "sign", "text"),
    [
        (7.781, 2, "", "7.78"),
        (45.62499999999999, 2, "", f"{45.625:.2f}"),  # a sum that is 45.625 but for its last bits prints like it
        (-1e-15, 1, "+", "+0.0"),
        (-0.004, 2, "", "0.00"),
    ],
)
def test_rounded(value: float, decimals: int, sign: str, text: str) -> None:
    assert rounded(value, decimals, sign=sign) == text
