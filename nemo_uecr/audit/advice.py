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

from nemo_uecr.audit.output import Audit, Numbers, percent, shown
from nemo_uecr.config.schema import Config
from nemo_uecr.method_registry import REGISTRY
from nemo_uecr.stats import Mean, Share, paired_difference

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
NOTE = (
    "What responses of the student and of the teacher to training problems say before any training, with 95% intervals "
    "over problems, and what follows by the measured map of methods (docs/study.md)."
)
#: What an interval above a bound, below it, and around it says.
LEAD = ("it solves more than the student", "it solves less than the student", "no clear lead")
ORDER = (
    "its scores agree with the verdicts",
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

    Attributes:
        where: the place on the map's axes, with 95 % intervals over problems: pass rate of the `student`, `lead` of the
            teacher over it, `order` (pairs of a right and a wrong response that R^T orders by the verdict) and
            `degenerate` groups.
        teacher: pass rate of the teacher's own responses.
        numbers: everything else, by its metric's name where there is one.
        equal: by group size, the shares of groups that are all right and all wrong.
        columns: output columns of the models that were loaded.
        config: the run's configuration.
    """

    where: Mapping[str, Share | None]
    teacher: Share | None
    numbers: Mapping[str, float | None]
    equal: Mapping[int, tuple[float, float]]
    columns: Mapping[str, int]
    config: Config


# The map


class Measured(NamedTuple):
    """A method in a cell: mean avg@k in percent, number of pairs, and its paired lead over the cell's reference."""

    mean: float
    pairs: int
    lead: tuple[float, float, float] | None  # mean, low, high; None for the reference itself


@dataclass(frozen=True)
class Cell:
    """A place where methods were compared."""

    name: str
    where: Mapping[str, float]
    reference: str
    methods: Mapping[str, Measured]

    def regret(self, method: str) -> float:
        """Points that the method ended below the cell's best."""
        return max(each.mean for each in self.methods.values()) - self.methods[method].mean


def load_map() -> list[Cell]:
    """The map of this version."""
    cells = json.loads((files("nemo_uecr.audit") / "map.json").read_text(encoding="utf-8"))
    return [Cell(**cell | {"methods": {name: Measured(*m) for name, m in cell["methods"].items()}}) for cell in cells]


def region(where: Mapping[str, Share | None], cells: Sequence[Cell]) -> list[Cell]:
    """The cells that a run may be in.

    distance = sum over the known axes of how far the cell lies outside the run's interval
    """

    def distance(cell: Cell) -> float:
        known = [(share, cell.where[axis]) for axis, share in where.items() if share is not None]
        return sum(max(share["low"] - value, value - share["high"], 0.0) for share, value in known)

    nearest = min(map(distance, cells))
    return [cell for cell in cells if distance(cell) <= nearest + MARGIN]


def chosen(cells: Sequence[Cell]) -> str:
    """The method with the smallest largest regret over the cells; of equal ones the one that reads fewest scores."""
    common = sorted(set.intersection(*(set(cell.methods) for cell in cells)))
    regret = {method: round(max(cell.regret(method) for cell in cells), 1) for method in common}
    return min(common, key=lambda method: (regret[method], len(REGISTRY[method].scores)))


def behind(method: str, finals: Mapping[str, Mapping[int, float]]) -> Mean | None:
    """How far the best method of an unseen cell ended above this one, paired; None where it is the best itself.

    ``finals`` has each method's average by pair. The advice hits where the interval holds 0.
    """
    best = max(finals, key=lambda name: sum(finals[name].values()) / len(finals[name]))
    return (
        None if method == best else paired_difference(finals[best], finals[method], confidence=0.95, seed=0).difference
    )


def advice(facts: Facts, cells: Sequence[Cell]) -> Audit:
    """What was measured, and what it advises, as a section of the report."""
    measured, advised = measured_lines(facts), advice_lines(facts, cells)
    numbers: Numbers = {
        **{name: getattr(facts, name) for name in ("where", "teacher", "numbers", "equal", "columns")},
        "advice": {line.name: line.value for line in advised},
    }
    rows = [(line.name, line.value, line.meaning, line.sure) for line in (*measured, *advised)]
    return Audit("advise", "Advice", NOTE, numbers, ("", "value", "what it means", "how sure"), rows, drawn=False)


# What the numbers mean


def measured_lines(facts: Facts) -> list[Line]:
    """One line a number."""
    numbers, rollout = facts.numbers, facts.config.rollout
    lead, order, size = facts.where["lead"], facts.where["order"], rollout.responses_per_prompt
    others = ", ".join(f"of {g} {_whole(sum(both))}" for g, both in facts.equal.items() if g != size)
    gaps = ", ".join(shown(numbers[f"outcome/gap_mean_{verdict}"], "+.3f") for verdict in ("right", "wrong"))
    cut = ", ".join(_whole(numbers[name]) for name in ("response/truncated_share", "teacher/truncated_share"))
    spread, noise = numbers["spread"], numbers["noise"]
    relation = "its noise is unknown: `nemo-uecr audit teacher`"
    if spread and noise:
        relation = f"its noise, method.scoring_noise, is {_whole(noise / spread)} of it"
    length = f"mean of the student {numbers['response/length_mean']:.0f}, limit {rollout.max_response_tokens} tokens"
    columns = (
        "unknown" if not facts.columns else "equal" if len({*facts.columns.values()}) == 1 else "differ by padding"
    )
    return [
        Line("student right", _percent(facts.where["student"]), "of its responses, sampled as in training"),
        Line("teacher right", _percent(facts.teacher), "of its own responses to the same problems"),
        Line("teacher's lead", _percent(lead), _reading(lead, 0.0, LEAD)),
        Line("R^T puts right above wrong", _percent(order), _reading(order, 0.5, ORDER)),
        Line("gap on right, on wrong", gaps, "nats a token; a good teacher's is higher on right responses"),
        Line("top-1 agreement", _whole(numbers["teacher/top1_agreement"]), "tokens that both models put first"),
        Line("top-20 overlap", _whole(numbers["teacher/top20_overlap"]), "of the twenty likeliest tokens of both"),
        Line("teacher entropy", shown(numbers["teacher/entropy_mean"], ".3f"), "nats a token; near 0: sure everywhere"),
        Line(f"all right, groups of {size}", _whole(facts.equal[size][0]), "the verifier has nothing to compare"),
        Line(
            f"all wrong, groups of {size}", _whole(facts.equal[size][1]), f"the same; both together in groups {others}"
        ),
        Line("spread of R^T in a group", shown(spread, ".4f"), f"nats; {relation}"),
        Line("cut off, student, teacher", cut, length),
        Line("output columns", ", ".join(map(str, facts.columns.values())) or "-", columns),
    ]


def _side(share: Share | None, bound: float) -> int | None:
    """0 where the interval lies above the bound, 1 below it, 2 around it; None where nothing is known."""
    if share is None:
        return None
    return 0 if share["low"] > bound else 1 if share["high"] < bound else 2


def _reading(share: Share | None, bound: float, words: Sequence[str]) -> str:
    side = _side(share, bound)
    return "unknown" if side is None else words[side]


def _percent(share: Share | None) -> str:
    return "-" if share is None else f"{percent(share)}%"


def _whole(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


# Advice


def advice_lines(facts: Facts, cells: Sequence[Cell]) -> list[Line]:
    """The region of the map, and what to choose there."""
    here, train, teacher = region(facts.where, cells), facts.config.train, _teacher(facts)
    unknown = [axis for axis, share in facts.where.items() if share is None]
    warmup = train.warmup_steps or math.ceil(train.steps / 6)
    return [
        Line("region", "; ".join(cell.name for cell in here), f"unknown: {', '.join(unknown) or 'nothing'}", CAVEAT),
        teacher,
        _method(facts.config.method.name, ALONE if teacher.value == REFUSED else chosen(here), here),
        _alpha(facts),
        Line("warm-up", f"{warmup} steps", "the map's runs took a sixth of their steps", "no other was measured"),
        _std_floor(facts),
        _group_size(facts),
    ]


def _teacher(facts: Facts) -> Line:
    sides = {_side(facts.where["lead"], 0.0), _side(facts.where["order"], 0.5)}
    if 1 in sides:
        reason = "it solves less than the student, or its scores contradict the verdicts"
        return Line("teacher", REFUSED, reason, "a 95% interval says so")
    if sides == {0}:
        return Line(
            "teacher", "distil", "it leads, and its scores agree with the verdicts", "both 95% intervals say so"
        )
    return Line("teacher", "in doubt", "nothing shows that it is better than the student", "more --problems may decide")


def _method(now: str, name: str, here: Sequence[Cell]) -> Line:
    """The advised method beside the configured one."""
    least = min(cell.methods[name].pairs for cell in here)
    reason = f"at most {max(cell.regret(name) for cell in here):.1f} points below the region's best"
    if now != name and all(now in cell.methods for cell in here):
        reason += f"; {now}: {max(cell.regret(now) for cell in here):.1f}"
    leads = [(cell.methods[name].lead, cell.reference) for cell in here]
    told = [f"{lead[0]:+.1f} [{lead[1]:+.1f}, {lead[2]:+.1f}] to {other}" for lead, other in leads if lead]
    return Line("method", name, reason, f"{least} pairs a cell; {'; '.join(told) or 'the others are measured by it'}")


def _alpha(facts: Facts) -> Line:
    now, safe = facts.config.method.alpha, facts.numbers["safe_alpha"]
    alpha = 1.0 if now is None else now
    if safe is None or safe > alpha:
        reason = "in under a tenth of the mixed groups a wrong response passes a right one"
        return Line("alpha", f"{alpha:g}", reason, "0.3, 1 and 3 ended alike in the map")
    reason = "from there on a wrong response passes a right one in a tenth of the mixed groups"
    return Line("alpha", f"below {safe:.2g}", reason, "counted; not in the map")


def _std_floor(facts: Facts) -> Line:
    method, noise = facts.config.method, facts.numbers["noise"]
    if noise is None:
        reason = "a teacher in few bits wants three times its noise"
        return Line("std_floor", f"{method.std_floor:g}", reason, "0, 0.1 and 0.3 ended alike in the map")
    floor = FLOOR * noise * (1.0 if method.alpha is None else method.alpha)
    return Line("std_floor", f"{floor:.1g}", "three times the noise of alpha R^T", "a rule; not in the map")


def _group_size(facts: Facts) -> Line:
    """A larger group where it mixes enough of them; otherwise other problems."""
    now = facts.config.rollout.responses_per_prompt
    right, wrong = facts.equal[now]
    mixed = {size: 1.0 - sum(both) for size, both in facts.equal.items()}
    size = next((size for size in sorted(mixed) if size >= now and mixed[size] >= 1 - MOST_EQUAL), now)
    reason = f"{_whole(mixed[now])} of the groups are mixed"
    if size > now:
        reason += f", then {_whole(mixed[size])}"
    if right + wrong > MOST_EQUAL:
        reason += f"; {'easier' if wrong > right else 'harder'} problems help for nothing"
    return Line("group size", str(size), reason, "counted from the responses")
