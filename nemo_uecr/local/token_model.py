"""Loads Hugging Face causal language models and checks that teacher and student speak the same tokens.

Shape legend: b x t = one micro-batch, N = tokens, F = features before the output layer, V = vocabulary.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import functional_call

from nemo_uecr.config.schema import Quantize
from nemo_uecr.errors import DataError, require_extra
from nemo_uecr.generation.decode import check_causal
from nemo_uecr.generation.engines import Context, ModelTokens, check_model, context_of, load_module, load_tokens
from nemo_uecr.generation.models import check_same_tokenizer
from nemo_uecr.local.memory import plain_tensors, quantize_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)

#: Share of a teacher's bytes below which a run tells how few of them its quantization reaches.
MOSTLY = 0.9
#: Largest difference at which the split forward still counts as the model's own (float32 rounding).
SPLIT_TOLERANCE = 1e-4
#: How much the features are enlarged to look for a cap on the logits.
PROBE_SCALE = 1e4


@dataclass(frozen=True)
class TokenModel:
    """A causal language model seen as features and an output layer."""

    module: PreTrainedModel  # the Hugging Face model
    tokens: ModelTokens  # its tokenizer, and the ids that end a response
    splits: bool  # whether ``head(features(x))`` is the model's own forward; otherwise the features are the logits
    compute: torch.dtype | None  # autocast dtype of the forward, None for the weights' own
    name: str  # what messages call it
    member: str = "student"  # what `Placement` calls its weights
    adapter: bool = True  # whether its LoRA adapter counts; without it a student with one is its own initial policy
    recomputed: tuple[torch.nn.Module, ...] = ()  # layers whose activations the backward pass computes again
    # Output columns that count, of a teacher with more or fewer than its student; None: all, as many
    scored_vocab_size: int | None = None

    @property
    def trained(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def base(self) -> TokenModel:
        """The same model without its adapter."""
        return replace(self, adapter=False, name=f"initial {self.name}")

    def restrict_to_student_vocab(self, columns: int) -> TokenModel:
        """Copy that scores over the output columns that it shares with a student of that many.

        Further ones of the teacher are cut before its softmax; the student, the policy that samples, stays whole.
        """
        return replace(self, scored_vocab_size=None if columns == self.vocabulary else min(columns, self.vocabulary))

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        tokenizer: PreTrainedTokenizerBase = self.tokens.tokenizer
        return tokenizer

    @property
    def device(self) -> torch.device:
        return torch.device(self.module.device)

    @property
    def vocabulary(self) -> int:
        return int(self.module.config.get_text_config().vocab_size)

    @property
    def context(self) -> Context | None:
        """Longest sequence, a stretched RoPE included; None where the configuration has no limit."""
        return context_of(self.module.config)

    @contextlib.contextmanager
    def forward_context(self, *, keep_casts: bool = False) -> Iterator[None]:
        """Autocast when a lower compute precision was asked for, as in `features` and `head`.

        With ``keep_casts`` the weights in the lower precision are held until the end, for more than one forward.
        """
        with contextlib.ExitStack() as stack:
            if not self.adapter:
                self.module.disable_adapters()
                stack.callback(self.module.enable_adapters)
            if self.compute is not None:
                stack.enter_context(torch.autocast(self.device.type, dtype=self.compute, cache_enabled=keep_casts))
            yield

    def features(self, ids_bt: Tensor) -> Tensor:
        """[b, t, F] what the output layer reads, for right-padded sequences."""
        with self.forward_context(), _without_packing_search():
            read = (self.module.base_model if self.splits else self.module)(input_ids=ids_bt, use_cache=False)
        features_btF: Tensor = read.last_hidden_state if self.splits else read.logits
        return features_btF

    def head_parameters(self) -> list[torch.nn.Parameter]:
        """The output layer's own, none where the features are the logits."""
        return list(self.module.get_output_embeddings().parameters()) if self.splits else []

    def head_weights(self) -> dict[str, Tensor]:
        """The same by name, in the type of the computation: cast once for all chunks of a micro-batch."""
        own = self.module.get_output_embeddings().named_parameters() if self.splits else ()
        return {name: weight if self.compute is None else weight.to(self.compute) for name, weight in own}

    def head(self, features_NF: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """[N, V] logits, the output layer's weights given."""
        if not self.splits:
            return features_NF
        with self.forward_context():
            logits_NV: Tensor = functional_call(self.module.get_output_embeddings(), dict(weights), (features_NF,))
        return logits_NV


@contextlib.contextmanager
def _without_packing_search() -> Iterator[None]:
    """Spare transformers the search for several sequences in one row: each forward would wait for a GPU's answer."""
    from transformers import masking_utils

    name = "find_packed_sequence_indices"
    search = getattr(masking_utils, name, None)
    setattr(masking_utils, name, lambda _: None)
    try:
        yield
    finally:
        setattr(masking_utils, name, search)


def load_model(
    name: str, *, role: str, dtype: str, device: torch.device, master_weights: bool, quantize: Quantize = "none"
) -> TokenModel:
    """Load a local folder or a hub name; messages name the configuration's section ``role``, e.g. "student".

    With ``master_weights`` the weights are float32 and only the computation is lower, so that small updates are not
    lost. The linear layers are rounded (``quantize``) before they are put on the device.
    """
    if quantize != "none":
        require_extra("lowbit")
    source, low = str(Path(name).expanduser()), dtype == "bfloat16"
    try:
        check_model(source)
        tokens = load_tokens(source)
        module = load_module(source, "float32" if master_weights else dtype)
        check_causal(module)
    except DataError as error:
        raise DataError(f"{role}.model_name: {error}") from error
    splits = _splits(module)  # first: on a CPU some kernels repack rounded weights when they first compute with them
    share = quantize_layers(module, quantize)
    module = module.to(device).eval()  # dropout would make the PPO ratio differ from 1 before any update
    if quantize != "none" and share < MOSTLY:
        size = sum(tensor.nbytes for tensor in plain_tensors(module.parameters())) / 2**30
        log.warning(
            "%s %s: %s rounds %.0f %% of the bytes of its weights, the others stay as they are; it takes %.2f GiB",
            role, name, quantize, 100 * share, size,
        )  # fmt: skip
    compute = torch.bfloat16 if low and master_weights else None
    return TokenModel(module, tokens, splits, compute, f"{role} {name}", role)


@torch.no_grad()
def _splits(module: Any) -> bool:
    """Whether features and output layer alone reproduce the logits (some architectures scale or cap them).

    Asked with features far larger than real ones: a cap shows only on large logits, and training enlarges them.
    """
    head = module.get_output_embeddings()
    if head is None or module.base_model is module:
        return False
    probe = torch.arange(1, 5, device=module.device).remainder(module.config.get_text_config().vocab_size).unsqueeze(0)
    hook = head.register_forward_pre_hook(lambda _, inputs: (inputs[0] * PROBE_SCALE,))
    try:
        own = module(input_ids=probe, use_cache=False).logits
        split = head(module.base_model(input_ids=probe, use_cache=False).last_hidden_state)
    finally:
        hook.remove()
    return bool((own - split).abs().max() <= SPLIT_TOLERANCE * split.abs().max())


def check_same_tokens(student: TokenModel, teacher: TokenModel) -> None:
    """Compare tokenizers id by id, naming the models; the teacher scores the student's token ids."""
    try:
        check_same_tokenizer(student.tokenizer, teacher.tokenizer, (student.vocabulary, teacher.vocabulary))
    except DataError as error:
        raise DataError(f"{student.name}, {teacher.name}: {error}") from error
