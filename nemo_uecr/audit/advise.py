"""The facts behind advice: from responses that are drawn for it, or from a run's saved batch.

Shape legend: B = responses, K = problems, T = tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nemo_uecr.audit.advice import Facts
from nemo_uecr.audit.alpha_sweep import SHARE, tie_point
from nemo_uecr.audit.groups import table_of
from nemo_uecr.audit.output import Array
from nemo_uecr.audit.signal import conflicts
from nemo_uecr.audit.sources import saved_texts
from nemo_uecr.audit.store import numbered
from nemo_uecr.config.load import written_config
from nemo_uecr.config.schema import Config
from nemo_uecr.core.groups import Groups
from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.records import ScoredBatch, Settings
from nemo_uecr.data.batch_file import load_batch, scored_batch
from nemo_uecr.errors import DataError
from nemo_uecr.local.survey import Survey
from nemo_uecr.stats import ClusterBootstrap, Share, pass_at_k
from nemo_uecr.telemetry.metrics import method_metrics
from nemo_uecr.telemetry.run_folder import read_run

REPLICATES, SEED = 2000, 0
#: Group sizes for which the share of equal verdicts is counted, where there are as many responses to each problem.
SIZES = (2, 4, 8, 16, 32, 64)
#: Of a saved batch these stand in the step's record alone; of what was drawn they are in the batch.
#: Taken from a step's metrics.
MEASURED = (
    "outcome/gap_mean_right", "outcome/gap_mean_wrong", "teacher/entropy_mean", "response/length_mean",
)  # fmt: skip
RECORDED = ("response/truncated_share", "teacher/top1_agreement", "teacher/top20_overlap")


def facts_of_survey(config: Config, found: Survey, *, noise_stated: bool) -> Facts:
    """Facts from responses that were drawn for advice."""
    batch = found.batch
    problem_B = numbered([prompt.problem.id for prompt in batch.sequences.prompts])
    teacher_B = cut = None
    if found.teacher is not None:
        own, outcomes = found.teacher
        teacher_B = np.asarray([outcome.correct for outcome in outcomes])
        cut = float(np.mean([response.truncated for response in own.responses]))
    known: dict[str, float | None] = {
        "teacher/top1_agreement": None,
        "teacher/top20_overlap": None,
        "response/truncated_share": float(batch.truncated().double().mean()),
        "teacher/truncated_share": cut,
    }
    return _facts(config, batch.scored, batch.correct(), problem_B, teacher_B, known, found.columns, noise_stated)


def facts_of_run(folder: Path) -> Facts:
    """Facts from the first batch that a run saved: those of its student before training where step 1 is there."""
    run = read_run(folder)
    if not run.batches:
        raise DataError(
            f"{folder} has no saved batch; expected a run with telemetry.save_batch_every > 0. "
            f"Draw instead: nemo-uecr advise {folder / 'config.yaml'}"
        )
    first = run.batches[0]
    texts = saved_texts(first.tensors)
    record = next((step for step in run.steps if step["step"] == first.step), {})
    known = {name: record.get(name) for name in RECORDED} | {"teacher/truncated_share": None}
    correct_B = torch.tensor([text["verdict"] == "correct" for text in texts])
    batch = scored_batch(load_batch(first.tensors), first.tensors)
    stated = run.origins.get("method.scoring_noise") != "default"
    problem_B = numbered([text["problem"] for text in texts])
    return _facts(written_config(folder / "config.yaml"), batch, correct_B, problem_B, None, known, {}, stated)


def _facts(
    config: Config,
    batch: ScoredBatch,
    correct_B: Tensor,
    problem_B: Array,
    teacher_B: Array | None,
    known: Mapping[str, float | None],
    columns: Mapping[str, int],
    noise_stated: bool,
) -> Facts:
    """``teacher_B`` are verdicts of the teacher's own responses, as many to each problem, in the order of problems."""
    method, scored = config.method, batch.teacher_logp_BT is not None
    settings = Settings(**method.core_settings() | {"alpha": 1.0 if method.alpha is None else method.alpha})
    advantages = METHODS["puu" if scored else "grpo"].compute(batch, settings, detail=True)
    metrics = method_metrics(
        batch, advantages, settings, {}, correct_B=correct_B, truncated_B=correct_B, noise=method.scoring_noise
    )
    sampler = ClusterBootstrap.draw(problem_B, replicates=REPLICATES, seed=SEED)
    groups, right_B, everything = Groups.of(batch.group_B), correct_B.numpy(), np.ones(len(problem_B), dtype=bool)
    by_problem = [right_B[problem_B == problem] for problem in range(sampler.clusters)]
    sizes = sorted({*SIZES, config.rollout.responses_per_prompt})
    rewards = [rows.astype(float) for rows in by_problem]
    where: dict[str, Share | None] = {
        "student": sampler.mean(right_B, everything, problem_B),
        "lead": None,
        "order": None,
        "degenerate": sampler.mean(groups.flat(batch.task_reward_B).numpy(), everything, problem_B),
    }
    numbers = dict(known) | {name: metrics.get(name) for name in MEASURED} | {"spread": None, "safe_alpha": None}
    if advantages.teacher_reward_B is not None:
        table = table_of(right_B, batch.group_B.numpy(), np.zeros_like(problem_B), problem_B)
        reward_B = advantages.teacher_reward_B.numpy()
        numbers["spread"] = float(groups.std(groups.centre(advantages.teacher_reward_B), sample=False).mean())
        if table.mixed_P.any():
            where["order"] = sampler.mean(1.0 - conflicts(table, reward_B), table.mixed_P, table.problem_P)
            ties = [tie_point(correct_C, wrong_W) for _, correct_C, wrong_W in table.mixed(reward_B)]
            numbers["safe_alpha"] = float(np.quantile(ties, SHARE, method="inverted_cdf"))
    teacher = None
    if teacher_B is not None:
        theirs_K = teacher_B.reshape(sampler.clusters, -1).mean(axis=1)
        problem_K = np.arange(sampler.clusters)
        all_K = problem_K >= 0
        teacher = sampler.mean(theirs_K, all_K, problem_K)
        where["lead"] = sampler.mean(theirs_K - [rows.mean() for rows in by_problem], all_K, problem_K)
    return Facts(
        where=where,
        teacher=teacher,
        numbers=numbers | {"noise": method.scoring_noise if noise_stated else None},
        equal={
            size: (1.0 - pass_at_k([1.0 - rows for rows in rewards], size), 1.0 - pass_at_k(rewards, size))
            for size in sizes
            if size <= min(map(len, rewards))
        },
        columns=columns,
        config=config,
    )
