"""Every method once more, slowly: Python floats and lists, one formula a line, no tensors.

Every formula is written from the method's definition, so that agreement with the package is evidence.
Lists run over responses; token lists run over the response's own columns, holes in the mask included.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

EPS = 1e-6
Tokens = list[float]


def _single(value: float) -> float:
    """The nearest float32, at most 0."""
    nearest: float = struct.unpack("f", struct.pack("f", min(0.0, value)))[0]
    return nearest


@dataclass(frozen=True)
class Response:
    """One response: its reward, its prompt, and its token scores (ignored where ``mask`` is False)."""

    task: float
    group: int
    mask: tuple[bool, ...]
    old: tuple[float, ...]
    teacher: tuple[float, ...]
    entropy: tuple[float, ...]
    segments: tuple[int, ...] | None = None

    @property
    def initial(self) -> tuple[float, ...]:
        """log pi_0: the initial student, a fixed and bounded way off the old policy, float32 numbers."""
        return tuple(_single(old + 0.8 * math.sin(37.0 * old)) if math.isfinite(old) else old for old in self.old)

    @property
    def valid(self) -> list[int]:
        """Columns of the sampled tokens."""
        return [t for t, chosen in enumerate(self.mask) if chosen]


@dataclass(frozen=True)
class Scalars:
    """Every setting of every method."""

    alpha: float
    rho: float
    tau_delta: float
    tau_entropy: float
    std_floor: float
    sample_std: bool
    opd_coef: float
    step: int
    mix: float
    bound: float
    extrapolation: float


@dataclass
class Result:
    """What a method yields; a field stays empty where the method has no such quantity."""

    advantage: list[Tokens]
    advantage_opd: list[Tokens] = field(default_factory=list)
    weight: list[Tokens] = field(default_factory=list)
    residual: list[Tokens] = field(default_factory=list)
    direction: list[Tokens] = field(default_factory=list)
    confidence: list[Tokens] = field(default_factory=list)
    unified: list[float] = field(default_factory=list)
    task: list[float] = field(default_factory=list)
    teacher: list[float] = field(default_factory=list)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def clip(value: float, low: float, high: float) -> float:
    return max(low, min(high, value))


def sign(value: float) -> float:
    return float(value > 0) - float(value < 0)


def gaps(response: Response) -> Tokens:
    """delta on the sampled tokens, 0 elsewhere."""
    return [response.teacher[t] - response.old[t] if chosen else 0.0 for t, chosen in enumerate(response.mask)]


def teacher_reward(response: Response) -> float:
    delta = gaps(response)
    return mean([clip(delta[t], -5.0, 5.0) for t in response.valid])


def spread(values: Sequence[float], *, sample: bool) -> float:
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - (1 if sample else 0)))


def by_group(responses: Sequence[Response], values: Sequence[float]) -> dict[int, list[float]]:
    table: dict[int, list[float]] = {}
    for response, value in zip(responses, values, strict=True):
        table.setdefault(response.group, []).append(value)
    return table


def centred(responses: Sequence[Response], values: Sequence[float]) -> list[float]:
    """Value minus group mean, exactly 0 in a group of equal values."""
    table = by_group(responses, values)
    return [
        0.0 if max(table[r.group]) == min(table[r.group]) else v - mean(table[r.group])
        for r, v in zip(responses, values, strict=True)
    ]


def divisors(responses: Sequence[Response], values: Sequence[float], s: Scalars) -> list[float]:
    table = by_group(responses, values)
    return [max(spread(table[r.group], sample=s.sample_std), s.std_floor) + EPS for r in responses]


def normalised(responses: Sequence[Response], values: Sequence[float], s: Scalars) -> list[float]:
    return [x / d for x, d in zip(centred(responses, values), divisors(responses, values, s), strict=True)]


def grpo_values(responses: Sequence[Response], s: Scalars) -> list[float]:
    return normalised(responses, [r.task for r in responses], s)


def spread_out(responses: Sequence[Response], values: Sequence[float]) -> list[Tokens]:
    return [[v if m else 0.0 for m in r.mask] for r, v in zip(responses, values, strict=True)]


def puu_parts(responses: Sequence[Response], s: Scalars, alpha: float) -> tuple[list[float], list[float], list[float]]:
    """A^U, A^task|U, A^T|U."""
    task = [r.task for r in responses]
    teacher = [teacher_reward(r) for r in responses]
    unified = [a + alpha * b for a, b in zip(task, teacher, strict=True)]
    below = divisors(responses, unified, s)
    return (
        [x / d for x, d in zip(centred(responses, unified), below, strict=True)],
        [x / d for x, d in zip(centred(responses, task), below, strict=True)],
        [x / d for x, d in zip(centred(responses, teacher), below, strict=True)],
    )


def directions(response: Response, s: float, tau: float) -> Tokens:
    return [math.tanh(s * g / (2.0 * tau)) if m else 0.0 for g, m in zip(gaps(response), response.mask, strict=True)]


def confidences(response: Response, tau: float) -> Tokens:
    return [math.exp(-h / tau) if m else 0.0 for h, m in zip(response.entropy, response.mask, strict=True)]


def centre_of(response: Response, d: Tokens, tau: float | None) -> float:
    """mu^c with weights relative to the most confident token; tau None means c = 1."""
    low = min(response.entropy[t] for t in response.valid)
    weight = {t: 1.0 if tau is None else math.exp(-(response.entropy[t] - low) / tau) for t in response.valid}
    return math.fsum(weight[t] * d[t] for t in response.valid) / math.fsum(weight.values())


def ecr(response: Response, s: float, k: Scalars) -> tuple[Tokens, Tokens, Tokens]:
    d, c = directions(response, s, k.tau_delta), confidences(response, k.tau_entropy)
    mu = centre_of(response, d, k.tau_entropy)
    return _residual(response, c, d, mu), d, c


def ecr_no_entropy(response: Response, s: float, k: Scalars) -> tuple[Tokens, Tokens, Tokens]:
    d, c = directions(response, s, k.tau_delta), [float(m) for m in response.mask]
    return _residual(response, c, d, centre_of(response, d, None)), d, c


def ecr_no_projection(response: Response, s: float, k: Scalars) -> tuple[Tokens, Tokens, Tokens]:
    d, c = directions(response, s, k.tau_delta), confidences(response, k.tau_entropy)
    return _residual(response, c, d, 0.0), d, c


def ecr_no_gap(response: Response, s: float, k: Scalars) -> tuple[Tokens, Tokens, Tokens]:
    c = confidences(response, k.tau_entropy)
    middle = mean([c[t] for t in response.valid])
    q = [0.5 * s * (x - middle) if m else 0.0 for x, m in zip(c, response.mask, strict=True)]
    return q, [s if m else 0.0 for m in response.mask], c


def _residual(response: Response, c: Tokens, d: Tokens, mu: float) -> Tokens:
    return [0.5 * x * (y - mu) if m else 0.0 for x, y, m in zip(c, d, response.mask, strict=True)]


Rule = Callable[[Response, float, Scalars], tuple[Tokens, Tokens, Tokens]]


def redistributed(responses: Sequence[Response], k: Scalars, rule: Rule, *, alpha: float, whole: bool) -> Result:
    unified, task, teacher = puu_parts(responses, k, alpha)
    out = Result([], unified=unified, task=task, teacher=teacher)
    for response, u, a in zip(responses, unified, task, strict=True):
        q, d, c = rule(response, sign(a), k)
        moved = u if whole else a
        out.advantage.append([u + k.rho * moved * x if m else 0.0 for x, m in zip(q, response.mask, strict=True)])
        out.weight.append([1.0 + k.rho * x for x in q])
        out.residual.append(q)
        out.direction.append(d)
        out.confidence.append(c)
    return out


def uecr(responses: Sequence[Response], k: Scalars) -> Result:
    return redistributed(responses, k, ecr, alpha=k.alpha, whole=False)


def grpo(responses: Sequence[Response], k: Scalars) -> Result:
    values = grpo_values(responses, k)
    return Result(spread_out(responses, values), task=values)


def clipped_gaps(responses: Sequence[Response]) -> list[Tokens]:
    return [[clip(g, -5.0, 5.0) for g in gaps(r)] for r in responses]


def pg_opd(responses: Sequence[Response], k: Scalars) -> Result:
    return Result(clipped_gaps(responses))


def grpo_plus_opd(responses: Sequence[Response], k: Scalars) -> Result:
    first = grpo(responses, k)
    return Result(first.advantage, advantage_opd=clipped_gaps(responses), task=first.task)


def distilled_rl(responses: Sequence[Response], k: Scalars) -> Result:
    values = grpo_values(responses, k)
    out = Result([], task=values)
    for response, a in zip(responses, values, strict=True):
        delta = gaps(response)
        ratio = {t: clip(math.exp(clip(delta[t], -80.0, 80.0)), 1.0 / 3.0, 3.0) for t in response.valid}
        geometric = math.exp(mean([math.log(ratio[t]) for t in response.valid]))
        w = [ratio[t] / geometric if m and a > 0 else 1.0 for t, m in enumerate(response.mask)]
        out.weight.append(w)
        out.advantage.append([x * a if m else 0.0 for x, m in zip(w, response.mask, strict=True)])
    return out


def turn_weights(response: Response) -> Tokens:
    """T-DUR: 1 - (1 - d)(1 - h), both min-max scaled over the response's turns; a flat statistic is 1/2."""
    label = response.segments if response.segments is not None else (0,) * len(response.mask)
    delta = gaps(response)
    turns = sorted({label[t] for t in response.valid})
    members = {turn: [t for t in response.valid if label[t] == turn] for turn in turns}
    disagreement = _min_max({turn: mean([abs(delta[t]) for t in ts]) for turn, ts in members.items()})
    surprisal = _min_max({turn: mean([-response.old[t] for t in ts]) for turn, ts in members.items()})
    weight = {turn: 1.0 - (1.0 - disagreement[turn]) * (1.0 - surprisal[turn]) for turn in turns}
    return [weight[label[t]] if m else 1.0 for t, m in enumerate(response.mask)]


def _min_max(values: dict[int, float]) -> dict[int, float]:
    low, high = min(values.values()), max(values.values())
    return {k: 0.5 if high - low < 1e-8 else (v - low) / (high - low) for k, v in values.items()}


def atod(responses: Sequence[Response], k: Scalars) -> Result:
    progress = min(k.step / 80.0, 1.0)
    kappa, rise = max(0.1, 1.0 - 0.9 * progress), 1.0 + progress
    values = grpo_values(responses, k)
    out = Result([], task=values)
    for response, a in zip(responses, values, strict=True):
        delta, w = gaps(response), turn_weights(response)
        out.weight.append(w)
        out.advantage.append([kappa * w[t] * delta[t] + rise * a if m else 0.0 for t, m in enumerate(response.mask)])
    return out


def separate_norm(responses: Sequence[Response], k: Scalars) -> Result:
    task = grpo_values(responses, k)
    teacher = normalised(responses, [teacher_reward(r) for r in responses], k)
    total = [a + k.alpha * b for a, b in zip(task, teacher, strict=True)]
    return Result(spread_out(responses, total), task=task, teacher=teacher)


def puu(responses: Sequence[Response], k: Scalars) -> Result:
    unified, task, teacher = puu_parts(responses, k, k.alpha)
    return Result(spread_out(responses, unified), unified=unified, task=task, teacher=teacher)


def rlsd(responses: Sequence[Response], k: Scalars) -> Result:
    values = grpo_values(responses, k)
    out = Result([], task=values)
    for response, a in zip(responses, values, strict=True):
        ratio = [clip(math.exp(clip(sign(a) * g, -80.0, 80.0)), 1.0 - k.bound, 1.0 + k.bound) for g in gaps(response)]
        w = [(1.0 - k.mix) + k.mix * x if m else 1.0 for x, m in zip(ratio, response.mask, strict=True)]
        out.weight.append(w)
        out.advantage.append([x * a if m else 0.0 for x, m in zip(w, response.mask, strict=True)])
    return out


def g_opd(responses: Sequence[Response], k: Scalars) -> Result:
    """The authors' form: minus (moved so far - strength times what the teacher would move)."""
    out = Result([])
    for r in responses:
        moved = [o - i if m else 0.0 for o, i, m in zip(r.old, r.initial, r.mask, strict=True)]
        wanted = [t - i if m else 0.0 for t, i, m in zip(r.teacher, r.initial, r.mask, strict=True)]
        pairs = zip(moved, wanted, strict=True)
        out.advantage.append([clip(-(done - k.extrapolation * aim), -5.0, 5.0) for done, aim in pairs])
    return out


#: ``shuffled_entropy`` is UECR on responses whose entropies were permuted beforehand: which permutation a seed
#: means is the package's own business.
METHODS: dict[str, Callable[[Sequence[Response], Scalars], Result]] = {
    "grpo": grpo,
    "pg_opd": pg_opd,
    "grpo_plus_opd": grpo_plus_opd,
    "distilled_rl": distilled_rl,
    "atod": atod,
    "separate_norm": separate_norm,
    "puu": puu,
    "uecr": uecr,
    "ecr_no_entropy": lambda r, k: redistributed(r, k, ecr_no_entropy, alpha=k.alpha, whole=False),
    "ecr_no_projection": lambda r, k: redistributed(r, k, ecr_no_projection, alpha=k.alpha, whole=False),
    "ecr_full_advantage": lambda r, k: redistributed(r, k, ecr, alpha=k.alpha, whole=True),
    "ecr_alpha_zero": lambda r, k: redistributed(r, k, ecr, alpha=0.0, whole=False),
    "ecr_no_gap": lambda r, k: redistributed(r, k, ecr_no_gap, alpha=k.alpha, whole=False),
    "shuffled_entropy": uecr,
    "rlsd": rlsd,
    "g_opd": g_opd,
}
