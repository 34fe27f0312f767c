"""Responses of a run of `local`: those of its evaluations, or those it was trained on."""

from __future__ import annotations

from pathlib import Path

from nemo_uecr.audit.batch_texts import saved_texts
from nemo_uecr.audit.sources import Rollout, Source, encode_question, evaluated, step_of
from nemo_uecr.config.load import written_config
from nemo_uecr.config.schema import Config
from nemo_uecr.data.batch_file import load_batch
from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.samples import read_samples


def is_run(path: Path) -> bool:
    """Whether the folder is a run of `local`."""
    return (path / "config.yaml").is_file() and (path / "provenance.json").is_file()


def run_source(run: Path, *, take: str, steps: frozenset[int] | None) -> Source:
    """Responses of a run.

    Args:
        run: the run folder.
        take: "evaluations", sampled by the checkpoint that was evaluated, or "batches", the saved training batches,
            sampled by the policy before that step's update.
        steps: evaluations or batches of these steps only; None for all.

    Raises:
        DataError: If there is nothing to score.
    """
    config = written_config(run / "config.yaml")
    pattern = "evaluations/step-*.jsonl" if take == "evaluations" else "batches/step-*.safetensors"
    files = [path for path in sorted(run.glob(pattern)) if steps is None or step_of(path.stem) in steps]
    if not files:
        asked = "" if steps is None else f" of step {', '.join(map(str, sorted(steps)))}"
        raise DataError(f"{run} has no {take}{asked}; expected {run / pattern}")
    read = _evaluation if take == "evaluations" else _batch
    rollouts = [rollout for path in files for rollout in read(path, config)]
    return Source(rollouts, lambda step: _student(run, config, step), config.teacher.model_name, files)


def _student(run: Path, config: Config, step: int) -> str:
    """The checkpoint of a step; the initial student before the first."""
    if step == 0:
        return config.student.model_name
    path = run / "checkpoints" / f"step-{step:06d}"
    if not path.is_dir():
        raise DataError(
            f"{path} is not there (checkpoint.keep_last={config.checkpoint.keep_last}), so its responses cannot be "
            "scored by the policy that wrote them; choose other --steps, or keep more checkpoints in the next run"
        )
    return str(path)


def _evaluation(path: Path, config: Config) -> list[Rollout]:
    step = step_of(path.stem) or 0
    return [
        evaluated(each, step, encode_question(each.question, each.problem, each.answer, config))
        for each in read_samples(path)
    ]


def _batch(path: Path, config: Config) -> list[Rollout]:
    texts_path = path.with_suffix(".json")
    if not texts_path.is_file():
        raise DataError(f"{path} has no {texts_path.name} beside it; expected the texts of the batch")
    tensors = load_batch(path).tensors
    if "token_ids" not in tensors:
        raise DataError(f"{path} has no token_ids; expected a batch as `nemo-uecr train` saves it")
    step = (step_of(path.stem) or 1) - 1  # the batch of step 1 was sampled before any update
    texts = saved_texts(texts_path, responses=len(tensors["group"]))
    seen: dict[int, int] = {}
    rollouts = []
    for row, text in enumerate(texts):
        group = int(tensors["group"][row])
        seen[group] = seen.get(group, -1) + 1
        ids = tensors["token_ids"][row][tensors["mask"][row].bool()]
        rollouts.append(
            Rollout(
                id=f"step {step}/batch/{text['problem']}/prompt {group}/{seen[group]}",
                checkpoint=step,
                benchmark="batch",
                problem=text["problem"],
                sample=seen[group],
                group=f"{step}/batch/{group}",
                question=text["question"],
                answer=text["answer"],
                response=text["response"],
                reward=float(tensors["task_reward"][row]),
                prompt=encode_question(text["question"], text["problem"], text["answer"], config),
                token_ids=tuple(ids.tolist()),
                truncated=None,
            )
        )
    return rollouts
