"""NeMo-RL's forward over micro-batches, handing each one's raw logits to our columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.impl import Columns
from nemo_uecr.nemo.layout import MicroBatch


class MegatronForward:
    """Runs a worker's model as NeMo-RL scores log-probabilities, but neither divides nor filters the logits."""

    def __init__(self, worker: Any) -> None:
        """Remember whose model it is."""
        self._worker = worker

    def __call__(self, data: Mapping[str, Any], columns: Columns) -> list[dict[str, Tensor]]:
        """The columns of every micro-batch in order; empty on all pipeline stages but the last."""
        worker = self._worker

        def after_forward(data_dict: Mapping[str, Any], starts: Tensor | None, logits: Tensor) -> dict[str, Tensor]:
            packed = worker.cfg["sequence_packing"]["enabled"]
            micro = MicroBatch(
                data_dict["input_ids"].to(logits.device),
                data_dict["input_lengths"].to(logits.device),
                starts if packed else None,
            )
            return columns(logits, micro)

        return upstream.megatron_score_forward(worker, data, after_forward)
