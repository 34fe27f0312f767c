"""From facts about a student, its verifier and its teacher to advice: how far to follow the teacher, and settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nemo_uecr.audit.output import Audit, percent, shown
from nemo_uecr.config.schema import Config
from nemo_uecr.stats import DIFFERENT, Share

#: In the study, kappa of a wrong teacher or of permuted verdicts was at most 0.04 (docs/method.md).
TRUSTED = 0.05
#: A group's standard deviation of so many times the noise bounds what noise does to an advantage to a third.
FLOOR = 3.0
#: A group size is worth a change where more groups than this have equal verdicts.
MOST_EQUAL = 0.5
#: How far to follow the teacher, and the method that does so.
TOKENS, RANKING = "follow token by token", "follow in the ranking only"
REFUSED, UNDECIDED = "do not distil", "not enough evidence"
METHOD = {TOKENS: "uecr_trust", RANKING: "uecr", REFUSED: "grpo", UNDECIDED: "uecr_trust"}
WHY = {
    TOKENS: "as far as kappa, which it measures at each step; grpo_plus_opd follows in full",
    RANKING: "the teacher ranks responses and divides credit between tokens; it is not imitated",
    REFUSED: "learns from the verifier alone",
    UNDECIDED: "is uecr at first, and follows the teacher as far as the verdicts speak for it",
}
NOTE = (
    "What responses of the student and of the teacher to training problems show before any training, with 95% "
    "intervals over problems, and what follows (docs/advise.md). kappa is about this student and changes as it learns; "
    "a good teacher that writes otherwise than the student may have a low one. The bounds come from the study's small "
    "models; no larger one has tested them."
)
#: What an interval above a bound, below it, and around it means.
LEAD = ("it solves more than the student", "it solves less than the student", "no clear lead")
ORDER = (
    "its scores agree with the verdicts, as even a wrong teacher's may",
    "its scores contradict the verdicts",
    "no clear relation of its scores to the verdicts",
)
KAPPA = (
    "it would have written right responses rather than wrong ones",
    "no sign that it prefers to write right responses",
    "not clear whether it prefers to write right responses",
)
SURE = "a 95% interval excludes the contrary"


class Line(NamedTuple):
    """A number and what it means; of a piece of advice also how sure it is."""

    name: str
    value: str
    meaning: str
    sure: str = ""


@dataclass(frozen=True)
class Facts:
    """What was measured; None is unknown.

    ``shares`` have 95 % intervals over problems: pass rates of `student` and `teacher`, each on its own responses;
    `lead` of the teacher over the student; `order` (pairs of a right and a wrong response that R^T orders by the
    verdict); `kappa`, the trust of `uecr_trust`; and `degenerate` groups.
    """

    shares: Mapping[str, Share | None]
    problems: int
    mixed: int  # problems with a group of right and wrong responses
    numbers: Mapping[str, float | None]  # everything else, by its metric's name where there is one
    equal: Mapping[int, tuple[float, float]]  # by group size, the shares of groups that are all right and all wrong
    columns: Mapping[str, int]  # output columns of the models that were loaded
    config: Config  # the run's


def advice(facts: Facts) -> Audit:
    """What was measured, and what it advises, as a section of the report."""
    advised = advice_lines(facts)
    numbers = {name: value for name, value in vars(facts).items() if name != "config"}
    numbers["advice"] = {line.name: line.value for line in advised}
    columns = ("", "value", "what it means", "how sure")
    return Audit("advise", "Advice", NOTE, numbers, columns, [*measured_lines(facts), *advised], drawn=False)


# What the numbers mean


def measured_lines(facts: Facts) -> list[Line]:
    """One line per number."""
    shares, numbers, rollout = facts.shares, facts.numbers, facts.config.rollout
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
    mixed = f"of {facts.problems}: they have a group of right and wrong responses; kappa and ranking are theirs"
    return [
        Line("student right", _interval(shares["student"]), "of its responses, sampled as in training"),
        Line("teacher right", _interval(shares["teacher"]), "of its own responses to the same problems"),
        Line("teacher's lead", _interval(shares["lead"]), _reading(shares["lead"], 0.0, LEAD)),
        Line("mixed problems", str(facts.mixed), mixed),
        Line("kappa", _kappa(shares["kappa"]), _reading(shares["kappa"], TRUSTED, KAPPA)),
        Line("R^T puts right above wrong", _interval(shares["order"]), _reading(shares["order"], 0.5, ORDER)),
        Line("gap on right, on wrong", gaps, "nats per token; a good teacher's is higher on right responses"),
        Line(
            "gap at the end token, mean", ends, "nats; far below 0: the teacher ends otherwise, set teacher.end_token"
        ),
        Line("top-1 agreement", _whole(numbers["teacher/top1_agreement"]), "tokens that both models put first"),
        Line("top-20 overlap", _whole(numbers["teacher/top20_overlap"]), "of the twenty likeliest tokens of both"),
        Line("teacher entropy", shown(numbers["teacher/entropy_mean"], ".3f"), "nats per token; near 0: always sure"),
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


def _kappa(share: Share | None) -> str:
    return "-" if share is None else "{value:.2f} [{low:.2f}, {high:.2f}]".format(**share)


def _whole(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


# Advice


def advice_lines(facts: Facts) -> list[Line]:
    """How far to follow the teacher, by which method, and with which settings."""
    method, numbers, teacher = facts.config.method, facts.numbers, teacher_line(facts)
    alpha, safe, noise = method.settings().get("alpha", 1.0), numbers["safe_alpha"], numbers["noise"]
    weight = Line("alpha", f"{alpha:g}", "a wrong response rarely passes a right one", "counted on mixed groups")
    if safe is None:
        weight = Line("alpha", f"{alpha:g}", "as configured", "too few mixed groups, or no scores")
    elif safe <= alpha:
        passed = "from there on a wrong response passes a right one in a tenth of the mixed groups"
        weight = Line("alpha", f"below {safe:.2g}", passed, "counted on mixed groups")
    floor = method.settings().get("std_floor", 0.0)
    divisor = Line("std_floor", f"{floor:g}", "as configured", "no method.scoring_noise (nemo-uecr audit teacher)")
    if noise is not None:
        divisor = Line("std_floor", f"{FLOOR * alpha * noise:.2g}", "three times the noise of alpha R^T", "a bound")
    return [
        teacher,
        Line("method", METHOD[teacher.value], WHY[teacher.value], f"configured: {method.name}"),
        weight,
        divisor,
        _group_size(facts),
    ]


def teacher_line(facts: Facts) -> Line:
    """How far to follow the teacher."""
    lead, order, kappa = (facts.shares[name] for name in ("lead", "order", "kappa"))
    if _side(lead, 0.0) == 1:
        return Line("teacher", REFUSED, LEAD[1], SURE)
    if _side(order, 0.5) == 1:
        return Line("teacher", REFUSED, ORDER[1], SURE)
    if order is None or kappa is None:
        return Line("teacher", UNDECIDED, *_missing(facts))
    if _side(kappa, TRUSTED) == 0:
        return Line("teacher", TOKENS, KAPPA[0], SURE)
    if _side(order, 0.5) == 0:
        reason = f"its scores agree with the verdicts; {_reading(kappa, TRUSTED, KAPPA)}"
        return Line("teacher", RANKING, reason, more_problems(kappa, TRUSTED, facts.problems))
    value = REFUSED if _side(kappa, TRUSTED) == 1 else UNDECIDED
    reason = f"{ORDER[2]}; {_reading(kappa, TRUSTED, KAPPA)}"
    return Line("teacher", value, reason, more_problems(order, 0.5, facts.problems))


def more_problems(share: Share, bound: float, problems: int) -> str:
    """How many problems would take the bound out of the interval, if its value stayed and its width fell as n^-1/2."""
    value = share["value"]
    half = value - share["low"] if value > bound else share["high"] - value
    if half < abs(value - bound):
        return SURE
    needed = problems * (half / (value - bound)) ** 2 if value != bound else math.inf
    return "more problems will hardly decide" if needed > 100 * problems else f"about {needed:.0f} problems may decide"


def _missing(facts: Facts) -> tuple[str, str]:
    """Why nothing can be concluded, and what is needed."""
    if facts.numbers["spread"] is None:
        return "the batch has no scores of a teacher", "advise a configuration instead"
    reason = f"{facts.mixed} problems have right and wrong responses; expected {DIFFERENT} at least"
    if facts.mixed == 0:
        return reason, f"none of {facts.problems}: take other problems, or larger groups"
    return reason, f"about {math.ceil(DIFFERENT * facts.problems / facts.mixed)} problems are needed"


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
    return Line("group size", str(size), reason, f"equal verdicts now: {_interval(facts.shares['degenerate'])}")
