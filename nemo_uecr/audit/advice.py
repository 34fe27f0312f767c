"""What a teacher is worth to a student: facts in words, and the advice that follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nemo_uecr.core.methods import Method
from nemo_uecr.stats import DIFFERENT, Share
from nemo_uecr.tables import percent, shown

#: On batches of runs kappa of a wrong teacher was near 0, and of permuted verdicts 0.03 on average (docs/method.md).
TRUSTED = 0.05
#: A group's standard deviation of so many times the noise bounds what noise does to an advantage to a third.
FLOOR = 3.0
#: A group size is worth a change where more groups than this have equal verdicts.
MOST_EQUAL = 0.5
#: Share of responses that are cut off beyond which verdicts say little.
MOST_CUT = 0.5
#: How far to follow the teacher.
TOKENS, REFUSED, UNDECIDED = "follow token by token", "do not distil", "not enough evidence"
#: The method that does so, and what it does.
METHOD = {
    TOKENS: (
        "uecr_trust",
        "from grpo to the teacher as far as kappa, measured at each step, at grpo's learning rate; "
        "grpo_plus_opd follows in full",
    ),
    REFUSED: ("grpo", "learns from the verifier alone"),
    UNDECIDED: ("uecr_trust", "is grpo until the verdicts of the run speak for the teacher"),
}
#: Bounds of shares, and what an interval above, below and across each means.
BOUNDS = {
    "lead": (0.0, "it solves more than the student", "it solves less than the student", "no clear lead"),
    "order": (
        0.5,
        "its scores agree with the verdicts, as even a wrong teacher's may",
        "its scores contradict the verdicts",
        "no clear relation of its scores to the verdicts",
    ),
    "kappa": (
        TRUSTED,
        "it would have written right responses rather than wrong ones",
        "no sign that it prefers to write right responses, or it writes otherwise",
        "not clear whether it prefers to write right responses",
    ),
}
ABOVE, BELOW, ACROSS, UNKNOWN = range(4)
DECIDED = "its 95% interval lies on one side of the bound"


class Remark(NamedTuple):
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
    verdict); `kappa`, the trust of `uecr_trust`; and groups of the run's size with `equal` verdicts.
    """

    shares: Mapping[str, Share | None]
    problems: int
    mixed: int  # problems with a group of right and wrong responses
    numbers: Mapping[str, float | None]  # everything else, by its metric's name where there is one
    equal: Mapping[int, Sequence[float]]  # by group size, the shares of groups that are all right and all wrong
    columns: Mapping[str, int]  # output columns of the models that were loaded
    method: Method  # the configured one, or whose settings the advice takes
    group_size: int
    limit: int | None  # of the tokens of a response


def side_of_bound(facts: Facts, name: str) -> tuple[int, str]:
    """Where the interval of a share lies beside its bound, and what that means."""
    share, (bound, *words) = facts.shares[name], BOUNDS[name]
    if share is None:
        return UNKNOWN, "unknown"
    side = ABOVE if share["low"] > bound else BELOW if share["high"] < bound else ACROSS
    return side, words[side]


def measured_lines(facts: Facts) -> list[Remark]:
    """One line per number."""
    shares, numbers = facts.shares, facts.numbers
    equal = ", ".join(map(_whole, facts.equal[facts.group_size]))
    sizes = ", ".join(f"{_whole(sum(both))} of {size}" for size, both in facts.equal.items())
    gaps = ", ".join(shown(numbers[f"outcome/gap_mean_{verdict}"], "+.3f") for verdict in ("right", "wrong"))
    cut = ", ".join(_whole(numbers[name]) for name in ("response/truncated_share", "teacher/truncated_share"))
    spread, noise, kappa = numbers["spread"], numbers["noise"], shares["kappa"]
    weighted = facts.method.settings().get("alpha", 1.0) * (spread or 0.0)  # the stated noise is that of alpha R^T
    share = noise / weighted if noise and weighted else None
    relation = "its noise is unknown" if share is None else f"the noise of scoring is {_whole(share)} of it"
    ends = ", ".join(shown(numbers[f"teacher/{name}"], "+.3f") for name in ("end_gap_mean", "gap_mean"))
    length = f"{numbers['response/length_mean']:.0f} tokens on average, limit {facts.limit or 'unknown'}"
    trust = "-" if kappa is None else "{value:.2f} [{low:.2f}, {high:.2f}]".format(**kappa)
    return [
        Remark("student right", _interval(shares["student"]), "of its responses, sampled as in training"),
        Remark("teacher right", _interval(shares["teacher"]), "of its own responses to the same problems"),
        Remark("teacher's lead", _interval(shares["lead"]), side_of_bound(facts, "lead")[1]),
        Remark("mixed problems", f"{facts.mixed} of {facts.problems}", "with a group of right and wrong responses"),
        Remark("kappa", trust, side_of_bound(facts, "kappa")[1]),
        Remark("R^T puts right above wrong", _interval(shares["order"]), side_of_bound(facts, "order")[1]),
        Remark("gap on right, on wrong", gaps, "nats per token; a good teacher's is higher on right responses"),
        Remark("gap at the end token, at all", ends, "nats; far below 0: it ends otherwise, set teacher.end_token"),
        Remark("top-1 agreement", _whole(numbers["teacher/top1_agreement"]), "tokens that both models put first"),
        Remark("top-20 overlap", _whole(numbers["teacher/top20_overlap"]), "of the twenty likeliest tokens of both"),
        Remark("teacher entropy", shown(numbers["teacher/entropy_mean"], ".3f"), "nats per token; near 0: always sure"),
        Remark("all right, all wrong", equal, f"groups with nothing to compare: {sizes}"),
        Remark("spread of R^T in a group", shown(spread, ".4f"), f"nats; {relation}"),
        Remark("cut off, student, teacher", cut, length),
        Remark("output columns", ", ".join(map(str, facts.columns.values())) or "-", "may differ by padding"),
    ]


def advice_lines(facts: Facts) -> list[Remark]:
    """How far to follow the teacher, by which method, and with which settings."""
    method, numbers, teacher = facts.method, facts.numbers, teacher_line(facts)
    lines = [teacher, Remark("method", *METHOD[teacher.value], f"configured: {method.name}"), _group_size(facts)]
    if teacher.value == REFUSED:
        return lines
    alpha, safe, noise = method.settings().get("alpha", 1.0), numbers["safe_alpha"], numbers["noise"]
    weight, passing = f"{alpha:g}", "as configured: a wrong response rarely passes a right one"
    if safe is None:
        passing = "as configured: too few mixed groups to tell"
    elif safe <= alpha:
        weight = f"below {safe:.2g}"
        passing = "from there on a wrong response passes a right one in a tenth of the mixed groups"
    floor, why, by = method.settings().get("std_floor", 0.0), "as configured", "no method.scoring_noise is given"
    if noise is not None:
        floor, why, by = FLOOR * noise, "three times the noise of alpha R^T", "by method.scoring_noise"
    return [
        *lines,
        Remark("alpha", weight, passing, "counted on mixed groups"),
        Remark("std_floor", f"{floor:.2g}", why, by),
    ]


def teacher_line(facts: Facts) -> Remark:
    """How far to follow the teacher."""
    (lead, leading), (order, ordering), (kappa, keeping) = (side_of_bound(facts, name) for name in BOUNDS)
    if BELOW in (lead, order):
        return Remark("teacher", REFUSED, leading if lead == BELOW else ordering, DECIDED)
    if UNKNOWN in (order, kappa):
        return Remark("teacher", UNDECIDED, *_missing(facts))
    value = {ABOVE: TOKENS, BELOW: REFUSED, ACROSS: UNDECIDED}[kappa]
    return Remark("teacher", value, keeping, more_problems(facts, "kappa"))


def more_problems(facts: Facts, name: str) -> str:
    """How many problems would decide if the value stayed and the interval's width fell as n^-1/2."""
    side, share, bound = side_of_bound(facts, name)[0], facts.shares[name], BOUNDS[name][0]
    assert share is not None
    if side != ACROSS:
        return DECIDED
    distance, half = abs(share["value"] - bound), max(share["value"] - share["low"], share["high"] - share["value"])
    if 10 * distance <= half:
        return "more problems will hardly decide"
    return f"about {facts.problems * (half / distance) ** 2:.0f} problems may decide"


def _missing(facts: Facts) -> tuple[str, str]:
    """Why nothing can be concluded, and what is needed."""
    if facts.numbers["spread"] is None:
        return "no teacher scored the responses", "audit a configuration whose method reads a teacher"
    reason = f"{facts.mixed} of {facts.problems} problems are mixed; expected at least {DIFFERENT}"
    if (facts.numbers["response/truncated_share"] or 0.0) > MOST_CUT:
        return reason, "first raise rollout.max_response_tokens: most responses are cut off"
    if facts.mixed == 0:
        return reason, "take other problems, or larger groups"
    return reason, f"about {math.ceil(DIFFERENT * facts.problems / facts.mixed)} problems are needed"


def _group_size(facts: Facts) -> Remark:
    """A larger group where it mixes enough of them; otherwise other problems."""
    now = facts.group_size
    mixed = {size: 1.0 - sum(both) for size, both in facts.equal.items()}
    size = next((size for size in sorted(mixed) if size >= now and mixed[size] >= 1 - MOST_EQUAL), now)
    right, wrong = facts.equal[now]
    reason = f"{_whole(mixed[size])} of such groups are mixed"
    if right + wrong > MOST_EQUAL:
        reason += f"; {'easier' if wrong > right else 'harder'} problems mix more at no cost"
    return Remark("group size", str(size), reason, f"equal verdicts at {now}: {_interval(facts.shares['equal'])}")


def _interval(share: Share | None) -> str:
    return "-" if share is None else f"{percent(share)}%"


def _whole(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"
