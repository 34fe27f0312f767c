"""The methods by name: each a line of `nemo_uecr.method_registry` with the function of that name."""

from __future__ import annotations

from importlib import import_module

import torch

from nemo_uecr.core.methods.view import View
from nemo_uecr.core.records import Advantages, ScoredBatch, Settings
from nemo_uecr.method_registry import REGISTRY, Entry

__all__ = ["METHODS", "Method"]


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
        given = {name: settings.need(name, self.name) for name in (*self.core_settings, *self.parameters)}
        for name, parameter in self.parameters.items():
            parameter.check(f"parameters.{name}", given[name])
        given.pop("opd_coef", None)  # multiplies the second surrogate in the loss
        std_floor, sample_std = given.pop("std_floor", 0.0), bool(given.pop("sample_std", False))
        view = View(batch, std_floor=std_floor, sample_std=sample_std, detail=detail)
        function = getattr(import_module(f"{__name__}.{self.file}"), self.name)
        with torch.no_grad():
            found: Advantages = function(view, **given)
        return found


METHODS: dict[str, Method] = {name: Method(**vars(entry)) for name, entry in REGISTRY.items()}
