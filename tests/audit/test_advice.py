"""Advice from made facts and a made map: what each rule says, and that what is unknown leads to caution."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.audit.advice import Cell, Facts, advice_lines, chosen, load_map, region
from nemo_uecr.config.load import SHIPPED, load_config
from nemo_uecr.core.methods import METHODS
from nemo_uecr.stats import Share

ROOT = Path(__file__).resolve().parents[2]
CONFIG = load_config(SHIPPED / "local" / "demo.yaml", ()).config


def share(value: float, margin: float = 0.05) -> Share:
    return {"value": value, "low": value - margin, "high": value + margin}


def cell(name: str, lead: float, **means: float) -> Cell:
    where = {"student": 0.3, "lead": lead, "order": 0.5 + lead, "degenerate": 0.4}
    return Cell(name, 10, where, means)


GOOD = cell("good", 0.3, grpo=46.0, uecr=49.0, pg_opd=51.0, atod=52.0)
WRONG = cell("wrong", -0.2, grpo=50.0, uecr=49.5, pg_opd=20.0)
MAP = [GOOD, WRONG]
FACTS = Facts(
    where={"student": share(0.3), "lead": share(0.3), "order": share(0.8), "degenerate": share(0.4)},
    teacher=share(0.6),
    numbers={"safe_alpha": 4.0, "noise": None},
    equal={4: (0.3, 0.3), 8: (0.2, 0.2), 16: (0.1, 0.1)},
    columns={},
    config=CONFIG,
)


def advised(facts: Facts) -> dict[str, str]:
    return {line.name: line.value for line in advice_lines(facts, MAP)}


def placed(**axes: Share | None) -> Facts:
    return replace(FACTS, where={**FACTS.where, **axes})


def with_numbers(**numbers: float) -> Facts:
    return replace(FACTS, numbers={**FACTS.numbers, **numbers})


def test_a_good_teacher() -> None:
    assert advised(FACTS) == {
        "region": "1 of the map's 2 cells", "teacher": "distil", "method": "atod", "alpha": "1",
        "warm-up": "5 steps", "std_floor": "0", "group size": "8",
    }  # fmt: skip


@pytest.mark.parametrize("axes", [{"lead": share(-0.2)}, {"order": share(0.3)}, {"lead": None, "order": share(0.3)}])
def test_do_not_distil_from_a_wrong_teacher(axes: dict[str, Any]) -> None:
    found = advised(placed(**axes))
    assert (found["teacher"], found["method"]) == ("do not distil from this teacher", "grpo")


def test_what_is_unknown_rules_out_no_cell_and_the_method_survives_all() -> None:
    unknown = placed(lead=None, order=None)
    assert region(unknown.where, MAP) == MAP
    assert (advised(unknown)["teacher"], advised(unknown)["method"]) == ("in doubt", "uecr")
    assert advised(placed(lead=share(0.0, 0.19), order=None))["region"] == "outside, nearest to 2 of the map's 2 cells"
    assert advised(placed(lead=share(0.05, 0.3), order=share(0.5, 0.25)))["method"] == "uecr"


def test_of_equal_regrets_the_method_that_reads_fewest_scores() -> None:
    assert chosen([cell("even", 0.0, uecr=50.0, grpo=50.0, puu=50.0)]) == "grpo"


def test_settings_follow_the_numbers() -> None:
    said = {
        line.name: line.meaning
        for line in advice_lines(replace(FACTS, numbers={**FACTS.numbers, "safe_alpha": None}), MAP)
    }
    assert said["alpha"] == "the responses do not tell"
    assert said["warm-up"].startswith("yours; ")
    assert advised(with_numbers(safe_alpha=0.42))["alpha"] == "below 0.42"
    assert advised(with_numbers(noise=0.025))["std_floor"] == "0.075"
    many = replace(FACTS, equal={8: (0.0, 0.7), 16: (0.0, 0.4), 32: (0.0, 0.2)})
    assert advised(many)["group size"] == "16"
    assert advised(replace(FACTS, equal={8: (0.0, 0.9), 16: (0.0, 0.8)}))["group size"] == "8"


def test_the_shipped_map_names_methods_and_axes_that_there_are() -> None:
    for each in load_map():
        assert each.where.keys() == FACTS.where.keys()
        assert {"grpo"} <= each.means.keys() <= METHODS.keys()


def test_hits_are_counted_on_cells_that_the_advice_did_not_see() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "advice_map.py"))
    kinds = {
        "good": (0.3, {"atod": 52, "uecr": 49, "grpo": 46}, ["atod"]),
        "wrong": (-0.2, {"grpo": 50, "uecr": 49, "atod": 20}, ["grpo", "uecr"]),
    }
    cells, places = [], {}
    for variant in ("plain", "noise"):
        for teacher, (lead, means, level) in kinds.items():
            scores = {name: {"mean": mean, "pairs": 5} for name, mean in means.items()}
            names = {"variant": variant, "column": teacher, "row": variant, "panel": ""}
            cells.append({**names, "scores": scores, "level": level})
            places[tool["name_of"](cells[-1])] = [dict(placed(lead=share(lead)).where)]
    found = tool["hits"](cells, places)
    assert found == {
        "advice": (1.0, 0.0, 0.0), "always atod": (0.5, 15.0, 30.0), "always uecr": (0.5, 2.0, 3.0),
        "always grpo": (0.5, 3.0, 6.0),
    }  # fmt: skip
