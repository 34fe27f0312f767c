"""The commands `score`, `teacher score` and `teacher compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from nemo_uecr.cli.common import AtLeastOne, ConfigFile, Json, Override, Steps, family, refuse_input, say, write_json
from nemo_uecr.errors import DataError, require_extra
from nemo_uecr.paths import resolve_path

teacher = family("teacher", "The effect of FP8 on a Megatron teacher's scores.")


def score(
    rollouts: tuple[str, ...],
    /,
    *,
    out: Path,
    teacher: str | None = None,
    student: str | None = None,
    anchor: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    steps: Steps | None = None,
    max_length: AtLeastOne | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    batch: AtLeastOne = 16,
    part: AtLeastOne = 512,
) -> None:
    """Score responses with a teacher, the student and further policies, for the audits.

    A run's saved batches have their scores: audits read them from the run folder. ROLLOUTS is a run folder (back end
    local) for the responses of its evaluations, a folder of `nemo-uecr evaluate`, a table of responses, or a JSONL
    file. STEP= states how many steps the policy that generated the responses had been trained, if they do not.

        nemo-uecr score runs/demo --out runs/demo/scores
        nemo-uecr score runs/demo/batches/step-000001.parquet --out runs/demo/scores-start
        nemo-uecr score 0=evaluations/start 30=evaluations/step-30 --teacher T --anchor base=B --out scores
        nemo-uecr score rollouts.jsonl --teacher T --student 'checkpoints/step-{step:06d}' --out scores

    Each line of a JSONL file has "problem", "response", "prompt" (the whole text that the model read) or "prompt_ids",
    and "token_ids" (as sampled, with the end token) or "truncated". Optional are "checkpoint", "reward" or "answer" (to
    verify), "sampled" (false for tokens that were observed), "question", "benchmark", "sample", "group" and "id".

    After an interruption, the same command continues; a longer one adds scores.

    Args:
        rollouts: Run, evaluation folder, table or JSONL file, each as PATH or STEP=PATH.
        out: Folder of the scores.
        teacher: Folder or hub name (default: a run folder's own teacher).
        student: Model that generated the responses, with {step} if it varies (default: a run's checkpoints, or an
            evaluation's model).
        anchor: A further, fixed policy as NAME=MODEL; may be repeated.
        steps: Only these steps of a run: 1,5,10 (default: all).
        max_length: Longest sequence in tokens; longer ones are cut at the end (default: no limit).
        dtype: Precision of the models.
        batch: Responses per forward pass.
        part: Responses per write.
    """
    require_extra("local")
    import torch

    from nemo_uecr.audit.score import Scoring, score_rollouts
    from nemo_uecr.audit.sources import source_of, students_of

    sources = [source_of(text, steps=None if steps is None else frozenset(steps)) for text in rollouts]
    teachers = {source.teacher for source in sources}
    model = teacher or (teachers.pop() if len(teachers) == 1 else None)
    if model is None:
        raise DataError("these rollouts name no teacher, or more than one; give --teacher MODEL")
    gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    scoring = Scoring(
        teacher=resolve_path(model),
        student_of=students_of(sources, student, resolve_path),
        anchors={name: resolve_path(path) for name, path in map(_anchor, anchor)},
        dtype=dtype,
        device=torch.device("cuda" if gpu else "cpu"),
        max_length=max_length,
        batch=batch,
        part=part,
    )
    responses = [rollout for source in sources for rollout in source.rollouts]
    files = [path for source in sources for path in source.files]
    scored = score_rollouts(out, responses, files, scoring)
    say(
        f"{len(scored.ids)} responses, {int(scored.scored_B.sum())} tokens, "
        f"checkpoints {', '.join(map(str, scored.checkpoints))}; "
        f"{int(scored.truncated_B.sum())} truncated in generation, {int(scored.cut_B.sum())} cut by --max-length, "
        f"{int(scored.from_text_B.sum())} with token ids from text",
        f"scores: {out}",
    )


def _anchor(text: str) -> tuple[str, str]:
    from nemo_uecr.audit.store import STUDENT

    name, _, model = text.partition("=")
    if not model or not name.isidentifier() or name == STUDENT:
        raise DataError(f"--anchor {text!r}: expected NAME=MODEL, for example base=MODEL; {STUDENT} is taken")
    return name, model


@teacher.command(name="score")
def teacher_score(config: ConfigFile, /, *overrides: Override, batch: Path, out: Path) -> None:
    r"""Score a saved batch with the teacher of a recipe, and write the batch with these scores.

    Score a batch with and without FP8 to measure the effect of FP8. The teacher uses all GPUs of the recipe. OUT has no
    advantages: those of the batch belong to the run's teacher.

        nemo-uecr teacher score RECIPE --batch BATCH --out bf16.parquet
        nemo-uecr teacher score RECIPE --batch BATCH --out fp8.parquet \
            ++uecr.teacher.megatron_cfg.fp8_cfg.enabled=true
        nemo-uecr teacher compare bf16.parquet fp8.parquet

    Args:
        batch: Batch that a run inside NeMo-RL saved (uecr.save_batch_every).
        out: File to write (Parquet).
    """
    from nemo_uecr.config.recipes import load_recipe
    from nemo_uecr.responses.table import read_responses

    refuse_input(out, batch)
    recipe, saved = load_recipe(config, overrides), read_responses(batch)
    from nemo_uecr.nemo.plug_in import score_saved_batch

    say(f"{batch} scored by {score_saved_batch(recipe.values, saved, out)}: {out}")


@teacher.command(name="compare")
def compare_scores(first: Path, second: Path, /, *, json: Json = None) -> None:
    """Compare a teacher's scores with FP8 or another layout: gap, entropy and advantages, token by token.

    Args:
        first: Reference batch from `nemo-uecr teacher score`.
        second: The same batch with other scores.
    """
    from nemo_uecr.audit.teacher import teacher_effect
    from nemo_uecr.responses.replay import compute_again, scored_batch
    from nemo_uecr.responses.table import read_responses
    from nemo_uecr.tables import shown, text_table

    saved = read_responses(first)
    effects = teacher_effect(
        scored_batch(saved),
        scored_batch(read_responses(second)),
        lambda batch: compute_again(saved, batch).advantage_BT,
    )
    heads = ("quantity", "unit", "spread", "bias", "mean |d|", "99% |d|", "max |d|", "sign changed")
    numbers = ("spread", "bias", "mean", "high", "largest")
    rows = [
        (each["quantity"], each["unit"], *(f"{each[name]:.4g}" for name in numbers), shown(each["flipped"], ".2%"))
        for each in effects
    ]
    note = f"d = second - first; spread: standard deviation of the first; advantages of {saved.about['method']}"
    say(text_table(heads, rows), note)
    write_json(json, effects)
