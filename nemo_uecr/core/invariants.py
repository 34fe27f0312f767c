"""The identities as residuals: how far is a computed batch from what its method promises?

Tests, run telemetry and audits call the same functions. Shape legend: B = responses, T = tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.core.functions import compute
from nemo_uecr.core.methods import Advantages, Method, method_of
from nemo_uecr.core.methods.uecr import Puu
from nemo_uecr.core.record import ScoredBatch
from nemo_uecr.errors import ConfigError, InvariantError, ScoreError

#: (method, batch, advantages) -> [B] residual of each response, 0 when the identity holds exactly.
ResidualOf = Callable[[Method, ScoredBatch, Advantages], Tensor]


def finite(method: Method, batch: ScoredBatch, advantages: Advantages) -> Tensor:
    """Number of non-finite advantages of each response, of either surrogate; [B]."""
    bad_BT = ~advantages.advantage_BT.isfinite()
    if advantages.advantage_opd_BT is not None:
        bad_BT = bad_BT | ~advantages.advantage_opd_BT.isfinite()
    return batch.token_sum(bad_BT)


def decomposition(method: Method, batch: ScoredBatch, advantages: Advantages) -> Tensor:
    """``|A^U - (A^task|U + alpha A^T|U)| / max(1, |A^task|U| + |alpha A^T|U|)``; [B] (prop:adv-decomposition)."""
    unified_B = _present(advantages.advantage_unified_B, "advantage_unified").to(torch.float64)
    task_B = _present(advantages.advantage_task_B, "advantage_task").to(torch.float64)
    alpha = method.alpha if isinstance(method, Puu) else 0.0
    teacher_B = alpha * _present(advantages.advantage_teacher_B, "advantage_teacher").to(torch.float64)
    return (unified_B - (task_B + teacher_B)).abs() / (task_B.abs() + teacher_B.abs()).clamp_min(1.0)


def budget(method: Method, batch: ScoredBatch, advantages: Advantages) -> Tensor:
    """The larger of ``|mean_t w - 1|`` and ``|mean_t A - A^U| / max(1, |A^task| + |A^U|)``; [B] (prop:invariants).

    Without PUU, A^task stands for A^U. Where there is neither, the weights count alone.
    """
    task_B = advantages.advantage_task_B
    weight_B = (batch.token_mean(_present(advantages.weight_BT, "weight")) - 1.0).abs()
    if task_B is None:
        return weight_B
    whole_B = task_B if advantages.advantage_unified_B is None else advantages.advantage_unified_B
    moved_B = (batch.token_mean(advantages.advantage_BT) - whole_B).abs()
    return weight_B.maximum(moved_B / (task_B.abs() + whole_B.abs()).clamp_min(1.0))


def residual_bound(method: Method, batch: ScoredBatch, advantages: Advantages) -> Tensor:
    """``max(0, max_t |q| - 1)``; [B]."""
    residual_BT = _present(advantages.residual_BT, "residual")
    return (residual_BT.abs().double() - 1.0).clamp_min(0.0).masked_fill(~batch.mask_BT, 0.0).amax(dim=1)


def sign_kept(method: Method, batch: ScoredBatch, advantages: Advantages) -> Tensor:
    """Number of tokens whose weight is not positive or, without PUU, whose sign is not the verdict's; [B]."""
    flipped_BT = _present(advantages.weight_BT, "weight") <= 0
    if advantages.advantage_task_B is not None and advantages.advantage_unified_B is None:
        flipped_BT = flipped_BT | (advantages.advantage_BT * advantages.advantage_task_B.unsqueeze(1) < 0)
    return batch.token_sum(flipped_BT)


def log_weight(method: Method, batch: ScoredBatch, advantages: Advantages) -> Tensor:
    """``|mean_t log w|`` over the sampled tokens where the advantage is positive (geometric mean 1); [B]."""
    mean_B = batch.token_mean(_present(advantages.weight_BT, "weight").double().log())
    return mean_B.abs() * (_present(advantages.advantage_task_B, "advantage_task") > 0)


#: Statement, for messages, and residual of each identity.
IDENTITIES: dict[str, tuple[str, ResidualOf]] = {
    "finite": ("every advantage is finite", finite),
    "decomposition": ("A^U = A^task|U + alpha A^T|U", decomposition),
    "budget": ("a response's token weights average to 1, its token advantages to its own", budget),
    "residual_bound": ("|q| <= 1", residual_bound),
    "sign_kept": ("every token weight is positive, and no token's sign flips", sign_kept),
    "log_weight": ("the log weights of a positive response average to 0", log_weight),
}
#: Counts have no tolerance: one bad token is one too many.
EXACT = frozenset({"finite", "sign_kept"})


def check_identities(
    method: Method, batch: ScoredBatch, advantages: Advantages, tolerances: Mapping[str, float]
) -> dict[str, float]:
    """Worst residual of every identity that the method declares or monitors, by name.

    Args:
        method: declares which identities hold.
        batch: what the advantages were computed from.
        advantages: the method's.
        tolerances: largest allowed residual by identity name; counts and monitored ones need none.

    Raises:
        ConfigError: If there is no such identity, or no tolerance for it.
        InvariantError: If a declared identity is violated, naming the worst response.
    """
    worst: dict[str, float] = {}
    # A violated count is the graver: it comes first.
    for name in (*sorted(method.identities, key=lambda each: each not in EXACT), *method.monitored):
        if name not in IDENTITIES:
            raise ConfigError(f"{method.name} declares {name!r}; expected identities of {', '.join(IDENTITIES)}")
        if name in method.identities and name not in EXACT | tolerances.keys():
            raise ConfigError(
                f"no tolerance is given for {name!r}, an identity of {method.name}; give one, such as 1e-6"
            )
        statement, residual_of = IDENTITIES[name]
        residual_B = residual_of(method, batch, advantages)
        row = int(residual_B.argmax())
        worst[name] = float(residual_B[row])
        if name in method.monitored:
            continue
        allowed = 0.0 if name in EXACT else tolerances[name]
        if not worst[name] <= allowed:  # written so that a NaN residual fails too
            raise InvariantError(
                f"identity '{name}' ({statement}) is off by {worst[name]:.3g} at {batch.name_of(row)}; "
                f"expected at most {allowed:g} for method {method.name}"
            )
    return worst


def smoke_test(method: Method, tolerances: Mapping[str, float]) -> None:
    """Run and check the method on a synthetic batch, so that a slip in it shows before a model is loaded.

    Raises:
        ConfigError: If the method refuses two groups of eight responses of 20 tokens, or an identity does not hold.
    """
    group_B, place_BT = torch.arange(16) // 8, torch.arange(320).reshape(16, 20)
    nats_BT = 0.2 + place_BT.double() / 180
    old_BT = -0.2 - (place_BT * 37 % 256).double() / 180  # a gap of either sign and any size within each response
    made: dict[str, Any] = {
        f"{score}_BT": (nats_BT if "entropy" in score else -nats_BT).roll(5 * place, dims=1)
        for place, score in enumerate(sorted(method.reads))
    }
    mask_BT = nats_BT > 0
    mask_BT[1, 9:] = mask_BT[2, 1:] = False  # a shorter response, and one of a single token
    try:
        batch = ScoredBatch((torch.arange(16) % 2).double(), group_B, mask_BT, old_BT, **made)
        check_identities(method, batch, found := compute(method, batch), tolerances)
        for name, value in (found.state or {}).items():
            if not isinstance(value, float | int):
                raise InvariantError(f"state[{name!r}] is a {type(value).__name__}; expected a float")
    except (ScoreError, InvariantError, RuntimeError) as error:  # torch's own for shapes that do not fit
        home = type(method).__module__.replace(".", "/") + ".py" if method.file_sha256 is None else "its file"
        raise ConfigError(f"method {method.name} on a synthetic batch: {error} (see {home})") from error


def _present(tensor: Tensor | None, name: str) -> Tensor:
    if tensor is None:
        raise InvariantError(
            f"the method returned no {name}; expected it, since one of its `identities` or `monitored` reads it"
        )
    return tensor


def reductions(batch: ScoredBatch) -> dict[str, float]:
    """Largest difference of UECR without its novel parts from its baselines, by condition; equal bits give 0.

        A(rho = 0) = A^U (puu),   A(alpha = rho = 0) = A^GRPO

    Empty where the batch has no teacher's scores.
    """
    if batch.teacher_logp_BT is None or batch.teacher_entropy_BT is None:
        return {}
    neutral = {"rho": 0.0, "tau_delta": 1.0, "tau_entropy": 1.0}
    found = {}
    for condition, baseline, alpha in (("rho = 0", "puu", 1.0), ("alpha = rho = 0", "grpo", 0.0)):
        reduced, expected = (
            compute(method_of(name, neutral | {"alpha": alpha}), batch).advantage_BT for name in ("uecr", baseline)
        )
        found[condition] = float((reduced - expected).abs().max())
    return found
