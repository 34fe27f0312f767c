"""The commands `teacher score` and `teacher compare`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.cli.common import ConfigFile, Json, Override, family, is_nemo_rl, refuse_output, write_json
from nemo_uecr.errors import ConfigError, DataError

if TYPE_CHECKING:
    from nemo_uecr.audit.teacher_effect import Effect

__all__ = ["app"]

app = family("teacher", "What FP8 changes in a Megatron teacher's scores.")


@app.command
def score(config: ConfigFile, /, *overrides: Override, batch: Path, out: Path) -> None:
    """Score a saved batch with the teacher of a configuration and write the batch with those scores.

    Scored twice, with and without FP8, it shows what FP8 changes. Needs the GPUs that the configuration names, all of
    them for the teacher. OUT has no advantages: those of the batch belong to the teacher of the run.

        nemo-uecr teacher score CONFIG --batch BATCH --out bf16.safetensors teacher.fp8=false
        nemo-uecr teacher score CONFIG --batch BATCH --out fp8.safetensors  teacher.fp8=true
        nemo-uecr teacher compare bf16.safetensors fp8.safetensors

    Args:
        batch: Batch that a run of the NeMo-RL back end saved (telemetry.save_batch_every).
        out: File to write (safetensors).
    """
    from nemo_uecr.config.load import load_nemo_config
    from nemo_uecr.data.batch_file import load_batch

    if not is_nemo_rl(config, overrides):
        raise ConfigError(f"{config}: the backend is not nemo_rl; expected a configuration with a Megatron teacher")
    refuse_output(out, batch)
    loaded, saved = load_nemo_config(config, overrides), load_batch(batch)
    from nemo_uecr.nemo.teacher_scores import score_saved_batch

    score_saved_batch(loaded, saved, out)
    precision = "FP8" if loaded.teacher.fp8 else "bf16"
    sys.stdout.write(f"{batch} scored by {loaded.teacher.model_name} in {precision}: {out}\n")


@app.command
def compare(first: Path, second: Path, /, *, json: Json = None) -> None:
    """What FP8, or another layout, changes in a teacher's scores: gap, entropy and advantages, token by token.

    Args:
        first: Batch that `nemo-uecr teacher score` wrote; its scores count as right.
        second: The same batch with the scores in question.
    """
    import torch

    from nemo_uecr.audit.teacher_effect import teacher_effect
    from nemo_uecr.data.batch_file import compute_again, load_batch, scored_batch

    saved, other = load_batch(first), load_batch(second)
    ids, their_ids = saved.tensors.get("token_ids"), other.tensors.get("token_ids")
    if ids is not None and their_ids is not None and not torch.equal(ids.long(), their_ids.long()):
        raise DataError(f"{first} and {second} are about different tokens; score one batch in both ways")
    effects = teacher_effect(
        scored_batch(saved, first),
        scored_batch(other, second),
        lambda batch: compute_again(saved, batch, first).advantage_BT,
    )
    sys.stdout.write(_table(effects, method=str(saved.method)))
    write_json(json, [vars(effect) for effect in effects])


def _table(effects: list[Effect], *, method: str) -> str:
    heads = ("quantity", "unit", "spread", "bias", "mean |d|", "99% |d|", "max |d|", "sign changed")
    rows = [
        (
            effect.quantity,
            effect.unit,
            *(f"{value:.4g}" for value in (effect.spread, effect.bias, effect.mean, effect.high, effect.largest)),
            "-" if effect.flipped is None else f"{100 * effect.flipped:.2f}%",
        )
        for effect in effects
    ]
    lines = ["".join(f"{cell:>13}" for cell in row) for row in (heads, *rows)]
    return "\n".join(
        [*lines, f"d = second - first; spread: standard deviation of the first; advantages of {method}", ""]
    )
