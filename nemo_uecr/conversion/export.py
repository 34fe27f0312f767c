"""Exports a trained model as an ordinary Hugging Face folder, with its adapter merged into the base."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

from nemo_uecr.conversion.proof import Agreement, compare, fixed_sequences, huggingface_scores
from nemo_uecr.errors import CheckpointError, require_extra
from nemo_uecr.files import check_writable, new_folder
from nemo_uecr.generation.adapter import base_of, config_place, load_causal_lm
from nemo_uecr.generation.engines import STATE
from nemo_uecr.generation.models import load_tokenizer, only_here, output_columns, save_pretrained
from nemo_uecr.generation.trained import check_trained, trained_model


def export(run: Path, out: Path, *, dtype: str, tolerance: float) -> tuple[Path, Agreement]:
    """Write the model of a run, and verify that it is the trained one.

    Adapter and base are added in float32; then both folders score the same sequences. ``tolerance``, in nats, applies
    to float32 only: bfloat16 rounds once more, which the agreement shows. Returns the checkpoint and the agreement.
    """
    source = trained_model(run)
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise CheckpointError(f"{out}: occupied; expected a folder that does not exist. Choose another --merged")
    check_writable(out)
    check_trained(source)
    place = config_place(str(source))
    sequences = fixed_sequences(source, output_columns(place, local_files_only=only_here(place)))
    with new_folder(out) as folder:
        _write(source, folder, dtype)
        if (source / STATE).is_file():  # for the prompt of `evaluate`
            shutil.copyfile(source / STATE, folder / STATE)
        before, after = huggingface_scores(source, sequences), huggingface_scores(folder, sequences)
        limit = tolerance if dtype == "float32" else float("inf")
        return source, compare(sequences, before, after, limit, ("the run's", "the export's"))


def _write(source: Path, folder: Path, dtype: str) -> None:
    import torch

    base = base_of(source)
    if base is None:
        module, _ = load_causal_lm(str(source), local_files_only=True, dtype=torch.float32)
    else:
        require_extra("lora")
        from peft import PeftModel

        plain, _ = load_causal_lm(base, local_files_only=only_here(base), dtype=torch.float32)
        with warnings.catch_warnings():  # peft uses a name that transformers deprecates
            warnings.simplefilter("ignore", FutureWarning)
            module = PeftModel.from_pretrained(plain, str(source)).merge_and_unload()
    save_pretrained(module.to(getattr(torch, dtype)), load_tokenizer(str(source), local_files_only=True), folder)
