"""Every method once more, slowly: Python floats and lists, one formula a line, no tensors.

Every formula is written from the method's definition, so that agreement with the package is evidence.
Lists run over responses; token lists run over the response's own columns, holes in the mask included.
A method gives the fields of `Advantages` that it has, by name.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

EPS = 1e-6
Tokens = list[float]
Fields = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """Every setting of every method, and what the run gives."""

    alpha: float = 1.0
    rho: float = 0.5
    tau_delta: float = 1.0
    tau_entropy: float = 1.0
    std_floor: float = 0.0
    sample_std: bool = False
    opd_coef: float = 1.0
    mix: float = 0.5
    bound: float = 0.2
    extrapolation: float = 1.25
    keep: float = 0.2
    warmup: float = 100.0
    amplification: float = 0.5
    discount: float = 0.99
    share: float = 0.2
    horizon: float = 32.0
    margin: float = 0.2
    memory: float = 0.8
    step: int = 0
    total_steps: int = 1
    seed: int = 0
    state: Mapping[str, float] = field(default_factory=dict)


def single(value: float) -> float:
    """The nearest float32 number."""
    return struct.unpack("f", struct.pack("f", value))[0]


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
        values = (min(0.0, old + 0.8 * math.sin(37.0 * old)) for old in self.old)
        return tuple(single(value) if math.isfinite(old) else old for old, value in zip(self.old, values, strict=True))

    @property
    def student_entropy(self) -> tuple[float, ...]:
        """The old policy's own entropy, a fixed way off the teacher's, float32 numbers."""
        return tuple(single(abs(h - 1.0)) if math.isfinite(h) else h for h in self.entropy)

    @property
    def valid(self) -> list[int]:
        """Columns of the sampled tokens."""
        return [t for t, chosen in enumerate(self.mask) if chosen]


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def clip(value: float, low: float, high: float) -> float:
    return max(low, min(high, value))


def sign(value: float) -> float:
    return float(value > 0) - float(value < 0)


def on_mask(response: Response, values: Sequence[float], off: float = 0.0) -> Tokens:
    return [value if chosen else off for value, chosen in zip(values, response.mask, strict=True)]


def gaps(response: Response) -> Tokens:
    """delta on the sampled tokens, 0 elsewhere."""
    return on_mask(response, [a - b for a, b in zip(response.teacher, response.old, strict=True)])


def teacher_reward(response: Response) -> float:
    delta = gaps(response)
    return mean([clip(delta[t], -5.0, 5.0) for t in response.valid])


def by_group(responses: Sequence[Response], values: Sequence[float]) -> list[list[float]]:
    """For each response the values of its group."""
    table: dict[int, list[float]] = {}
    for response, value in zip(responses, values, strict=True):
        table.setdefault(response.group, []).append(value)
    return [table[response.group] for response in responses]


def centred(responses: Sequence[Response], values: Sequence[float]) -> list[float]:
    """Value minus group mean, exactly 0 in a group of equal values."""
    groups = by_group(responses, values)
    return [0.0 if max(g) == min(g) else v - mean(g) for v, g in zip(values, groups, strict=True)]


def spreads(responses: Sequence[Response], values: Sequence[float], k: Settings) -> list[float]:
    def spread(group: list[float]) -> float:
        squares = math.fsum((v - mean(group)) ** 2 for v in group)
        return math.sqrt(squares / (len(group) - (1 if k.sample_std else 0)))

    return [spread(group) for group in by_group(responses, values)]


def divisors(responses: Sequence[Response], values: Sequence[float], k: Settings) -> list[float]:
    return [max(spread, k.std_floor) + EPS for spread in spreads(responses, values, k)]


def normalised(responses: Sequence[Response], values: Sequence[float], k: Settings) -> list[float]:
    return [x / d for x, d in zip(centred(responses, values), divisors(responses, values, k), strict=True)]


def grpo_values(responses: Sequence[Response], k: Settings) -> list[float]:
    return normalised(responses, [r.task for r in responses], k)


def spread_out(responses: Sequence[Response], values: Sequence[float]) -> list[Tokens]:
    return [on_mask(r, [v] * len(r.mask)) for r, v in zip(responses, values, strict=True)]


def puu_parts(responses: Sequence[Response], k: Settings, alpha: float) -> Fields:
    """A^U, A^task|U, A^T|U, and the standard deviation before the floor."""
    task, teacher = [r.task for r in responses], [teacher_reward(r) for r in responses]
    unified = [a + alpha * b for a, b in zip(task, teacher, strict=True)]
    below = divisors(responses, unified, k)
    parts = {"unified": unified, "task": task, "teacher": teacher}
    return {"unified_std_B": spreads(responses, unified, k)} | {
        f"advantage_{name}_B": [x / d for x, d in zip(centred(responses, values), below, strict=True)]
        for name, values in parts.items()
    }


def directions(response: Response, s: float, k: Settings) -> Tokens:
    return on_mask(response, [math.tanh(s * gap / (2.0 * k.tau_delta)) for gap in gaps(response)])


def confidence(entropy: float, tau: float) -> float:
    return math.exp(-entropy / tau)


def confidences(response: Response, k: Settings) -> Tokens:
    pairs = zip(response.entropy, response.mask, strict=True)
    return [confidence(h, k.tau_entropy) if m else 0.0 for h, m in pairs]


def centre_of(response: Response, d: Tokens, tau: float | None) -> float:
    """mu^c with weights relative to the most confident token; tau None means c = 1."""
    low = min(response.entropy[t] for t in response.valid)
    weight = {t: 1.0 if tau is None else math.exp(-(response.entropy[t] - low) / tau) for t in response.valid}
    return math.fsum(weight[t] * d[t] for t in response.valid) / math.fsum(weight.values())


Credit = tuple[Tokens, Tokens, Tokens, float]


def ecr(response: Response, s: float, k: Settings) -> Credit:
    d, c = directions(response, s, k), confidences(response, k)
    return _residual(response, c, d, centre_of(response, d, k.tau_entropy))


def ecr_no_entropy(response: Response, s: float, k: Settings) -> Credit:
    d, c = directions(response, s, k), [float(m) for m in response.mask]
    return _residual(response, c, d, centre_of(response, d, None))


def ecr_no_projection(response: Response, s: float, k: Settings) -> Credit:
    return _residual(response, confidences(response, k), directions(response, s, k), 0.0)


def ecr_no_gap(response: Response, s: float, k: Settings) -> Credit:
    c = confidences(response, k)
    middle = mean([c[t] for t in response.valid])
    q = on_mask(response, [0.5 * s * (x - middle) for x in c])
    return q, [s if m else 0.0 for m in response.mask], c, s * middle


def _residual(response: Response, c: Tokens, d: Tokens, mu: float) -> Credit:
    return on_mask(response, [0.5 * x * (y - mu) for x, y in zip(c, d, strict=True)]), d, c, mu


def redistributed(
    responses: Sequence[Response],
    k: Settings,
    rule: Callable[[Response, float, Settings], Credit] = ecr,
    *,
    alpha: float | None = None,
    whole: bool = False,
) -> Fields:
    out = puu_parts(responses, k, k.alpha if alpha is None else alpha)
    names = ("advantage_BT", "weight_BT", "residual_BT", "direction_BT", "confidence_BT", "centre_B")
    out |= {name: [] for name in names}
    for response, u, a in zip(responses, out["advantage_unified_B"], out["advantage_task_B"], strict=True):
        q, d, c, mu = rule(response, sign(a), k)
        advantage = on_mask(response, [u + k.rho * (u if whole else a) * x for x in q])
        for name, values in zip(names, (advantage, [1.0 + k.rho * x for x in q], q, d, c, mu), strict=True):
            out[name].append(values)
    return out


def grpo(responses: Sequence[Response], k: Settings) -> Fields:
    values = grpo_values(responses, k)
    std = spreads(responses, [r.task for r in responses], k)
    return {"advantage_BT": spread_out(responses, values), "advantage_task_B": values, "unified_std_B": std}


def clipped_gaps(responses: Sequence[Response]) -> list[Tokens]:
    return [[clip(g, -5.0, 5.0) for g in gaps(r)] for r in responses]


def weighted(responses: Sequence[Response], k: Settings, weights: Callable[[Response, float], Tokens]) -> Fields:
    """``A = w A^GRPO``."""
    values = grpo_values(responses, k)
    weight = [on_mask(r, weights(r, a), 1.0) for r, a in zip(responses, values, strict=True)]
    rows = [on_mask(r, [x * a for x in w]) for r, w, a in zip(responses, weight, values, strict=True)]
    return grpo(responses, k) | {"advantage_BT": rows, "weight_BT": weight}


def distilled_rl(responses: Sequence[Response], k: Settings) -> Fields:
    def weights(response: Response, a: float) -> Tokens:
        ratio = [clip(math.exp(clip(gap, -80.0, 80.0)), 1.0 / 3.0, 3.0) for gap in gaps(response)]
        geometric = math.exp(mean([math.log(ratio[t]) for t in response.valid]))
        return [x / geometric if a > 0 else 1.0 for x in ratio]

    return weighted(responses, k, weights)


def rlsd(responses: Sequence[Response], k: Settings) -> Fields:
    mix, bound = k.mix, k.bound

    def weights(response: Response, a: float) -> Tokens:
        ratio = [clip(math.exp(clip(sign(a) * g, -80.0, 80.0)), 1.0 - bound, 1.0 + bound) for g in gaps(response)]
        return [(1.0 - mix) + mix * x for x in ratio]

    return weighted(responses, k, weights)


def turn_weights(response: Response) -> Tokens:
    """T-DUR: 1 - (1 - d)(1 - h), both min-max scaled over the response's turns; a flat statistic is 1/2."""
    label = response.segments if response.segments is not None else (0,) * len(response.mask)
    delta = gaps(response)
    members = {turn: [t for t in response.valid if label[t] == turn] for turn in {label[t] for t in response.valid}}
    disagreement = _min_max({turn: mean([abs(delta[t]) for t in ts]) for turn, ts in members.items()})
    surprisal = _min_max({turn: mean([-response.old[t] for t in ts]) for turn, ts in members.items()})
    weight = {turn: 1.0 - (1.0 - disagreement[turn]) * (1.0 - surprisal[turn]) for turn in members}
    return [weight[label[t]] if m else 1.0 for t, m in enumerate(response.mask)]


def _min_max(values: dict[int, float]) -> dict[int, float]:
    low, high = min(values.values()), max(values.values())
    return {k: 0.5 if high - low < 1e-8 else (v - low) / (high - low) for k, v in values.items()}


def atod(responses: Sequence[Response], k: Settings) -> Fields:
    progress = min(k.step / 80.0, 1.0)
    kappa, rise = max(0.1, 1.0 - 0.9 * progress), 1.0 + progress
    values, weight = grpo_values(responses, k), [turn_weights(r) for r in responses]
    rows = [
        on_mask(r, [kappa * x * g + rise * a for x, g in zip(w, gaps(r), strict=True)])
        for r, w, a in zip(responses, weight, values, strict=True)
    ]
    return grpo(responses, k) | {"advantage_BT": rows, "weight_BT": weight}


def separate_norm(responses: Sequence[Response], k: Settings) -> Fields:
    task = grpo_values(responses, k)
    teacher = normalised(responses, [teacher_reward(r) for r in responses], k)
    total = [a + k.alpha * b for a, b in zip(task, teacher, strict=True)]
    return {"advantage_BT": spread_out(responses, total), "advantage_task_B": task, "advantage_teacher_B": teacher,
            "unified_std_B": spreads(responses, [r.task for r in responses], k)}  # fmt: skip


def puu(responses: Sequence[Response], k: Settings) -> Fields:
    parts = puu_parts(responses, k, k.alpha)
    return parts | {"advantage_BT": spread_out(responses, parts["advantage_unified_B"])}


def g_opd(responses: Sequence[Response], k: Settings) -> Fields:
    """The authors' form: minus (moved so far - strength times what the teacher would move)."""
    rows = []
    for r in responses:
        tokens = zip(r.old, r.teacher, r.initial, strict=True)
        raw = [-((o - i) - k.extrapolation * (t - i)) for o, t, i in tokens]
        rows.append(on_mask(r, [clip(x, -5.0, 5.0) for x in raw]))
    return {"advantage_BT": rows}


def saf_opd(responses: Sequence[Response], k: Settings) -> Fields:
    all_gaps = [gaps(r) for r in responses]
    tokens = [row[t] for r, row in zip(responses, all_gaps, strict=True) for t in r.valid]
    first = k.state.get("first_kl", -math.fsum(tokens) / len(tokens))
    now, ended = k.step + 1, k.state.get("warmup_end")
    if ended is None and (now >= k.warmup or (first > 0 and (first - -mean(tokens)) / first >= 0.2)):
        ended = now
    rise = min((now if ended is None else ended) / k.warmup, 1.0)
    fall = 1.0 if ended is None else max(0.0, 1.0 - (now - ended) / max(1.0, k.total_steps - ended))
    values, out = grpo_values(responses, k), []
    for r, row, a in zip(responses, all_gaps, values, strict=True):
        sizes = sorted(abs(row[t]) for t in r.valid)
        place = (1.0 - k.keep) * (len(sizes) - 1)
        low = sizes[math.floor(place)]
        least = low + (place - math.floor(place)) * (sizes[math.ceil(place)] - low)
        term = [k.bound * math.tanh(g) if abs(g) >= least else 0.0 for g in row]
        out.append(on_mask(r, [a + rise * fall * x for x in term]))
    state = {"first_kl": first} | ({} if ended is None else {"warmup_end": ended})
    return grpo(responses, k) | {"advantage_BT": out, "state": state}


def beyond_margin(response: Response, margin: float) -> float:
    """Mean over the tokens of how far the gap, at most 5 nats, lies beyond the margin, with its sign."""
    return mean([sign(g) * max(0.0, min(abs(g), 5.0) - margin) for g in (gaps(response)[t] for t in response.valid)])


def uecr_trust(responses: Sequence[Response], k: Settings) -> Fields:
    lead, groups = k.memory * k.state.get("lead", 0.0), k.memory * k.state.get("groups", 0.0)
    for label in {r.group for r in responses}:
        group = [r for r in responses if r.group == label]
        middle = mean([r.task for r in group])
        kept = [(r.task - middle, math.exp(min(0.0, k.horizon * beyond_margin(r, k.margin)))) for r in group]
        if len({r.task for r in group}) > 1:
            lead += mean([x for verdict, x in kept if verdict > 0]) - mean([x for verdict, x in kept if verdict < 0])
            groups += 1.0
    kappa = max(0.0, lead / (groups + 1.0))
    opd = [[kappa * x for x in row] for row in clipped_gaps(responses)]
    state = {"kappa": kappa, "lead": lead, "groups": groups}
    return mixture(responses, k, kappa) | {"advantage_opd_BT": opd, "state": state}


def mixture(responses: Sequence[Response], k: Settings, kappa: float) -> Fields:
    """A^GRPO + kappa (A^UECR - A^GRPO); what of it follows from which response, token and judge."""
    uecr, grpo_B = redistributed(responses, k), grpo_values(responses, k)
    task_B = [g + kappa * (t - g) for g, t in zip(grpo_B, uecr["advantage_task_B"], strict=True)]
    unified_B = [g + kappa * (u - g) for g, u in zip(grpo_B, uecr["advantage_unified_B"], strict=True)]
    advantage_BT = [
        on_mask(r, [g + kappa * (x - g) for x in row])
        for r, g, row in zip(responses, grpo_B, uecr["advantage_BT"], strict=True)
    ]
    # A token's share of the verifier's credit that is not its response's: (A - A^U) / A^task|U = rho q.
    q_BT = [
        [0.0 if t == 0.0 else kappa * own * x / t for x in row]
        for t, own, row in zip(task_B, uecr["advantage_task_B"], uecr["residual_BT"], strict=True)
    ]
    return uecr | {
        "advantage_BT": advantage_BT, "advantage_unified_B": unified_B, "advantage_task_B": task_B,
        "advantage_teacher_B": [kappa * x for x in uecr["advantage_teacher_B"]],
        "residual_BT": q_BT, "weight_BT": [[1.0 + k.rho * x for x in row] for row in q_BT],
    }  # fmt: skip


def top_d(responses: Sequence[Response], k: Settings) -> Fields:
    mix, returns = k.mix, []
    for r in responses:
        reward = [math.log(mix * math.exp(clip(g, -700.0, 700.0)) + 1.0 - mix) for g in gaps(r)]
        later = {t: [reward[u] for u in r.valid if u > t] for t in r.valid}
        returns.append({t: reward[t] + (mean(later[t]) if later[t] else 0.0) for t in r.valid})
    rows = []
    for r, own in zip(responses, returns, strict=True):
        group = [
            x for other, row in zip(responses, returns, strict=True) if other.group == r.group for x in row.values()
        ]
        spread = math.sqrt(math.fsum((x - mean(group)) ** 2 for x in group) / len(group))
        rows.append([(own[t] - mean(group)) / (spread + EPS) if t in own else 0.0 for t in range(len(r.mask))])
    return {"advantage_BT": rows}


def gamma_opd(responses: Sequence[Response], k: Settings) -> Fields:
    rows, verdicts = [], [2.0 * r.task - 1.0 for r in responses]
    for r, verdict in zip(responses, verdicts, strict=True):
        gap, credit = gaps(r), dict[int, float]()
        for place, t in enumerate(r.valid):
            credit[t] = math.fsum(k.discount**ahead * gap[u] for ahead, u in enumerate(r.valid[place:]))
        size = mean([abs(c) for c in credit.values()])
        bounded = {t: c / (size + abs(c)) if size else 0.0 for t, c in credit.items()}
        rows.append([bounded[t] + verdict if t in bounded else 0.0 for t in range(len(r.mask))])
    return {"advantage_BT": rows, "advantage_task_B": verdicts}


def iw_opd(responses: Sequence[Response], k: Settings) -> Fields:
    weight = []
    for r in responses:
        sizes = [abs(g) for g in gaps(r)]
        total = max(math.fsum(sizes), 1e-8)
        trust = [1.0 - math.fsum(sizes[:t]) / total for t in range(len(sizes))]
        weight.append(on_mask(r, [1.0 + k.amplification * x for x in trust], 1.0))
    rows = [
        on_mask(r, [w * g for w, g in zip(ws, gaps(r), strict=True)]) for r, ws in zip(responses, weight, strict=True)
    ]
    return {"advantage_BT": rows, "weight_BT": weight}


def opsa(responses: Sequence[Response], k: Settings, *, by_entropy: bool = True) -> Fields:
    places = [(r.old[t], row, t) for row, r in enumerate(responses) for t in r.valid]
    chosen = {(row, t) for _, row, t in sorted(places)[: max(1, int(k.share * len(places)))]}
    entropies = [responses[row].student_entropy[t] for row, t in chosen]
    low, spread = min(entropies), max(entropies) - min(entropies)

    def value(row: int, t: int) -> float:
        if (row, t) not in chosen:
            return 0.0
        return -0.5 - (0.5 * (responses[row].student_entropy[t] - low) / spread if by_entropy and spread else 0.0)

    columns = [range(len(r.mask)) for r in responses]
    return {
        "advantage_BT": [[value(row, t) for t in each] for row, each in enumerate(columns)],
        "loss_mask_BT": [[float((row, t) in chosen) for t in each] for row, each in enumerate(columns)],
    }


#: ``shuffled_entropy`` is UECR on responses whose entropies were permuted beforehand: which permutation a seed
#: means is the package's own business.
METHODS: dict[str, Callable[[Sequence[Response], Settings], Fields]] = {
    "grpo": grpo,
    "pg_opd": lambda r, k: {"advantage_BT": clipped_gaps(r)},
    "grpo_plus_opd": lambda r, k: grpo(r, k) | {"advantage_opd_BT": clipped_gaps(r)},
    "distilled_rl": distilled_rl,
    "atod": atod,
    "separate_norm": separate_norm,
    "puu": puu,
    "uecr": redistributed,
    "ecr_no_entropy": lambda r, k: redistributed(r, k, ecr_no_entropy),
    "ecr_no_projection": lambda r, k: redistributed(r, k, ecr_no_projection),
    "ecr_full_advantage": lambda r, k: redistributed(r, k, whole=True),
    "ecr_alpha_zero": lambda r, k: redistributed(r, k, alpha=0.0),
    "ecr_no_gap": lambda r, k: redistributed(r, k, ecr_no_gap),
    "shuffled_entropy": redistributed,
    "uecr_trust": uecr_trust,
    "rlsd": rlsd,
    "g_opd": g_opd,
    "saf_opd": saf_opd,
    "top_d": top_d,
    "iw_opd": iw_opd,
    "gamma_opd": gamma_opd,
    "opsa_control": lambda r, k: opsa(r, k, by_entropy=False),
    "opsa": opsa,
}
