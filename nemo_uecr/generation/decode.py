"""The decode loop of every Hugging Face causal model: rollouts and evaluation draw their tokens here.

On a CPU finished rows leave after each token. Reading a token on the host makes a GPU wait, so there rows are checked
every `CHECK_EVERY` tokens, and where the model allows it a step is a CUDA graph over keys and values kept in place.

Shape legend: P = different prompts, B = responses in the batch, S = tokens so far or slots for them (prompts are padded
on the left), T = response tokens, V = vocabulary, K = candidates, most probable first. 1 is a dimension of size one.
"""

from __future__ import annotations

import inspect
import logging
import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from nemo_uecr.errors import DataError
from nemo_uecr.generation.engines import Decoding, ModelTokens
from nemo_uecr.generation.models import one_line

log = logging.getLogger(__name__)

#: In place of a token where the logits were not finite.
NOT_FINITE = -1
#: Tokens drawn between two checks for ended rows, by type of device.
CHECK_EVERY = {"cpu": 1, "cuda": 16}
#: Slots by which keys and values in place grow. Attention reads all of them; each growth needs a new graph.
GROWTH = 256
#: How steps run: over a cache that grows, over keys and values in place, or the latter as a CUDA graph.
Mode = Literal["eager", "fixed", "graph"]

#: Whether torch could capture a model's step.
_CAPTURES: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
_CHECKED: WeakSet[Any] = WeakSet()


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on that device, sent without a wait for what a GPU still computes."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


@torch.inference_mode()
def decode(
    module: Any,
    tokens: ModelTokens,
    prompts: Sequence[tuple[int, ...]],
    seeds: Sequence[int],
    decoding: Decoding,
    mode: Mode | None = None,
    *,
    limits: Sequence[int] | None = None,
) -> list[list[int]]:
    """One response for each prompt, up to where it is finished or has the tokens of its limit.

    ``limits`` are the rows' own, none above ``decoding.max_tokens``; None: that is every row's. Every response has a
    random stream of its own: the rest of the batch affects it only by rounding. Equal prompts are read once. ``mode``
    is for measurements and tests; None takes what suits the model and its device.
    Returns token ids with the end token; the last is `NOT_FINITE` where the logits were not.
    """
    check_cache(module)
    batch = _Batch(module, prompts, seeds, decoding, mode)
    responses: list[list[int]] = [[] for _ in prompts]
    growing: list[list[int] | None] = [*responses]
    most = list(limits or [decoding.max_tokens] * len(prompts))
    drawn_BT = batch.drawn_BT[:, :1]
    while True:
        for row, (response, drawn) in enumerate(zip(growing, drawn_BT.tolist(), strict=True)):
            if response is None:
                continue
            for token in drawn:
                response.append(token)
                if token == NOT_FINITE or tokens.finished(response, decoding.stop) or len(response) == most[row]:
                    growing[row] = None
                    break
        going = [row for row, response in enumerate(growing) if response is not None]
        count = min(CHECK_EVERY[module.device.type], decoding.max_tokens - batch.drawn)
        if not going or not count:
            return responses
        if batch.should_change(len(going), count):
            growing, most = [growing[row] for row in going], [most[row] for row in going]
            batch.keep(going)
        drawn_BT = batch.draw(count)


class _Reader:
    """A model, and the cache of what it has read."""

    def __init__(self, module: Any) -> None:
        self.module, accepted = module, inspect.signature(module.forward).parameters
        # Its name since transformers 5.24, and before.
        key = next((name for name in ("cache", "past_key_values") if name in accepted), None)
        if key is None:
            raise _no_cache(module)
        self.cache = DynamicCache(config=module.config)
        self.options = {key: self.cache, "use_cache": True}
        self.options |= {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self.has_positions = "position_ids" in accepted

    def logits(self, ids_BS: Tensor, mask: Tensor | None, places_BS: Tensor) -> Tensor:
        """Logits [B, V] after the last token."""
        places = {"position_ids": places_BS} if self.has_positions else {}
        logits_BV: Tensor = self.module(ids_BS, attention_mask=mask, **self.options, **places).logits[:, -1]
        return logits_BV

    @property
    def can_be_fixed(self) -> bool:
        """Whether the cache holds the keys and values of all tokens and nothing else, and a prepared mask is taken."""
        return (
            self.has_positions  # otherwise it derives the positions from the mask, as Bloom does
            and all(type(layer) is DynamicLayer for layer in self.cache.layers)
            and self.module.config._attn_implementation in ("sdpa", "eager")
            and getattr(self.module, "_can_compile_fullgraph", False)
        )


def _no_cache(module: Any, why: str = "") -> DataError:
    kind = module.config.model_type
    return DataError(f"models of type {kind!r} have no key-value cache{why}; expected one that has")


@torch.inference_mode()
def check_cache(module: Any) -> None:
    """Refuse a model that keeps what it has read elsewhere than in the cache that the loop hands it.

    Two rows change places in the cache before their last token: each must go on as if it had been read at once.
    """
    if module in _CHECKED:
        return
    ids_BS = torch.arange(8, device=module.device).view(2, 4)
    places_BS, swapped_B = ids_BS[:1].expand(2, 4), ids_BS[0, :2].flip(0)
    try:
        whole_BV = _Reader(module).logits(ids_BS, None, places_BS)
        reader = _Reader(module)
        reader.logits(ids_BS[:, :3], None, places_BS[:, :3])
        reader.cache.reorder_cache(swapped_B)
        error_BV = reader.logits(ids_BS[swapped_B, 3:], None, places_BS[:, 3:]) - whole_BV[swapped_B]
    except torch.OutOfMemoryError:  # no fault of the model
        raise
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:  # whatever its own cache lacks
        raise _no_cache(module, f" ({one_line(error)})") from error
    # Rounding is far below the distance between two rows; a state that was not reordered is off by that distance.
    if error_BV.abs().max() > (whole_BV[0] - whole_BV[1]).abs().max() / 2:
        raise _no_cache(module)
    _CHECKED.add(module)


@torch.inference_mode()
def check_causal(module: Any) -> None:
    """Refuse a model whose tokens read what follows them: its scores would be of the future, and of a row's padding.

    Four tokens alone must have the logits that they have before four others, but for rounding.
    """
    ids_1S = torch.arange(8, device=module.device).remainder(module.config.get_text_config().vocab_size).unsqueeze(0)
    alone, followed = (module(input_ids=ids, use_cache=False).logits[0, :4].float() for ids in (ids_1S[:, :4], ids_1S))
    if (alone - followed).square().mean().sqrt() > alone.std() / 10:
        raise DataError(
            f"models of type {module.config.model_type!r} read what follows a token, by their config.json (is_causal, "
            "is_decoder or use_bidirectional_attention), so that a score would depend on the rest of its batch; "
            "expected a causal language model"
        )


class _Batch:
    """Responses that grow in step, on the model's device, ended ones among them until they are dropped."""

    def __init__(
        self,
        module: Any,
        prompts: Sequence[tuple[int, ...]],
        seeds: Sequence[int],
        decoding: Decoding,
        mode: Mode | None,
    ) -> None:
        """Read the prompts and draw the first tokens."""
        self.module, self.decoding, self.device = module, decoding, module.device
        self.reader = _Reader(module)
        self.cache = self.reader.cache
        if mode is None:
            graph = self.device.type == "cuda" and _CAPTURES.get(module, True) and self.reader.can_be_fixed
            mode = "graph" if graph else "eager"
        self.mode, self.in_place = mode, mode in ("fixed", "graph")
        different = list(dict.fromkeys(prompts))
        self.width = max(len(prompt) for prompt in different)
        self.pads = [self.width - len(prompt) for prompt in different]
        ids = [[0] * pad + list(prompt) for pad, prompt in zip(self.pads, different, strict=True)]
        slots_S, pad_P1 = torch.arange(self.width, device=self.device), self._here(self.pads).unsqueeze(1)
        mask_PS = (slots_S >= pad_P1).long() if any(self.pads) else None
        logits_PV = self.reader.logits(self._here(ids), mask_PS, (slots_S - pad_P1).clamp(min=0))
        streams = [torch.Generator().manual_seed(seed) for seed in seeds]
        uniform_BT = torch.stack([torch.rand(decoding.max_tokens, generator=each) for each in streams])
        self.uniform_BT = to_device(uniform_BT, self.device)
        number = {prompt: row for row, prompt in enumerate(different)}
        rows = [number[prompt] for prompt in prompts]
        self.drawn, self.drawn_BT = 1, torch.zeros_like(self.uniform_BT, dtype=torch.long)
        self.drawn_BT[:, 0] = choose(logits_PV[self._here(rows)], decoding, self.uniform_BT[:, 0])
        self.slot_1 = self._here([self.width])  # of the next input, the token drawn last
        self._graph: torch.cuda.CUDAGraph | None = None
        self._move(rows)

    def _here(self, numbers: Sequence[Any]) -> Tensor:
        return to_device(torch.tensor(numbers), self.device)

    def should_change(self, going: int, count: int) -> bool:
        """Whether to drop the rows that are not ``going`` on, or make room, before ``count`` tokens more."""
        if self.in_place:
            return 2 * going <= len(self.pads) or self.width + self.drawn - 1 + count > self.slots_S.numel()
        return going < len(self.pads)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows alone, with room for more tokens."""
        rows_B = self._here(rows)
        self.uniform_BT, self.drawn_BT = self.uniform_BT[rows_B], self.drawn_BT[rows_B]
        self._move(rows)

    def draw(self, count: int) -> Tensor:
        """The next ``count`` tokens of each row [B, count]; those after the end of a row are meaningless."""
        if self.mode == "graph" and self._graph is None and _CAPTURES.get(self.module, True):
            self._graph = self._captured()
        for _ in range(count):
            if self._graph is None:
                self._draw_one()
                self.slot_1.add_(1)
            else:
                self._graph.replay()
            self.drawn += 1
        return self.drawn_BT[:, self.drawn - count : self.drawn]

    def _move(self, rows: Sequence[int]) -> None:
        """Put keys and values of these rows together, with room for more where they stay in place."""
        self._graph = None  # freed before what it works on
        self.pads = [self.pads[row] for row in rows]
        self.pad_B1, rows_B = self._here(self.pads).unsqueeze(1), self._here(rows)
        if not self.in_place:
            self.cache.reorder_cache(rows_B)
            return
        filled = self.width + self.drawn - 1
        capacity = GROWTH * math.ceil((filled + CHECK_EVERY[self.device.type]) / GROWTH)
        self.slots_S = torch.arange(capacity, device=self.device)
        # Kept in the dtype of autocast, or else each step would cast the whole cache.
        low = torch.get_autocast_dtype(self.device.type) if torch.is_autocast_enabled(self.device.type) else None

        def moved(old: Tensor) -> Tensor:
            # Zeros: attention multiplies what is in the closed slots by 0.
            new = old.new_zeros((len(rows), old.shape[1], capacity, old.shape[3]), dtype=low or old.dtype)
            new[:, :, :filled] = old[rows_B, :, :filled]
            return new

        for number, layer in enumerate(self.cache.layers):
            self.cache.layers[number] = _LayerInPlace(moved(layer.keys), moved(layer.values), self.slot_1)

    def _draw_one(self) -> None:
        """Draw the token after the one in ``slot_1``. In place it may be repeated and draws the same token."""
        number_1, mask = self.slot_1 - self.width, None
        if self.in_place:
            closed_BS = (self.slots_S < self.pad_B1) | (self.slots_S > self.slot_1)
            mask = torch.zeros_like(closed_BS, dtype=self.cache.layers[0].keys.dtype)
            mask = mask.masked_fill_(closed_BS, -math.inf)[:, None, None]
        elif any(self.pads):
            mask = (torch.arange(self.width + self.drawn, device=self.device) >= self.pad_B1).long()
        # An ended row may feed a token that could not be drawn.
        token_B1 = self.drawn_BT.index_select(1, number_1).clamp(min=0)
        logits_BV = self.reader.logits(token_B1, mask, self.slot_1 - self.pad_B1)
        uniform_B = self.uniform_BT.index_select(1, number_1 + 1)[:, 0]
        self.drawn_BT.index_copy_(1, number_1 + 1, choose(logits_BV, self.decoding, uniform_B).unsqueeze(1))

    def _captured(self) -> torch.cuda.CUDAGraph | None:
        """The step as a CUDA graph; None where torch cannot capture it."""
        self._draw_one()  # loads kernels and fills the cache of autocast: a cast inside the graph runs at every replay
        debug_mode = torch.cuda.get_sync_debug_mode()
        try:
            if self.module not in _CAPTURES:  # a synchronisation inside a capture can corrupt later work
                with warnings.catch_warnings(action="ignore"):  # of being a prototype
                    torch.cuda.set_sync_debug_mode("error")
                self._draw_one()
                torch.cuda.set_sync_debug_mode(debug_mode)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._draw_one()
                self.slot_1.add_(1)
        except torch.OutOfMemoryError:  # no fault of the model
            raise
        except RuntimeError as error:
            _CAPTURES[self.module] = False
            kind = self.module.config.model_type
            log.warning("models of type %r are sampled without a CUDA graph, more slowly: %s", kind, one_line(error))
            return None
        finally:
            torch.cuda.set_sync_debug_mode(debug_mode)
        _CAPTURES[self.module] = True
        return graph


class _LayerInPlace(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values in slots that stay where they are; a token's go to ``slot_1``."""

    def __init__(self, keys: Tensor, values: Tensor, slot_1: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.slot_1, self.is_initialized = keys, values, slot_1, True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write those of one token per row; attention reads all slots."""
        self.keys.index_copy_(2, self.slot_1, key_states.to(self.keys.dtype))
        self.values.index_copy_(2, self.slot_1, value_states.to(self.values.dtype))
        return self.keys, self.values


def choose(logits_BV: Tensor, decoding: Decoding, uniform_B: Tensor) -> Tensor:
    """The next token of each row [B], `NOT_FINITE` where its logits are NaN, +inf, or -inf throughout.

    It is the first candidate whose cumulative probability exceeds u from [0, 1), over the tokens of softmax(z / T) that
    survive top-k and then top-p. Restricting to k candidates before the softmax gives the same distribution as after
    it, and the vocabulary is not sorted.
    """
    if decoding.temperature == 0:
        top_B, chosen_B = logits_BV.max(dim=-1)
        return chosen_B.masked_fill(~top_B.isfinite(), NOT_FINITE)
    order_BK = None
    if decoding.top_k > 0 or decoding.top_p < 1:
        vocabulary = logits_BV.shape[-1]
        logits_BV, order_BK = logits_BV.topk(min(decoding.top_k or vocabulary, vocabulary))
    mass_BK = (logits_BV.float() / decoding.temperature).softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    # The last survivor is the first token whose cumulative probability reaches top_p; rounding takes none from top_p 1.
    most = decoding.top_p if decoding.top_p < 1 else math.inf
    last_B1 = (mass_BK < most).sum(dim=-1, keepdim=True).clamp(max=mass_BK.shape[-1] - 1)
    total_B1 = mass_BK.gather(-1, last_B1)
    chosen_B1 = (mass_BK <= uniform_B.unsqueeze(1) * total_B1).sum(dim=-1, keepdim=True)
    if order_BK is not None:
        chosen_B1 = order_BK.gather(-1, chosen_B1)
    return chosen_B1.masked_fill(~total_B1.isfinite(), NOT_FINITE)[:, 0]
