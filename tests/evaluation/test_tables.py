"""The paper's tables: marks, intervals, and both formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.config.load import SHIPPED, dump_config, load_config
from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.tables import FORMATS, Row, build_table, read_rows
from nemo_uecr.stats import Interval
from nemo_uecr.tables import rounded


def row(method: str, *values: float) -> Row:
    names = ("aime24", "average")
    return Row(method, {name: Interval(v, v - 1, v + 1) for name, v in zip(names, values, strict=True)})


ROWS = [row("initial", 90.0, 90.0), row("grpo", 7.78, 11.45), row("puu", 7.781, 12.0), row("uecr", 15.24, 11.0)]


def test_best_and_second_as_printed_in_both_formats() -> None:
    table = build_table(ROWS, layout="main", k=12)
    assert table.head == ("Method, Avg@12 (%)", "AIME24", "Avg.")
    assert [line[0].text for line in table.lines] == ["Initial student", "Vanilla-GRPO", "PUU", "UECR-GRPO"]
    # The initial student is not ranked; 7.78 and 7.781 print alike, so both are second.
    assert [line[1].rank for line in table.lines] == [0, 2, 2, 1]
    assert [line[2].rank for line in table.lines] == [0, 2, 1, 0]
    assert "| UECR-GRPO | **15.24** [14.24, 16.24] | 11.00 [10.00, 12.00] |" in FORMATS["markdown"](table)
    assert "| PUU | <u>7.78</u> [6.78, 8.78] |" in FORMATS["markdown"](table)
    assert r"UECR-GRPO & \textbf{15.24} {\scriptsize [14.24, 16.24]} & 11.00" in FORMATS["latex"](table)
    assert r"\underline{7.78}" in FORMATS["latex"](table)
    assert r"Avg@12 (\%)" in FORMATS["latex"](table)


def test_ablation_marks() -> None:
    rows = [row("puu", 1, 2), row("ecr_no_entropy", 2, 3), row("[mine] & others", 0, 0)]
    table = build_table(rows, layout="ablation", k=4)
    assert table.head[1:7] == ("Task", "Teacher", "Joint norm.", "Gap", "Entropy", "Proj.")
    marks = ["".join(cell.text for cell in line[1:7]) for line in table.lines]
    assert marks == ["✓✓✓\u00d7\u00d7\u00d7", "✓✓✓✓\u00d7✓", "\u2013" * 6]
    assert "\n{[mine] \\& others} &" in FORMATS["latex"](table)  # a bracket after \\ would be its argument


def written(folder: Path, name: str, avg: float, sets: tuple[str, ...] = ("aime24", "amc23"), **plan: object) -> str:
    """An evaluation folder with a result and its settings."""
    (folder / name).mkdir(parents=True)
    interval = {"avg": avg, "low": avg, "high": avg}
    found = {each: interval | {"problems": 30} for each in sets}
    result = {"label": name, "samples": 4, "sets": found, "average": interval}
    (folder / name / "result.json").write_text(json.dumps(result))
    content = {
        "decoding": {"temperature": 0.6}, "chat": {"thinking": False}, "engine": "vllm", "dtype": "bfloat16",
        "benchmarks": {each: {"problems": 30, "row_set": "5f" * 32} for each in sets},
    }  # fmt: skip
    (folder / name / "settings.json").write_text(json.dumps(content | plan))
    return str(folder / name)


def test_rows_of_an_evaluation_and_of_a_training_run(tmp_path: Path) -> None:
    place, run = written(tmp_path, "mine", 0.25, ("aime24",)), tmp_path / "run"
    lines = [json.loads(Path(place, "result.json").read_text()) | {"step": step} for step in (0, 40)]
    lines[1]["sets"]["aime24"]["avg"] = 0.4
    run.mkdir()
    (run / "evaluation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "config.yaml").write_text(
        dump_config(load_config(SHIPPED / "local" / "demo.yaml", ["method.name=puu"]).config)
    )
    rows, k = read_rows([place, f"grpo={place}", str(run)])
    assert [each.method for each in rows] == ["mine", "grpo", "puu"]
    assert k == 4
    assert rows[2].scores["aime24"].avg == pytest.approx(40.0)
    (run / "evaluation.jsonl").write_text(json.dumps(lines[0] | {"samples": 12}) + "\n")
    with pytest.raises(DataError, match="same k"):
        read_rows([place, str(run)])
    (run / "evaluation.jsonl").write_text("")  # of a run that has not come to its first evaluation
    for folder in (run, tmp_path):
        with pytest.raises(DataError, match="nothing in evaluation"):
            read_rows([str(folder)])


@pytest.mark.parametrize(
    ("change", "no_average", "ranks", "unranked"),
    [
        ({"engine": "transformers"}, 'engines of a are "vllm", of b "transformers"', [0, 0], "AIME24, AMC23"),
        ({"decoding": {"temperature": 1.0}}, "decoding settings of a are", [0, 0], "AIME24, AMC23"),
        ({"sets": ("aime24",)}, "benchmarks of a are aime24, amc23, of b aime24", [1, 1], None),
        # The two problem sets have their first eleven digits in common.
        ({"benchmarks": {"aime24": {"row_set": "5f5f5f5f5f5a"}, "amc23": {"row_set": "5f" * 32}}},
         "problem sets of aime24 of a are 5f5f5f5f5f5f, of b 5f5f5f5f5f5a", [0, 1], "AIME24"),
    ],
)  # fmt: skip
def test_what_was_measured_in_another_way_is_neither_averaged_nor_ranked(
    change: dict[str, Any], no_average: str, ranks: list[int], unranked: str | None, tmp_path: Path
) -> None:
    table = build_table(
        read_rows([written(tmp_path, "a", 0.5), written(tmp_path, "b", 0.25, **change)])[0], layout="main", k=4
    )
    assert table.head[1:] == ("AIME24", "AMC23")
    assert [entry.rank for entry in table.lines[0][1:]] == ranks
    assert table.note.startswith(f"No Avg.: {no_average}")
    assert unranked is None or f"No ranks in {unranked}: " in table.note
    assert all("No Avg.: " in write(table) for write in FORMATS.values())


def test_rounded() -> None:
    assert rounded(45.62499999999999, 2) == f"{45.625:.2f}"  # a sum that is 45.625 but for its last bits
    assert rounded(-1e-15, 1, sign="+") == "+0.0"
    assert rounded(-0.0227, 1, sign="+") == "-0.0"  # the bound of an interval that leaves out 0
