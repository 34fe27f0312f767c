"""The model that a run trained, as one ordinary Hugging Face folder: an adapter merged into a copy of its base."""

from __future__ import annotations

import shutil
from pathlib import Path

from nemo_uecr.checkpoint.proof import Agreement, compare, fixed_sequences, huggingface_scores
from nemo_uecr.data.adapter import base_of
from nemo_uecr.data.models import load_pretrained, load_tokenizer, only_here, save_pretrained
from nemo_uecr.errors import CheckpointError, require_extra
from nemo_uecr.files import check_writable, new_folder, read_object

#: What a checkpoint holds beside the model.
OF_THE_RUN = ("optimizer.pt", "state.json", "manifest.json")


def trained_model(run: Path) -> Path:
    """The checkpoint that a run folder kept as its best one, or its newest; a checkpoint is itself."""
    inside = sorted((run / "checkpoints").glob("step-*"))
    if not inside:
        if (run / "config.json").is_file():
            return run
        raise CheckpointError(f"{run}: no checkpoints/step-* and no config.json; expected a run folder or a checkpoint")
    state = read_object(inside[-1] / "state.json")
    best = state["position"]["best_step"] if state["config"]["checkpoint"]["keep_best"] else None
    return inside[-1] if best is None else inside[0].with_name(f"step-{best:06d}")


def export(run: Path, out: Path, *, dtype: str, tolerance: float) -> tuple[Path, Agreement]:
    """Write the model of a run, and prove that it is the one that was trained.

    Adapter and base are added in float32 in a copy; then both folders score the same sequences. bfloat16 rounds the sum
    once more, which the agreement then shows.

    Args:
        run: a run folder, or a checkpoint.
        out: the folder to make.
        dtype: of the weights in it.
        tolerance: largest difference of two log-probabilities, nats; held against float32 alone.

    Returns:
        The checkpoint that was taken, and how far the two models are apart.

    Raises:
        CheckpointError: There is no checkpoint, OUT is occupied, or the written model is another one.
    """
    source = trained_model(run)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise CheckpointError(f"{out}: occupied; expected a folder that does not exist. Choose another --merged")
    check_writable(out)
    base = base_of(source)
    sizes = read_object(source / "config.json")
    sequences = fixed_sequences(source, sizes["vocab_size"])
    with new_folder(out) as folder:
        if base is None:
            _copy(source, folder)
        else:
            _merge(source, base, folder, dtype)
        before, after = huggingface_scores(source, sequences), huggingface_scores(folder, sequences)
        limit = tolerance if dtype == "float32" or base is None else float("inf")
        return source, compare(sequences, before, after, limit, ("the run's", "the export's"))


def _copy(source: Path, folder: Path) -> None:
    for path in source.iterdir():
        if path.name not in OF_THE_RUN:
            shutil.copyfile(path, folder / path.name)


def _merge(source: Path, base: str, folder: Path, dtype: str) -> None:
    require_extra("lora")
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    module = load_pretrained(
        AutoModelForCausalLM, base, local_files_only=only_here(base), dtype=torch.float32, use_safetensors=True
    )
    merged = PeftModel.from_pretrained(module, str(source)).merge_and_unload()
    save_pretrained(merged.to(getattr(torch, dtype)), load_tokenizer(str(source), local_files_only=True), folder)
