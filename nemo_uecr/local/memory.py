"""What lets a student and a teacher share one device.

Recomputed activations and weights that wait in host memory change no number; a teacher in fewer bits does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from nemo_uecr.config.schema import Quantize
from nemo_uecr.errors import DataError
from nemo_uecr.generation.adapter import expert_tensors

Policy = Literal["none", "teacher", "all"]
#: The others never change, so their copy in host memory is made once and never written back.
TRAINED = frozenset({"student", "optimizer"})


def is_offloaded(policy: Policy, member: str) -> bool:
    """Whether a member waits in host memory: every teacher and the reference under `teacher`."""
    return policy == "all" or (policy == "teacher" and member not in TRAINED)


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies of all of them on the CPU, with one wait."""
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    if any(tensor.is_cuda for tensor in tensors):
        torch.cuda.current_stream().synchronize()
    return copies


class Placement:
    """Which weights are on the device; the others wait in pinned host memory, one copy of each.

    Shared by the phases of a step: each calls `move_to_device` with what it computes with, and everything else that
    `offload` moves makes room.
    """

    def __init__(
        self, policy: Policy, device: torch.device, members: Mapping[str, Callable[[], Iterable[Tensor]]]
    ) -> None:
        """Name the members; each function gives the tensors as they are when called, since an optimizer's grow."""
        self._device, self._members = device, members
        self._moved = {name for name in members if is_offloaded(policy, name)}
        self._away = set(self._moved)  # a run loads them into host memory
        self._host: dict[int, Tensor] = {}

    @torch.no_grad()
    def move_to_device(self, *names: str) -> None:
        """Make room, then bring these onto the device."""
        leaving = self._moved - self._away - set(names)
        for name in leaving:
            for tensor in plain_tensors(self._members[name]()):
                tensor.data = self._host_copy(tensor, frozen=name not in TRAINED)
        if leaving and self._device.type == "cuda":  # the copies above have only been asked for
            torch.cuda.current_stream(self._device).synchronize()
        self._away |= leaving
        for name in self._away & set(names):
            for tensor in plain_tensors(self._members[name]()):
                tensor.data = torch.empty_like(tensor, device=self._device).copy_(tensor, non_blocking=True)
            self._away.remove(name)

    def _host_copy(self, tensor: Tensor, *, frozen: bool) -> Tensor:
        host = self._host.get(id(tensor))
        if host is None or host.shape != tensor.shape:
            pinned = self._device.type == "cuda"
            self._host[id(tensor)] = host = torch.empty_like(tensor, device="cpu", pin_memory=pinned)
        elif frozen:
            return host
        return host.copy_(tensor, non_blocking=True)


def plain_tensors(tensors: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors that hold the values: of a quantised one, those inside; of one that several share, one."""
    seen: set[int] = set()
    for tensor in tensors:
        if hasattr(tensor, "__tensor_flatten__"):  # torchao's
            yield from plain_tensors(getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        elif id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor
            if (state := getattr(tensor, "quant_state", None)) is not None:  # bitsandbytes'
                yield from (state.absmax, state.code)


def state_of(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Moments and whatever else an optimizer keeps on the device: a fused one its counts of steps, too."""
    fused = any(group.get("fused") for group in optimizer.param_groups)
    for values in optimizer.state.values():
        yield from (value for value in values.values() if isinstance(value, Tensor) and (fused or value.dim()))


def quantize_layers(module: Any, quantize: Quantize) -> float:
    """Round the linear layers' weights in place; output layer and adapters stay as they are.

    int8: one scale a row, of a mixture's experts as well. nf4: one scale for each 64 weights, rounded when the module
    is next moved to a device; the experts stay.

    Returns:
        The share of the weights' bytes that is rounded.
    """
    head = module.get_output_embeddings()

    def rounded(layer: Any, name: str) -> bool:
        return isinstance(layer, torch.nn.Linear) and layer is not head and ".lora_" not in name

    held = {name: parameter.nbytes for name, parameter in module.named_parameters()}
    reached = [f"{name}.weight" for name, layer in module.named_modules() if rounded(layer, name)]
    if quantize == "int8":
        from torchao.quantization import FqnToConfig, Int8WeightOnlyConfig, quantize_

        quantize_(module, Int8WeightOnlyConfig(), filter_fn=rounded)
        if experts := [name for name in expert_tensors(module) if not _transposed(module, name)]:
            quantize_(module, FqnToConfig({name: Int8WeightOnlyConfig() for name in experts}), filter_fn=None)
            module.set_experts_implementation("eager")  # the only one whose products torchao's tensors know
            reached += experts
    elif quantize == "nf4":
        from bitsandbytes.nn import Linear4bit, Params4bit

        for name, layer in list(module.named_modules()):
            if rounded(layer, name):
                small = Linear4bit(
                    layer.in_features, layer.out_features, bias=False, compute_dtype=layer.weight.dtype, device="meta"
                )
                small.weight = Params4bit(layer.weight.data, quant_type="nf4", compress_statistics=False, module=small)
                small.bias = layer.bias
                module.set_submodule(name, small)
    return float(sum(held[name] for name in reached) / sum(held.values()))


def _transposed(module: Any, tensor: str) -> bool:
    """Whether experts are kept as inputs by outputs (gpt_oss): torchao knows no product of such rows."""
    return bool(getattr(module.get_submodule(tensor.rpartition(".")[0]), "is_transposed", False))


def checkpointed_layers(module: Any) -> list[torch.nn.Module]:
    """Have the layers keep their inputs alone in training mode, and recompute the rest in the backward pass."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    # Newer releases of transformers have the first name, older ones the second alone.
    enable = getattr(module, "activation_checkpointing_enable", None) or module.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    layers = [layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]
    for layer in layers:  # a few architectures drop out in the layer itself
        for name in ("dropout", "hidden_dropout", "activation_dropout"):
            if isinstance(getattr(layer, name, None), float):
                setattr(layer, name, 0.0)
    if not layers:
        raise DataError(
            f"train.activation_checkpointing is true, but transformers' {type(module).__name__} has no layer that "
            "recomputes; set it to false and lower train.microbatch_responses"
        )
    return layers


@contextlib.contextmanager
def recomputing(layers: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Training mode for these layers alone: their parts keep its evaluation mode, so no dropout is drawn.

    Outside of it transformers would not recompute, and inside of it a layer takes no KV cache.
    """
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


@contextlib.contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Only torch's deterministic algorithms where ``wanted``. Sampling stays outside: CUDA has none for cumsum."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error" if wanted else before)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
