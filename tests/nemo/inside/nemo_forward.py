"""What each rank does in the test of NeMo-RL's own Megatron forward: our scores beside its log-probabilities."""

from __future__ import annotations

import functools
import importlib.machinery
import sys
from types import SimpleNamespace
from typing import Any

import torch

from nemo_uecr.conversion import on_cpu
from nemo_uecr.nemo.worker_scoring import ScoreRequest, score_tokens
from tests.nemo import tiny_qwen3
from tests.nemo.on_ranks import TEMPERATURES, batch
from tests.nemo.source import SOURCE

MICRO = 2


class _Absent(on_cpu._StandIn):
    """Stands in for what NeMo-RL's forward imports for names that a plain model never uses.

    That is megatron-bridge, and a module of a megatron-core newer than PyPI's.
    """

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        absent = ("megatron.bridge.", "megatron.core.transformer.moe.moe_logging.")
        wanted = f"{fullname}.".startswith(absent)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if wanted else None


def score_and_compare(rank: int, *, layouts: list[tuple[int, int]]) -> dict[tuple[int, int], dict[str, Any]]:
    """By tensor and pipeline ranks: our scores through NeMo-RL's forward, and its own log-probabilities at T_r.

    Of the same model and batch: packed, in padded rows, and in bf16, the logits left in it until they are reduced in
    chunks, as the shipped runs do; the last without pipeline stages, between which this model hands float32 on.
    """
    from megatron.core import parallel_state

    megatron_data()
    from nemo_uecr.nemo import upstream

    upstream.check()
    found = {}
    for tensor, pipeline in layouts:
        tiny_qwen3.start(tensor, pipeline)
        forms: dict[str, dict[str, bool]] = {"packed": {}, "padded rows": {"packed": False}}
        if pipeline == 1:
            forms["sixteen bits"] = {"sixteen_bit": True}
        found[tensor, pipeline] = {name: _compared(tensor, pipeline, **form) for name, form in forms.items()}
        parallel_state.destroy_model_parallel()
    return found


def _compared(tensor: int, pipeline: int, *, sixteen_bit: bool = False, packed: bool = True) -> dict[str, Any]:
    from nemo_uecr.nemo import megatron_worker, upstream

    model = tiny_qwen3.parallel_model(tensor, pipeline)
    worker = SimpleNamespace(
        model=model.bfloat16() if sixteen_bit else model, cfg=_settings(tensor, pipeline, packed=packed),
        mcore_state=SimpleNamespace(straggler_timer=None), delegate_pack_to_model=False, defer_fp32_logits=sixteen_bit,
    )  # fmt: skip
    if sixteen_bit:
        worker.cfg["logprob_chunk_size"] = 5
        _keep_sixteen_bits(model)
    ours = score_tokens(
        functools.partial(upstream.score_forward, worker), _data(packed),
        ScoreRequest(TEMPERATURES, True, tiny_qwen3.VOCABULARY, 5), megatron_worker.model_parallel(),
    )  # fmt: skip
    sampling = upstream.temperature_only(TEMPERATURES["rollout_logp"])
    return {
        "ours": ours,
        # As our worker sets it up: the temperature divides logits only.
        "native": _native(worker, _data(packed), sampling if megatron_worker.last_stage() else None),
        "every_stage": _native(worker, _data(packed), sampling),
    }


def _keep_sixteen_bits(model: Any) -> None:
    """NeMo-RL asks its mixed-precision wrapper not to widen the logits; a bare model never widens them."""
    bare = model.forward

    def forward(*arguments: Any, fp32_output: bool, **named: Any) -> Any:
        assert not fp32_output
        return bare(*arguments, **named)

    model.forward = forward


@functools.cache
def megatron_data() -> Any:
    """NeMo-RL's packing, with what it takes from newer Megatron packages: masks of padded rows, a field."""
    sys.path.append(str(SOURCE))
    sys.meta_path.insert(0, _Absent(frozenset()))
    from tests.nemo.inside.on_python_311 import sitecustomize  # noqa: F401, I001 - before NeMo-RL
    from nemo_rl.models.megatron import data

    def causal(data: torch.Tensor, **kwargs: Any) -> Any:
        width = data.shape[1]
        mask = torch.triu(torch.ones(1, 1, width, width, dtype=torch.bool), 1)
        return mask, None, torch.arange(width).expand_as(data)

    def packed_parameters(total_tokens: int, **known: Any) -> Any:
        """megatron-core on PyPI is older than NeMo-RL's and does not know the total."""
        return native(**known)

    native = data.PackedSeqParams
    data.get_ltor_masks_and_position_ids, data.PackedSeqParams = causal, packed_parameters
    return data


def _data(packed: bool) -> Any:
    from nemo_uecr.nemo import upstream

    data = upstream.native("BatchedDataDict")(batch())
    data["token_mask"] = torch.ones(data["input_ids"].shape)
    data["sample_mask"] = torch.ones(data["input_ids"].shape[0])
    return sharded(data, 1, tokens=24, multiple=4)[0][0] if packed else data


def sharded(data: Any, ranks: int, *, tokens: int, multiple: int) -> tuple[Any, list[int]]:
    """NeMo-RL's own sharding with sequence packing: the parts, and the order of their rows."""
    arguments = {
        "algorithm": "modified_first_fit_decreasing", "input_key": "input_ids", "max_tokens_per_microbatch": tokens,
        "input_lengths_key": "input_lengths", "sequence_length_pad_multiple": multiple,
    }  # fmt: skip
    shards, order = data.shard_by_batch_size(ranks, batch_size=None, sequence_packing_args=arguments)
    assert sorted(order) == list(range(len(order)))
    return shards, order


def _settings(tensor: int, pipeline: int, *, packed: bool = True) -> dict[str, Any]:
    return {
        "sequence_packing": {"enabled": packed}, "dynamic_batching": {"enabled": False}, "logprob_batch_size": MICRO,
        "logprob_chunk_size": None, "make_sequence_length_divisible_by": 4,
        "megatron_cfg": {
            "tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline,
            "context_parallel_size": 1, "sequence_parallel": False, "use_linear_ce_fusion_loss": False,
        },
    }  # fmt: skip


def _native(worker: Any, data: Any, sampling: Any) -> torch.Tensor | None:
    """NeMo-RL's own scoring of the same batch, on the last stage."""
    from megatron.core import parallel_state
    from nemo_rl.models.megatron import data as nemo_data
    from nemo_rl.models.megatron import train

    batches, count, size, width, padded = nemo_data.get_microbatch_iterator(
        data, worker.cfg, MICRO, straggler_timer=None, delegate_pack_to_model=False
    )
    with torch.no_grad():
        found = train.megatron_forward_backward(
            model=worker.model, data_iterator=batches, seq_length=padded, mbs=size, num_microbatches=count,
            post_processing_fn=train.LogprobsPostProcessor(worker.cfg, sampling_params=sampling), forward_only=True,
            sampling_params=sampling, defer_fp32_logits=worker.defer_fp32_logits,
        )  # fmt: skip
    if not parallel_state.is_pipeline_last_stage():
        return None
    pad = torch.nn.functional.pad
    return torch.cat([pad(part["logprobs"], (0, width - part["logprobs"].shape[1])) for part in found])
