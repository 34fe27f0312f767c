"""The methods by name: each a line of `nemo_uecr.method_registry` with the function of that name."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor

from nemo_uecr.core.methods.view import View
from nemo_uecr.core.records import Advantages, ScoredBatch, Settings
from nemo_uecr.errors import ConfigError, ScoreError
from nemo_uecr.method_registry import OUTSIDE_CORE, REGISTRY, Entry

#: What becomes of an empty response and of a group of one.
Unusable = Literal["error", "zero"]


class Method(Entry):
    """One way to turn a scored batch into token advantages."""

    def compute(self, batch: ScoredBatch, settings: Settings, *, detail: bool = False) -> Advantages:
        """Token advantages of a batch, detached.

        Args:
            batch: the responses with their scores.
            settings: the method's scalars; those it does not use are ignored.
            detail: also return direction, confidence, residual and weight as [B, T] tensors.

        Raises:
            ConfigError: If a setting that the method uses was not given.
            ScoreError: If a score is missing, not finite, or a response or group cannot be used.
        """
        known = {*vars(settings), "std", *OUTSIDE_CORE} - {"parameters", "sample_std"}
        if unknown := self.settings - known:
            listed = ", ".join(sorted(known))
            raise ConfigError(f"{self.name} reads the setting {', '.join(unknown)}; expected settings of {listed}")
        # opd_coef multiplies the second surrogate in the loss.
        given = settings.given((self.core_settings - {"opd_coef"}) | self.parameters.keys(), self.name)
        for name, parameter in self.parameters.items():
            parameter.check(f"parameters.{name}", given[name])
        std_floor, sample_std = given.pop("std_floor", 0.0), bool(given.pop("sample_std", False))
        view = View(batch, std_floor=std_floor, sample_std=sample_std, detail=detail)
        function = getattr(import_module(f"{__name__}.{self.file}"), self.name)
        with torch.no_grad():
            found: Advantages = function(view, **given)
            if found.loss_mask_BT is None:
                return found
            kept_BT = batch.mask_BT & found.loss_mask_BT
            surrogates: dict[str, Any] = {
                name: torch.where(kept_BT, advantage_BT, 0.0)
                for name in ("advantage_BT", "advantage_opd_BT")
                if (advantage_BT := getattr(found, name)) is not None
            }
            return replace(found, loss_mask_BT=kept_BT, **surrogates)


METHODS: dict[str, Method] = {name: Method(**vars(entry)) for name, entry in REGISTRY.items()}


def method_advantage(
    name: str, batch: ScoredBatch, *, detail: bool = False, unusable: Unusable = "error", **settings: Any
) -> Advantages:
    """Token advantages of a batch by one of the methods, detached.

    Args:
        name: the method, as in ``method.name`` of a configuration.
        batch: the responses with the scores that the method reads.
        detail: also return direction, confidence, residual and weight as [B, T] tensors.
        unusable: "error" refuses an empty response and a group of one; with "zero" an empty response takes no part in
            its group, and it and a response that is left alone get advantage 0. For padded batches.
        settings: the method's scalars and parameters by name, those it does not use ignored; ``std_floor`` is 0,
            ``sample_std`` False and a parameter its default where they are not given.

    Raises:
        ConfigError: If there is no such method, or a setting is missing or out of range.
        ScoreError: If a score is missing, not finite, or a response or group cannot be used.
    """
    if name not in METHODS:
        raise ConfigError(f"no method {name!r}; expected one of {', '.join(METHODS)}")
    method = METHODS[name]
    known = {*vars(Settings()), *method.parameters} - {"parameters"}
    if unknown := settings.keys() - known:
        listed = ", ".join(sorted(known))
        raise ConfigError(f"{name}: unknown setting {', '.join(sorted(unknown))}; expected of {listed}")
    parameters = {key: settings.pop(key, parameter.default) for key, parameter in method.parameters.items()}
    settings["state"] = settings.get("state") or {}  # None at the first step
    scalars = Settings(**{"std_floor": 0.0, "sample_std": False, **settings}, parameters=parameters)
    if unusable not in ("error", "zero"):
        raise ConfigError(f"unusable is {unusable!r}; expected 'error' or 'zero'")
    usable_B = _usable(batch, method.compares) if unusable == "zero" else None
    if usable_B is None or bool(usable_B.all()):
        return method.compute(batch, scalars, detail=detail)
    nothing = not bool(usable_B.any())
    found = method.compute(_stand_in(batch) if nothing else batch.select(usable_B), scalars, detail=detail)
    whole = {}
    for field, part in vars(found).items():
        if isinstance(part, Tensor):
            make = torch.ones if field == "weight_BT" else torch.zeros
            whole[field] = make(len(usable_B), *part.shape[1:], dtype=part.dtype, device=part.device)
            if not nothing:
                whole[field][usable_B] = part
    return Advantages(**whole, state=scalars.state if nothing and found.state else found.state)


def _stand_in(batch: ScoredBatch) -> ScoredBatch:
    """Two equal responses, for the fields that a method returns where no response is usable."""
    first = batch.select(torch.arange(batch.responses, device=batch.mask_BT.device) < 1)
    tensors = {name: value for name, value in vars(first).items() if isinstance(value, Tensor)}
    twice = {name: torch.zeros_like(value).repeat(2, *[1] * (value.ndim - 1)) for name, value in tensors.items()}
    return replace(first, **twice | {"mask_BT": torch.ones_like(twice["mask_BT"])}, sample_ids=None)


def _usable(batch: ScoredBatch, compares: bool) -> Tensor:
    """[B] bool: responses with a token, whose group has another one where the method compares them."""
    usable_B = batch.mask_BT.any(dim=1)
    if not compares:
        return usable_B
    group_P, index_B = torch.unique(batch.group_B, return_inverse=True)
    if len(group_P) == batch.responses:
        raise ScoreError(
            f"each of the {batch.responses} responses is alone in its group: every advantage would be 0; expected the "
            "same group for all responses to one prompt"
        )
    return usable_B & (torch.bincount(index_B[usable_B], minlength=len(group_P)) > 1)[index_B]


def uecr_advantage(
    task_reward: Tensor,
    group: Tensor | Sequence[Hashable],
    mask: Tensor,
    *,
    old_logp: Tensor,
    teacher_logp: Tensor,
    teacher_entropy: Tensor,
    alpha: float,
    rho: float,
    tau_delta: float,
    tau_entropy: float,
    std_floor: float = 0.0,
    sample_std: bool = False,
    unusable: Unusable = "error",
) -> Tensor:
    """UECR's token advantages ``A = A^U + rho A^task|U q`` of a whole batch.

    Args:
        task_reward: [...] verifier reward.
        group: [...] prompt identities, or a flat sequence of them (strings, UUIDs).
        mask: [..., T] bool or integer, the sampled tokens; scores elsewhere are never read.
        old_logp: [..., T] log pi_old(y_t) at temperature 1, nats; the policy's ratio wants the rollout temperature's.
        teacher_logp: [..., T] log pi_T(y_t) at temperature 1, nats.
        teacher_entropy: [..., T] full-vocabulary teacher entropy +H at temperature 1, nats.
        alpha: weight of the teacher's reward.
        rho: redistribution strength, 0 <= rho < 1.
        tau_delta: gap scale, nats, > 0.
        tau_entropy: entropy scale, nats, > 0.
        std_floor: lower bound of the group's standard deviation; 0 is the paper.
        sample_std: divide the variance by G - 1 instead of G.
        unusable: as for `method_advantage`.

    Returns:
        [..., T] in the dtype of the scores, 0 where the mask is False.

    Raises:
        ConfigError: If a setting is out of range.
        ScoreError: If a score is not finite, or a response or group cannot be used.

    References:
        eq:unified-advantage, eq:final-advantage.
    """
    if mask.shape[:-1].numel() == 0:
        return torch.zeros_like(old_logp)
    batch = ScoredBatch.of(task_reward, group, mask, old_logp, teacher_logp, teacher_entropy)
    found = method_advantage(
        "uecr", batch, unusable=unusable, alpha=alpha, rho=rho, tau_delta=tau_delta, tau_entropy=tau_entropy,
        std_floor=std_floor, sample_std=sample_std,
    )  # fmt: skip
    return found.advantage_BT.reshape(mask.shape)
