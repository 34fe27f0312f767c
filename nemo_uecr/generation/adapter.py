"""LoRA adapters, by peft through transformers' own integration: W x + (alpha / r) B A x on every linear layer.

A mixture's experts and routers, which transformers keeps as tensors or as layers, get an adapter where it is asked for.

The base weights never change: with the adapter off the model *is* the base, bit for bit, and nothing is merged in
place, because a merge in bfloat16 that is undone leaves other weights. A and B are float32, whatever the base.

A saved adapter is a folder with peft's two files, and the base's config.json, generation_config.json and tokenizer.
Of one that others saved, with a tokenizer alone, the base's own serve.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from nemo_uecr.errors import DataError, require_extra
from nemo_uecr.files import read_object
from nemo_uecr.generation.models import INDEX, SINGLE, has_hub_form, load_pretrained, one_line, only_here

log = logging.getLogger(__name__)

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def base_of(folder: str | Path) -> str | None:
    """Folder or hub name of the base model that a saved adapter belongs to; None for what is no adapter."""
    path = Path(folder).expanduser() / CONFIG
    if not path.is_file():
        return None
    base = str(read_object(path)["base_model_name_or_path"])
    if whole := [name for name in (SINGLE, INDEX) if path.with_name(name).is_file()]:
        raise DataError(
            f"{path} belongs to an adapter of {base}, but beside it are the weights of a whole model ({whole[0]}): "
            f"transformers would load {base}, vLLM the weights. Delete {CONFIG} if they are merged, or move the "
            "adapter's files to a folder of their own"
        )
    if not Path(base).exists() and not has_hub_form(base):
        raise DataError(f"{path}: the adapter's base is not at {base}; correct base_model_name_or_path there")
    return base


def config_place(name: str) -> str:
    """Where the config.json of a folder or hub name is: an adapter of peft's own has none, and its base's serves."""
    base = None if (Path(name).expanduser() / "config.json").is_file() else base_of(name)
    return name if base is None else base


def add_adapter(
    module: Any, *, rank: int, alpha: float, seed: int, experts: bool = False, routers: bool = False
) -> None:
    """Give every linear layer of the text model but its output layer an adapter, A random and B zero.

    Everything else is frozen. Towers for pictures or sound get none: text never reaches them. Of a mixture
    ``experts`` and ``routers`` get one where they are named.
    """
    require_extra("lora")
    import torch
    from peft import LoraConfig

    shape: dict[str, Any] = {"r": rank, "lora_alpha": alpha, "lora_dropout": 0.0, "target_modules": "all-linear"}
    of_routers = router_layers(module)
    if experts and not of_routers:
        raise DataError(
            f"student.lora_experts: got true, but {type(module).__name__} is no mixture of experts; take false"
        )
    if towers := outside_text(module):
        shape["exclude_modules"] = towers
        log.info("the adapter leaves %d linear layers outside the text model alone (%s, ...)", len(towers), towers[0])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            if of_routers:
                shape |= _mixture_targets(module, of_routers, experts=experts, routers=routers)
            module.add_adapter(LoraConfig(**shape, task_type="CAUSAL_LM"))  # peft's own loader asks for the task
        except (ValueError, NotImplementedError) as error:
            raise DataError(
                f"peft cannot put an adapter on every linear layer of {type(module).__name__}: {one_line(error)}; "
                "train the weights (student.lora_rank=0), or take a model without such layers"
            ) from error
    _in_float32(module)
    config = module.peft_config["default"]
    if Path(config.base_model_name_or_path).exists():  # the adapter's folder may be read from elsewhere
        config.base_model_name_or_path = str(Path(config.base_model_name_or_path).resolve())


def _mixture_targets(module: Any, of_routers: list[str], *, experts: bool, routers: bool) -> dict[str, list[str]]:
    """What gets an adapter in a mixture, by name: peft would take "all-linear" to mean experts and routers, too.

    And it takes a linear layer of a certain name, a shared expert's `gate_proj`, say, for all of the experts, which
    had such names before transformers 5. Such layers get none.
    """
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    linear = linear_layers(module)
    within = {name for name in linear if any(f"{name}.".startswith(f"{router}.") for router in of_routers)}
    layers = [name for name in linear if routers or name not in within]
    probe = LoraConfig(target_modules=layers)
    convert_peft_config_for_transformers(probe, module, None)
    kept = [name for name in layers if name in set(probe.target_modules or [])]
    tensors = {f"{name}.weight" for name in {*of_routers, *within} - set(kept)} if routers else set()
    own = [name for name, _ in module.named_parameters() if name in tensors]
    log.info(
        "the adapter is on %d linear layers of a mixture, %s its experts, %s its routers",
        len(kept), "on" if experts else "not on", "on" if routers else "not on",
    )  # fmt: skip
    if lost := [name for name in layers if name not in kept and name not in within]:
        log.warning("no adapter on %d linear layers, %s, ...: peft takes them for experts", len(lost), lost[0])
    return {"target_modules": kept, "target_parameters": [*(expert_tensors(module) if experts else []), *own]}


def outside_text(module: Any) -> list[str]:
    """Names of the linear layers that no text goes through: those of other towers and of what joins them."""
    import torch

    text = module.get_decoder()
    if module.get_input_embeddings() not in text.modules():  # ModernBERT's is its output layer, by that name
        text = module
    inside = {id(layer) for layer in (*text.modules(), module.get_output_embeddings())}
    layers = module.named_modules()
    return [name for name, layer in layers if isinstance(layer, torch.nn.Linear) and id(layer) not in inside]


def linear_layers(module: Any) -> list[str]:
    """Names of the text model's linear layers but its output layer."""
    import torch

    outside, head = set(outside_text(module)), module.get_output_embeddings()
    layers = module.named_modules()
    return [
        name
        for name, layer in layers
        if isinstance(layer, torch.nn.Linear) and layer is not head and name not in outside
    ]


def router_layers(module: Any) -> list[str]:
    """Names of a mixture's routers, by what transformers calls them or their classes; none of a dense model."""
    return [
        name
        for name, layer in module.named_modules()
        if re.search(r"router|moe\w*gate$", f"{name.rpartition('.')[2]} {type(layer).__name__}".lower())
    ]


def expert_tensors(module: Any) -> list[str]:
    """Names of the tensors in which transformers keeps all experts of a layer: those of three dimensions."""
    return [name for name, parameter in module.named_parameters() if parameter.dim() == 3]


def freeze_routers(module: Any) -> None:
    """Keep a mixture's routers as they are."""
    for name in router_layers(module):
        module.get_submodule(name).requires_grad_(False)


def load_adapter(module: Any, folder: Path) -> None:
    """Put a saved adapter on its base model."""
    require_extra("lora")
    from peft import LoraConfig, set_peft_model_state_dict
    from safetensors.torch import load_file

    if "default" not in getattr(module, "peft_config", {}):
        config = LoraConfig.from_pretrained(str(folder))
        if config.modules_to_save:
            raise DataError(
                f"{folder} has whole modules beside its adapter (modules_to_save), which are not read; merge it into "
                "its base first: merge_and_unload() of peft"
            )
        config.inference_mode = False  # it would freeze what may be trained on
        module.add_adapter(config)
        _in_float32(module)
    try:
        found = set_peft_model_state_dict(module, load_file(folder / WEIGHTS))
    except RuntimeError as error:
        raise DataError(f"{folder} does not fit its base model: {one_line(error)}") from error
    lost = [name for name in found.missing_keys if "lora_" in name]
    if lost or found.unexpected_keys:
        raise DataError(f"{folder} does not fit its base model: {[*lost, *found.unexpected_keys][0]}")


def _in_float32(module: Any) -> None:
    """Peft makes adapters in the base's dtype, in which most of an update would be lost."""
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def load_causal_lm(name: str, *, local_files_only: bool, **options: Any) -> tuple[Any, dict[str, Any]]:
    """The causal language model of a folder or hub name, an adapter on its base; and transformers' loading report."""
    from transformers import AutoModelForCausalLM

    base = base_of(name)
    module, report = load_pretrained(
        AutoModelForCausalLM, name if base is None else base,
        local_files_only=local_files_only if base is None else only_here(base),
        use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True,  # its report has them
        **options,
    )  # fmt: skip
    if base is not None:
        load_adapter(module, Path(name).expanduser())
    return module, report
