"""From facts about a student, its verifier and its teacher to advice, by the measured map of methods.

`map.json` has cells of studies: where a cell lies, and how each method ended there. A run may be in any cell that its
measured intervals do not rule out, and what is unknown rules out nothing. The advised method has the smallest largest
regret over those cells: a doubtful teacher leads to a method that survives a wrong one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import NamedTuple

from nemo_uecr.audit.output import Audit, percent, shown
from nemo_uecr.config.schema import Config
from nemo_uecr.core.methods import METHODS
from nemo_uecr.stats import Share

#: Cells this much further away than the nearest, summed over the axes, may be the run's as well.
MARGIN = 0.1
#: A group's standard deviation of so many times the noise bounds what noise does to an advantage to a third.
FLOOR = 3.0
#: A group size is worth a change where more groups than this have equal verdicts.
MOST_EQUAL = 0.5
REFUSED = "do not distil from this teacher"
#: The method without a teacher; every cell has it.
ALONE = "grpo"
CAVEAT = "the map's models are about 10,000 times smaller than yours may be, and there the order can differ"
COARSE = "so most such gains are within noise (docs/map.md)"
NOTE = (
    "What responses of the student and of the teacher to training problems say before any training, with 95% intervals "
    "over problems, and what follows by the measured map of methods (docs/advise.md)."
)
#: What an interval above a bound, below it, and around it says.
LEAD = ("it solves more than the student", "it solves less than the student", "no clear lead")
ORDER = (
    "its scores agree with the verdicts, as even a wrong teacher's may",
    "its scores contradict the verdicts",
    "its scores do not see the verdict",
)


class Line(NamedTuple):
    """A number and what it means; of a piece of advice also how sure it is."""

    name: str
    value: str
    meaning: str
    sure: str = ""


@dataclass(frozen=True)
class Facts:
    """What was measured; None is unknown.

    ``where`` is the place on the map's axes, with 95 % intervals over problems: pass rate of the `student`, `lead` of
    the teacher over it, `order` (pairs of a right and a wrong response that R^T orders by the verdict) and
    `degenerate` groups.
    """

    where: Mapping[str, Share | None]
    teacher: Share | None  # pass rate of the teacher's own responses
    numbers: Mapping[str, float | None]  # everything else, by its metric's name where there is one
    equal: Mapping[int, tuple[float, float]]  # by group size, the shares of groups that are all right and all wrong
    columns: Mapping[str, int]  # output columns of the models that were loaded
    config: Config  # the run's


# The map


@dataclass(frozen=True)
class Cell:
    """A place where methods were compared, with the mean avg@k in percent that each ended with."""

    name: str
    pairs: int
    where: Mapping[str, float]
    means: Mapping[str, float]

    def regret(self, method: str) -> float:
        """Points that the method ended below the cell's best."""
        return max(self.means.values()) - self.means[method]


def load_map() -> list[Cell]:
    """The map of this version."""
    return [Cell(**cell) for cell in json.loads((files(__package__) / "map.json").read_text(encoding="utf-8"))]


def region(where: Mapping[str, Share | None], cells: Sequence[Cell]) -> list[Cell]:
    """The cells that a run may be in: the nearest, and those hardly further away."""
    nearest = min(distance(where, cell) for cell in cells)
    return [cell for cell in cells if distance(where, cell) <= nearest + MARGIN]


def distance(where: Mapping[str, Share | None], cell: Cell) -> float:
    """Sum over the known axes of how far the cell lies outside the run's interval."""
    known = [(share, cell.where[axis]) for axis, share in where.items() if share is not None]
    return float(sum(max(share["low"] - value, value - share["high"], 0.0) for share, value in known))


def largest_regret(method: str, cells: Sequence[Cell]) -> float:
    """The method's largest regret over the cells, rounded as it is shown."""
    return round(max(cell.regret(method) for cell in cells), 1)


def chosen(cells: Sequence[Cell]) -> str:
    """The method with the smallest largest regret; of equal ones the one that reads fewest scores."""
    common = sorted(set.intersection(*(set(cell.means) for cell in cells)))
    return min(common, key=lambda method: (largest_regret(method, cells), len(METHODS[method].reads)))


def method_for(where: Mapping[str, Share | None], cells: Sequence[Cell]) -> str:
    """The advised method."""
    return ALONE if _teacher(where).value == REFUSED else chosen(region(where, cells))


# What the numbers mean


def advice(facts: Facts, cells: Sequence[Cell]) -> Audit:
    """What was measured, and what it advises, as a section of the report."""
    advised = advice_lines(facts, cells)
    numbers = {name: getattr(facts, name) for name in ("where", "teacher", "numbers", "equal", "columns")}
    numbers["advice"] = {line.name: line.value for line in advised}
    heads = ("", "value", "what it means", "how sure")
    return Audit("advise", "Advice", NOTE, numbers, heads, [*measured_lines(facts), *advised], drawn=False)


def measured_lines(facts: Facts) -> list[Line]:
    """One line a number."""
    where, numbers, rollout = facts.where, facts.numbers, facts.config.rollout
    right, wrong = facts.equal[rollout.responses_per_prompt]
    sizes = ", ".join(f"{_whole(sum(both))} of {size}" for size, both in facts.equal.items())
    gaps = ", ".join(shown(numbers[f"outcome/gap_mean_{verdict}"], "+.3f") for verdict in ("right", "wrong"))
    cut = ", ".join(_whole(numbers[name]) for name in ("response/truncated_share", "teacher/truncated_share"))
    spread, noise = numbers["spread"], numbers["noise"]
    relation = f"the noise of scoring is {_whole(noise / spread)} of it" if spread and noise else "its noise is unknown"
    widths = {*facts.columns.values()}
    columns = "unknown" if not widths else "equal" if len(widths) == 1 else "differ by padding"
    ends = ", ".join(shown(numbers[f"teacher/{name}"], "+.3f") for name in ("end_gap_mean", "gap_mean"))
    length = f"{numbers['response/length_mean']:.0f} tokens on average, limit {rollout.max_response_tokens}"
    return [
        Line("student right", _interval(where["student"]), "of its responses, sampled as in training"),
        Line("teacher right", _interval(facts.teacher), "of its own responses to the same problems"),
        Line("teacher's lead", _interval(where["lead"]), _reading(where["lead"], 0.0, LEAD)),
        Line("R^T puts right above wrong", _interval(where["order"]), _reading(where["order"], 0.5, ORDER)),
        Line("gap on right, on wrong", gaps, "nats a token; a good teacher's is higher on right responses"),
        Line(
            "gap at the end token, mean", ends, "nats; far below 0: the teacher ends otherwise, set teacher.end_token"
        ),
        Line("top-1 agreement", _whole(numbers["teacher/top1_agreement"]), "tokens that both models put first"),
        Line("top-20 overlap", _whole(numbers["teacher/top20_overlap"]), "of the twenty likeliest tokens of both"),
        Line("teacher entropy", shown(numbers["teacher/entropy_mean"], ".3f"), "nats a token; near 0: sure everywhere"),
        Line("all right, all wrong", f"{_whole(right)}, {_whole(wrong)}", f"groups with nothing to compare: {sizes}"),
        Line("spread of R^T in a group", shown(spread, ".4f"), f"nats; {relation}"),
        Line("cut off, student, teacher", cut, length),
        Line("output columns", ", ".join(map(str, facts.columns.values())) or "-", columns),
    ]


def _side(share: Share | None, bound: float) -> int | None:
    """0 where the interval lies above the bound, 1 below it, 2 around it; None where nothing is known."""
    return None if share is None else 0 if share["low"] > bound else 1 if share["high"] < bound else 2


def _reading(share: Share | None, bound: float, words: Sequence[str]) -> str:
    side = _side(share, bound)
    return "unknown" if side is None else words[side]


def _interval(share: Share | None) -> str:
    return "-" if share is None else f"{percent(share)}%"


def _whole(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


# Advice


def advice_lines(facts: Facts, cells: Sequence[Cell]) -> list[Line]:
    """The region of the map, and what to choose there."""
    here, method, train, numbers = region(facts.where, cells), facts.config.method, facts.config.train, facts.numbers
    unknown = ", ".join(axis for axis, share in facts.where.items() if share is None) or "nothing"
    nearest = min(here, key=lambda cell: distance(facts.where, cell))
    inside = distance(facts.where, nearest) == 0
    beside, such = ("", "nearest") if inside else ("outside, nearest to ", "a guess: nearest")
    where = f"{such} in pass rate, lead, order and equal verdicts: {nearest.name!r}; unknown: {unknown}"
    alpha, safe, noise = method.settings().get("alpha", 1.0), numbers["safe_alpha"], numbers["noise"]
    passes = "the responses do not tell" if safe is None else "a wrong response rarely passes a right one"
    weight = Line("alpha", f"{alpha:g}", passes, "the map: 0.3, 1 and 3 alike")
    if safe is not None and safe <= alpha:
        passed = "from there on a wrong response passes a right one in a tenth of the mixed groups"
        weight = Line("alpha", f"below {safe:.2g}", passed, "counted; not in the map")
    floor = Line(
        "std_floor",
        f"{method.settings().get('std_floor', 0.0):g}",
        "no noise is stated",
        "the map: 0, 0.1 and 0.3 alike",
    )
    if noise is not None:
        value = f"{FLOOR * alpha * noise:.2g}"
        floor = Line("std_floor", value, "three times the noise of alpha R^T", "not in the map")
    warmup, own = train.warmup_steps or math.ceil(train.steps / 6), "yours; " if train.warmup_steps else ""
    return [
        Line("region", f"{beside}{len(here)} of the map's {len(cells)} cells", where, CAVEAT),
        _teacher(facts.where),
        _method(method.name, method_for(facts.where, cells), here),
        weight,
        Line("warm-up", f"{warmup} steps", f"{own}the map's runs took a sixth of their steps", "no other was measured"),
        floor,
        _group_size(facts),
    ]


def _teacher(where: Mapping[str, Share | None]) -> Line:
    sides = {_side(where["lead"], 0.0), _side(where["order"], 0.5)}
    if 1 in sides:
        reason = "it solves less than the student, or its scores contradict the verdicts"
        return Line("teacher", REFUSED, reason, "a 95% interval says so")
    if sides == {0}:
        reason = "it solves more than the student, and its scores agree with the verdicts"
        return Line("teacher", "distil", reason, "both 95% intervals say so")
    return Line("teacher", "in doubt", "lead and order do not both speak for it", "more problems may decide")


def _method(now: str, name: str, here: Sequence[Cell]) -> Line:
    """The advised method beside the configured one."""
    reason = f"in these cells it ended at most {largest_regret(name, here)} points below the best method"
    if now != name and all(now in cell.means for cell in here):
        reason += f", {now} at most {largest_regret(now, here)}"
    means = [cell.means[name] - cell.means[ALONE] for cell in here]
    span = " to ".join(dict.fromkeys(f"{round(gain):+d}" for gain in (min(means), max(means))))
    against = "" if name == ALONE else f"there {span} points beside {ALONE}; "
    return Line("method", name, reason, f"{against}{min(cell.pairs for cell in here)} pairs a cell, {COARSE}")


def _group_size(facts: Facts) -> Line:
    """A larger group where it mixes enough of them; otherwise other problems."""
    now = facts.config.rollout.responses_per_prompt
    mixed = {size: 1.0 - sum(both) for size, both in facts.equal.items()}
    size = next((size for size in sorted(mixed) if size >= now and mixed[size] >= 1 - MOST_EQUAL), now)
    right, wrong = facts.equal[now]
    reason = f"{_whole(mixed[size])} of the groups are mixed"
    if right + wrong > MOST_EQUAL:
        most, other = (
            (f"{_whole(wrong)} all wrong", "easier") if wrong > right else (f"{_whole(right)} all right", "harder")
        )
        reason += f", now {_whole(mixed[now])} and {most}; {other} problems mix more at no cost"
    return Line("group size", str(size), reason, "counted from the responses")
