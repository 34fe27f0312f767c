"""What a method is: its name, its equation, the identities it promises, and one function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_uecr.core.records import Advantages, ScoredBatch, Settings
from nemo_uecr.errors import ConfigError
from nemo_uecr.method_registry import REGISTRY, Entry

Compute = Callable[[ScoredBatch, Settings, bool], Advantages]


@dataclass(frozen=True)
class Method:
    """One way to turn a scored batch into token advantages.

    Attributes:
        name: key of ``method.name``, and of the line in the registry that says what the method reads.
        equation: the token advantage on one line.
        provenance: where the equation comes from, and what is not in the paper.
        identities: names in `nemo_uecr.core.invariants.IDENTITIES` that must hold; a violation fails the run.
        monitored: names there that are logged and never fail.
        advantages: the computation; the flag asks for the token-level detail fields as well.
    """

    name: str
    equation: str
    provenance: str
    identities: tuple[str, ...]
    advantages: Compute
    monitored: tuple[str, ...] = ()

    @property
    def entry(self) -> Entry:
        """The method's line in the registry."""
        return REGISTRY[self.name]

    @property
    def settings(self) -> frozenset[str]:
        """The `Settings` fields that it uses."""
        return self.entry.core_settings

    @property
    def inputs(self) -> frozenset[str]:
        """The fields of `ScoredBatch` that it reads beside rewards, groups, mask and old policy."""
        return self.entry.scores

    @property
    def needs_teacher(self) -> bool:
        """Whether the method reads any teacher score; where False no teacher is ever loaded."""
        return self.entry.needs_teacher

    def compute(self, batch: ScoredBatch, settings: Settings, *, detail: bool = False) -> Advantages:
        """Token advantages of a batch, detached.

        Args:
            batch: the responses with their scores.
            settings: the method's scalars; those it does not use are ignored.
            detail: also return direction, confidence, residual and weight as [B, T] tensors.

        Raises:
            ConfigError: If a setting that the method uses was not given, or its result is none that a loss can take.
            ScoreError: If a score is missing, not finite, or a response or group cannot be used.
        """
        for name in sorted(self.settings):
            settings.need(name, self.name)
        for name, parameter in self.entry.parameters.items():
            parameter.check(f"parameters.{name}", settings.parameter(name, self.name))
        with torch.no_grad():
            return self._checked(self.advantages(batch, settings, detail), batch)

    def _checked(self, found: object, batch: ScoredBatch) -> Advantages:
        """Refuse what would train as something else: values of responses, another precision, a stray surrogate."""
        if not isinstance(found, Advantages):
            raise ConfigError(f"method {self.name} returned {type(found).__name__}; expected core.records.Advantages")
        want = batch.old_logp_BT
        for name, value in (("advantage", found.advantage_BT), ("advantage_opd", found.advantage_opd_BT)):
            if value is not None and (value.shape != want.shape or value.dtype != want.dtype):
                raise ConfigError(
                    f"method {self.name} returned {name} of shape {list(value.shape)} and {value.dtype}; expected "
                    f"{list(want.shape)} and {want.dtype}, one advantage a token"
                )
        if found.advantage_opd_BT is not None and "opd_coef" not in self.settings:
            raise ConfigError(
                f"method {self.name} returned advantage_opd, which opd_coef multiplies in the loss; add opd_coef to "
                "the settings in its line of method_registry.py"
            )
        return found


def broadcast(batch: ScoredBatch, value_B: Tensor) -> Tensor:
    """[B, T] with each response's value on its sampled tokens and 0 elsewhere, in the dtype of the scores."""
    out_BT = torch.zeros_like(batch.old_logp_BT, memory_format=torch.contiguous_format)
    stored_B = value_B.to(out_BT.dtype)
    for block in batch.blocks:
        block.of(out_BT).copy_(stored_B[block.rows].unsqueeze(1) * block.of(batch.mask_BT))
    return out_BT


def stored(value_B: Tensor, batch: ScoredBatch) -> Tensor:
    """A float64 response-level quantity in the dtype of the scores, as it is kept and handed on."""
    return value_B.to(batch.old_logp_BT.dtype)


def weighted(
    batch: ScoredBatch,
    advantage_BT: Tensor,
    weight_BT: Tensor | None,
    *,
    task_B: Tensor,
    std_B: Tensor,
    reward_B: Tensor,
) -> Advantages:
    """What a method that weights GRPO's advantage returns; ``weight_BT`` is None unless detail was asked for."""
    return Advantages(
        advantage_BT=advantage_BT,
        weight_BT=weight_BT,
        advantage_task_B=stored(task_B, batch),
        teacher_reward_B=stored(reward_B, batch),
        unified_std_B=stored(std_B, batch),
    )
