"""Rollouts by vLLM in the training process: before every draw it is handed the student's weights.

Its log-probabilities never enter the ratio. They are held against the student's own at every step, so that an engine
whose weights have drifted from the student's stops the run.

Shape legend: B = responses, T = response tokens.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from nemo_uecr.config.schema import Config
from nemo_uecr.errors import InvariantError
from nemo_uecr.generation.engines import Decoding, generation_of, sampling_parameters, start_vllm
from nemo_uecr.generation.models import save_adapter
from nemo_uecr.local.rollout import Sampler
from nemo_uecr.local.sequences import Prompt, Response, Sequences
from nemo_uecr.local.token_model import TokenModel


class VllmSampler:
    """A vLLM engine with the student's weights.

    It sleeps between draws on a GPU: then the update has the memory. The order of the calls is vLLM's: first room for
    the weights, then the weights, then room for the cache.
    """

    def __init__(
        self, student: TokenModel, initial: str, config: Config, *, device: torch.device, max_length: int
    ) -> None:
        """Start the engine on the initial student, which has the architecture and the tokenizer."""
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # its worker reads the student's weights where they are
        self._student, self._lora = student, config.student.lora_rank > 0
        self._sleeps = device.type == "cuda"
        self._engine = start_vllm(
            initial,
            dtype=config.student.dtype,
            max_length=max_length,
            lora_rank=config.student.lora_rank,
            gpu_memory_utilization=config.rollout.gpu_memory,
            enable_sleep_mode=self._sleeps,
            logprobs_mode="raw_logprobs",
        )
        self._sleep()

    @contextmanager
    def awake(self) -> Iterator[Sampler]:
        """What draws from the student as it is now: its weights are handed over once for all draws of the block."""
        if self._sleeps:
            self._engine.wake_up(tags=["weights"])
        with tempfile.TemporaryDirectory() as folder:  # vLLM reads an adapter again when it generates
            adapter = self._hand_over(Path(folder))
            if self._sleeps:
                self._engine.wake_up(tags=["kv_cache"])
            yield partial(self._draw, adapter)
        self._sleep()

    def _draw(
        self,
        adapter: object,
        prompts: Sequence[Prompt],
        seeds: Sequence[int],
        decoding: Decoding,
        limits: Sequence[int] | None = None,
    ) -> list[Response]:
        tokens = self._student.tokens
        outputs = self._engine.generate(
            [{"prompt_token_ids": list(prompt.token_ids)} for prompt in prompts],
            sampling_parameters(seeds, decoding, tokens.end_ids, limits, logprobs=0),
            use_tqdm=False,
            lora_request=adapter,
        )
        responses = []
        for output in outputs:
            drawn = output.outputs[0]
            kept = generation_of(drawn, tokens.end_ids)
            places = zip(kept.token_ids, drawn.logprobs, strict=False)
            logp = tuple(logprobs[token].logprob for token, logprobs in places)
            responses.append(Response(kept.token_ids, kept.truncated, tokens.text(kept.token_ids), engine_logp=logp))
        return responses

    def _hand_over(self, folder: Path) -> object:
        """Give the engine the student as it is now; what it had cached was another model's."""
        adapter = None
        if self._lora:
            from vllm.lora.request import LoRARequest

            save_adapter(self._student.module, folder)
            adapter = LoRARequest("student", 1, str(folder), load_inplace=True)
            self._engine.llm_engine.add_lora(adapter)
            adapter = LoRARequest("student", 1, str(folder))  # in place, vLLM would read it for every token again
        else:
            # Not the named parameters: they lack a tied output layer, which would keep its old weights.
            weights = list(self._student.module.state_dict().items())
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        self._engine.reset_prefix_cache()
        return adapter

    def _sleep(self) -> None:
        if self._sleeps:
            self._engine.sleep(level=1 if self._lora else 2)  # level 2 drops the weights; an adapter's base must stay


def rollout_gap(sequences: Sequences, logp_BT: Tensor, *, tolerance: float) -> float:
    """Mean |log pi - log pi_vLLM| of the sampled tokens at temperature 1, nats; refused above ``tolerance``."""
    theirs_N = torch.tensor([logp for response in sequences.responses for logp in response.engine_logp])
    gap = float((logp_BT[sequences.mask_BT].double() - theirs_N.double()).abs().mean())
    if not gap <= tolerance:
        raise InvariantError(
            f"vLLM's log-probabilities are {gap:.3g} nats from the student's on average; expected at most "
            f"tolerances.rollout_gap={tolerance:g}. It sampled with other weights than the student's: use the "
            "vLLM release that docs/one-gpu.md names, or rollout.engine=transformers"
        )
    return gap
