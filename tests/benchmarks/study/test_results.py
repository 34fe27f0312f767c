"""Averages that stand side by side are over the same pairs: tables and the map, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.study.claims import verdicts
from benchmarks.study.figures import draw_map
from benchmarks.study.map import BEST, map_cells, row_means
from benchmarks.study.results import tables
from benchmarks.study.schema import ClaimConfig, StudyConfig, load_study, method
from benchmarks.study.summary import claims_table, difference_table, map_table, rows_table, sets_table
from nemo_uecr.config.load import load_config
from tests.benchmarks.study.small import SMALL, made_results


def test_sets_are_over_common_pairs_and_differences_over_all() -> None:
    finals = {"uecr": {0: 10.0, 1: 20.0, 2: 60.0}, "grpo": {0: 9.0, 1: 17.0, 2: 55.0}, "own_teacher": {0: 2.0, 1: 4.0}}
    (summary,) = tables(load_study(SMALL), made_results(finals))
    assert summary.pairs == (0, 1)
    lines = {line.arm: line for line in summary.lines}
    assert lines["uecr"].final.mean == 30.0
    assert lines["uecr"].common.mean == 15.0
    assert lines["grpo"].against.difference.mean == 3.0  # 1, 3 and 5, all three pairs
    shown = sets_table(summary, layout="main", samples=12)
    assert [(line[0].text, line[1].text, line[1].rank) for line in shown.lines] == [
        ("initial", "0.00", 0), ("grpo", "13.00", 2), ("own_teacher", "3.00", 0), ("uecr", "15.00", 1),
    ]  # fmt: skip
    gaps = difference_table(summary, confidence=0.95)
    assert [line[1].text for line in gaps.lines] == ["3", "2", "3"]


def test_map_by_hand() -> None:
    study = load_study(SMALL)
    tables = {"main": study.tables["main"].model_copy(update={"arms": ["grpo", "uecr", "own_teacher"]})}
    study = study.model_copy(
        update={"tables": tables, "map": {"panel": {"row": "one_update", "later": "four_updates"}}}
    )
    finals = {
        "uecr": {0: 11.0, 1: 22.0, 2: 33.0, 3: 90.0},
        "grpo": {0: 10.0, 1: 20.0, 2: 30.0},
        "own_teacher": {0: 11.5, 1: 21.0, 2: 32.0},
    }
    (cell,) = map_cells(study, made_results(finals))  # nothing ran in the other variant
    assert (cell.row, cell.column) == ("row", "Machinery only")
    assert {arm: score.mean for arm, score in cell.scores.items()} == {"uecr": 22.0, "own_teacher": 21.5, "grpo": 20.0}
    assert {name: gap.difference.mean for name, gap in cell.against.items()} == {
        "own_teacher": 0.5,
        "grpo": 2.0,
        BEST: 0.5,
    }
    assert cell.against["grpo"].p == pytest.approx(0.0742, abs=5e-5)  # t = 2 sqrt(3), two degrees of freedom
    others = made_results(finals | {"grpo": {0: 50.0, 1: 60.5, 2: 71.0}}, "four_updates")
    first, second = map_cells(study, [*made_results(finals), *others])
    assert (second.row, next(iter(second.scores)), second.against[BEST].difference.mean) == ("later", "grpo", -38.5)
    assert first.against[BEST].p == pytest.approx(0.4226, abs=5e-5)  # -0.5, 1, 1: t = 1
    assert second.against[BEST].p == pytest.approx(1.12e-4, abs=1e-6)  # t = -77 sqrt(3), p = 5.6e-5, the smaller of two


def test_a_row_of_the_map_is_a_mean_of_the_pairs_that_all_its_panels_have() -> None:
    """Pair 0 ran on the first panel alone, pair 3 on the second."""
    study = load_study(SMALL)
    table = study.tables["main"].model_copy(update={"arms": ["grpo", "uecr"], "reference": "uecr", "on_map": False})
    panels = {"first": {"row": "one_update"}, "second": {"row": "four_updates"}}
    study = study.model_copy(update={"tables": {"main": table}, "map": panels})
    first = made_results({"uecr": {0: 99.0, 1: 20.0, 2: 30.0}, "grpo": {0: 0.0, 1: 10.0, 2: 26.0}})
    second = made_results({"uecr": {1: 40.0, 2: 50.0, 3: 0.0}, "grpo": {1: 38.0, 2: 48.0, 3: 99.0}}, "four_updates")
    grpo, uecr = row_means(study, [*first, *second])
    assert (grpo.arm, grpo.row, grpo.panels, grpo.final.mean, grpo.final.pairs) == ("grpo", "row", 2, 30.5, 2)
    assert (uecr.final.mean, uecr.difference) == (35.0, None)
    assert grpo.difference is not None
    assert (grpo.difference.mean, grpo.difference.pairs) == (4.5, 2)  # (10 + 2) / 2 and (4 + 2) / 2
    assert [entry.text for entry in rows_table([grpo], confidence=0.95).lines[0]][3:] == ["grpo", "30.5", "+4.5"]
    assert row_means(study, first) == []  # one panel is the map's own cell


@pytest.mark.parametrize("on_map", [True, False])
def test_claims_by_hand(on_map: bool) -> None:
    """Two cells: the mean over them decides with a point of tolerance, and a cell by Holm's p over both."""
    study = load_study(SMALL)
    own = {"arms": ["grpo", "uecr", "own_teacher"], "reference": "uecr", "on_map": on_map}
    main = study.tables["main"].model_copy(update=own)
    claims = {"best": ClaimConfig(tables=["main"], against=["grpo", "own_teacher"], points=1.0)}
    rows = {"panel": {"row": "one_update", "later": "four_updates"}}
    study = study.model_copy(update={"tables": {"main": main}, "map": rows, "claims": claims})
    first = {
        "uecr": {0: 11.0, 1: 22.0, 2: 33.0}, "grpo": {0: 10.0, 1: 20.0, 2: 30.0},
        "own_teacher": {0: 11.5, 1: 23.0, 2: 33.5},
    }  # fmt: skip
    second = {"uecr": {0: 7.0, 1: 7.0, 2: 7.2}, "grpo": {0: 9.0, 1: 9.1, 2: 9.1}, "own_teacher": {0: 6.0, 1: 6, 2: 6.2}}
    runs = [*made_results(first), *made_results(second, "four_updates")]
    (line,) = verdicts(study, runs)
    # grpo and own_teacher over both cells: 14.53 and 14.37; uecr 14.53.
    assert (line.best, line.cells) == ("grpo", 2)
    assert line.difference.mean == pytest.approx((2.0 - 2.0) / 2)
    # In the second cell -2, -2.1 and -1.9: t = 2 sqrt(3) / 0.1, p = 8.3e-4, doubled by Holm.
    assert line.below == ("later, panel",)
    assert not line.holds
    closer = second | {"grpo": {0: 7.5, 1: 9.1, 2: 7.1}}
    (line,) = verdicts(study, [*made_results(first), *made_results(closer, "four_updates")])
    assert (line.best, line.below, line.holds) == ("own_teacher", (), True)
    worse = {
        arm: {pair: value - 3 * (arm == "uecr") for pair, value in finals.items()} for arm, finals in first.items()
    }
    (line,) = verdicts(study, made_results(worse))
    assert (line.cells, line.below) == (1, ("row, panel",))
    assert line.difference.mean == pytest.approx(-3.667, abs=1e-3)
    assert [entry.text for entry in claims_table([line], confidence=0.95).lines[0]][-1] == "no"
    better = {
        arm: {pair: value + 9 * (arm == "uecr") for pair, value in finals.items()} for arm, finals in first.items()
    }
    (line,) = verdicts(study, made_results(better))  # as sure as before, on the other side
    assert (line.below, line.holds) == ((), True)
    # The second cell lacks pair 0, so the means are of pairs 1 and 2: uecr 17.3, own_teacher 17.175, grpo 17.05.
    short = {arm: {pair: value for pair, value in finals.items() if pair} for arm, finals in second.items()}
    (line,) = verdicts(study, [*made_results(first), *made_results(short, "four_updates")])
    assert (line.best, line.difference.pairs, line.difference.mean) == ("own_teacher", 2, pytest.approx(0.125))
    lone = {arm: {pair + 2: value for pair, value in finals.items()} for arm, finals in second.items()}
    assert verdicts(study, [*made_results(first), *made_results(lone, "four_updates")]) == []


def test_equal_arms_leave_the_other_cells_p_as_they_are(tmp_path: Path) -> None:
    """A t test of zeros has no p; the map is drawn although its tables have other arms."""
    study, finals = load_study(SMALL), {"grpo": {0: 10.0, 1: 20.0}, "uecr": {0: 10.0, 1: 20.0 + 1e-14}}
    main = study.tables["main"].model_copy(update={"arms": ["grpo", "uecr"]})
    other = main.model_copy(update={"title": "Other", "reference": "own_teacher", "arms": ["grpo", "own_teacher"]})
    study = study.model_copy(update={"tables": {"main": main, "other": other}, "map": {"panel": {"row": "one_update"}}})
    cells = map_cells(study, made_results(finals | {"own_teacher": {0: 90.0, 1: 100.1}}))
    assert [cell.against["grpo"].p for cell in cells if "grpo" in cell.against] == pytest.approx([1.0, 8e-4], abs=1e-4)
    draw_map(tmp_path, study, cells)
    assert (tmp_path / "map.svg").is_file()
    assert len(map_table(study, cells).lines) == 2


def test_shipped_map_has_every_method_in_every_cell() -> None:
    study = load_study(SMALL.parent / "map.yaml")
    variants = [variant for rows in study.map.values() for variant in rows.values()]
    assert sorted(variants) == sorted(study.variants)
    for table in study.mapped.values():
        methods = [load_method(study, arm) for arm in table.arms]
        assert methods == [method(arm) for arm in table.arms]
        assert len(set(methods)) == 5
    assert [len(claim.tables) for claim in study.claims.values()] == [3, 6, 2, 8]


def load_method(study: StudyConfig, arm: str) -> str:
    overrides = (*study.overrides, *study.arms[arm].overrides, "run.folder=unused")
    found = load_config(study.config, overrides).config.method
    return type(found).__mro__[1].name if found.file_sha256 else found.name  # of the file: on shuffled scores
