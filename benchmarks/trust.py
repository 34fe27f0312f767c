"""Rules for kappa of `uecr_trust` on batches of the study's students: does it tell right from wrong teachers?

Students and teachers of docs/map.md's recipe, but of another seed, so that no table has seen them; UECR trains a few
steps with each teacher, and the rules read its batches, as they are and altered. Models and runs are made once.

python -m benchmarks.trust runs/trust
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import torch
from torch import Tensor
from torch.nn.functional import pad

from benchmarks.study import grid
from benchmarks.study.runner import train_cell
from benchmarks.study.schema import StudyConfig, load_study
from nemo_uecr.core.methods import RunState
from nemo_uecr.core.methods.uecr_trust import trust
from nemo_uecr.core.record import ScoredBatch
from nemo_uecr.demo.supervised import ModelJob, teach_model
from nemo_uecr.demo.task import write_problems
from nemo_uecr.responses.replay import scored_batch
from nemo_uecr.responses.table import read_responses

SEED, STEPS, FIRST_COUNTED = 39, 6, 3
TEACHERS = {"uecr.strong": "strong", "uecr": "middling", "uecr.wrong": "wrong"}
VARIANTS = ("plain", "small_groups", "able", "able_small_groups")
Batches = Mapping[tuple[str, str], list[ScoredBatch]]  # the steps of a run by variant and teacher
State = Mapping[str, float]
Rule = Callable[[ScoredBatch], State]
Alter = Callable[[ScoredBatch, torch.Generator], ScoredBatch]


# -- batches -----------------------------------------------------------------------------------------------------------


def study_of(folder: Path) -> StudyConfig:
    """The map's study with another seed, in short runs that keep every batch."""
    loaded = load_study(Path(__file__).parents[1] / "examples/configs/study/map.yaml")
    return loaded.model_copy(
        update={
            "folder": str(folder),
            "task": loaded.task.model_copy(update={"seed": SEED}),
            "overrides": [*loaded.overrides, f"train.steps={STEPS}", "telemetry.save_batch_every=1"],
        }
    )


def batches(study: StudyConfig, variants: Sequence[str]) -> Batches:
    """The batches of a run by variant and teacher; what is missing is made first."""
    rates = {(variant, arm): 2e-4 for variant in study.variants for arm in study.arms}
    cells = [
        cell
        for cell in grid.table_cells(study, rates)
        if cell.arm in TEACHERS and cell.variant in variants and cell.pair == 0
    ]
    _make_models(study, ("strong_teacher", "teacher", "bad_teacher", "student-000", "able_student-000"))
    found = dict[tuple[str, str], list[ScoredBatch]]()
    for cell in cells:
        files = [cell.folder / "batches" / f"step-{step:06d}.parquet" for step in range(1, STEPS + 1)]
        if not files[-1].is_file() and (error := train_cell(study.config, cell)):
            raise SystemExit(error)
        found[cell.variant, TEACHERS[cell.arm]] = [scored_batch(read_responses(file)) for file in files]
    for variant in variants:
        pairs_of = zip(found[variant, "strong"], found[variant, "wrong"], strict=True)
        found[variant, "half wrong"] = [stitched(*each) for each in pairs_of]
    return found


def stitched(one: ScoredBatch, other: ScoredBatch) -> ScoredBatch:
    """Every other group of one batch, and the others of another: a teacher that is wrong on half of the prompts."""
    halves = [each.select(each.groups.index_B % 2 == place) for place, each in enumerate((one, other))]
    width = max(each.mask_BT.shape[1] for each in halves)

    def joined(name: str) -> Tensor:
        parts = [getattr(each, name) for each in halves]
        return torch.cat([part if part.ndim == 1 else pad(part, (0, width - part.shape[1])) for part in parts])

    names = ("task_reward_B", "mask_BT", "old_logp_BT", "teacher_logp_BT")
    group_B = torch.cat([2 * each.groups.index_B + place for place, each in enumerate(halves)])
    return ScoredBatch(group_B=group_B, **{name: joined(name) for name in names})


def simulated(*, good: bool, steps: int = STEPS, tokens: int = 1300, decisions: int = 10) -> list[ScoredBatch]:
    """Long responses whose verdict hangs on few tokens, by a teacher of another style (noise of .3 nats).

    Where a wrong response decides, each teacher objects by 2 nats; the good one raises what right ones decide by .7,
    the other objects to it by half a nat.
    """
    rng, found = torch.Generator().manual_seed(SEED), []
    for _ in range(steps):
        right_B = torch.rand(64, generator=rng) < 0.5
        gap_BT = noise((64, tokens), 0.3, rng)
        gap_BT[:, :: tokens // decisions] += torch.where(right_B, 0.7 if good else -0.5, -2.0).unsqueeze(1)
        old_BT = torch.full_like(gap_BT, -20.0)
        mask_BT = torch.ones_like(gap_BT, dtype=torch.bool)
        found.append(ScoredBatch(right_B.double(), torch.arange(64) // 8, mask_BT, old_BT, old_BT + gap_BT))
    return found


def _make_models(study: StudyConfig, names: Sequence[str]) -> None:
    problems, held_out = grid.task_folder(study) / "problems", grid.held_out(study, "bench")
    sets = {path: [level] * study.task.bench_problems for level, path in enumerate(held_out.values(), start=1)}
    if not problems.is_dir():
        problems.mkdir(parents=True)
        rng = random.Random(f"{SEED} problems")
        write_problems(rng, sets, problems / "train.jsonl", study.task.train_levels, study.task.train_problems)
    for name in names:
        rng, folder = random.Random(f"{SEED} {name}"), grid.model_folder(study, name)
        if not folder.is_dir():
            folder.parent.mkdir(exist_ok=True)
            teach_model(ModelJob(folder, grid.every_model(study)[name], rng.randrange(2**31), rng, tuple(sets)))


# -- what is done to a batch -------------------------------------------------------------------------------------------


def flipped(batch: ScoredBatch, rng: torch.Generator, share: float = 0.1) -> ScoredBatch:
    """Verdicts that are wrong now and then."""
    turned_B = torch.rand(batch.responses, generator=rng) < share
    return replace(batch, task_reward_B=torch.where(turned_B, 1 - batch.task_reward_B, batch.task_reward_B))


def noisy(batch: ScoredBatch, rng: torch.Generator, nats: float) -> ScoredBatch:
    """A teacher that writes differently: independent noise, whose ratios average to 1."""
    moved_BT = batch.score("teacher_logp") + noise(batch.gap_BT.shape, nats, rng)
    return replace(batch, teacher_logp_BT=moved_BT.clamp_max(0.0))


def noise(shape: Sequence[int], nats: float, rng: torch.Generator) -> Tensor:
    """Normal, with ratios of mean 1."""
    return nats * torch.randn(shape, generator=rng) - nats**2 / 2


def drifted(batch: ScoredBatch, _: torch.Generator, nats: float = 0.1) -> ScoredBatch:
    """A teacher that gives every token less."""
    return replace(batch, teacher_logp_BT=batch.score("teacher_logp") - nats)


def milder(batch: ScoredBatch, share: float) -> ScoredBatch:
    """A teacher with a share of the gap."""
    return replace(batch, teacher_logp_BT=(batch.old_logp_BT + share * batch.gap_BT).clamp_max(0.0))


def against_short(batch: ScoredBatch, rng: torch.Generator) -> ScoredBatch:
    """A teacher that objects to a tenth of the tokens of responses below their group's mean length, and to no other."""
    short_B = batch.token_count_B < batch.groups.mean(batch.token_count_B)
    objected_BT = short_B.unsqueeze(1) & (torch.rand(batch.gap_BT.shape, generator=rng) < 0.1)
    return replace(batch, teacher_logp_BT=batch.old_logp_BT - 2.0 * objected_BT)


def permuted(batch: ScoredBatch, rng: torch.Generator) -> ScoredBatch:
    """Verdicts that know nothing: permuted within their groups."""
    order_B = torch.rand(batch.responses, generator=rng).argsort()
    places_B = batch.groups.index_B.argsort(stable=True)
    mixed_B = order_B[batch.groups.index_B[order_B].argsort(stable=True)]
    reward_B = batch.task_reward_B.clone()
    reward_B[places_B] = batch.task_reward_B[mixed_B]
    return replace(batch, task_reward_B=reward_B)


def pairs(batch: ScoredBatch, _: torch.Generator) -> ScoredBatch:
    """Groups of 2: the group's first and its last."""
    index_B = batch.groups.index_B
    before_B = (index_B.unsqueeze(1) == index_B).tril(-1).any(1)
    after_B = (index_B.unsqueeze(1) == index_B).triu(1).any(1)
    return batch.select(~(before_B & after_B))


CONDITIONS: dict[str, Alter] = {
    "plain": lambda batch, _: batch,
    "flips": flipped,
    "noise .1": lambda batch, rng: noisy(batch, rng, 0.1),
    "noise .3": lambda batch, rng: noisy(batch, rng, 0.3),
    "noise .5": lambda batch, rng: noisy(batch, rng, 0.5),
    "drift": drifted,
    "a third of the gap": lambda batch, _: milder(batch, 1 / 3),
    "a sixth of the gap": lambda batch, _: milder(batch, 1 / 6),
    "groups of 2": pairs,
    "null": permuted,
}


# -- rules -------------------------------------------------------------------------------------------------------------


def significance(batch: ScoredBatch, scores: Mapping[str, Tensor], share: Callable[[float], float]) -> State:
    """The product of ``share(z)`` over scores; z compares a score's carried covariance with verdicts to chance."""
    groups, verdict_B = batch.groups, batch.groups.centre(batch.task_reward_B)
    size_B = groups.size_P[groups.index_B].double()
    state, kappa = {}, 1.0
    for name, score_B in scores.items():
        score_B = groups.centre(score_B)
        chance = float((verdict_B.square() * groups.mean(score_B.square()) * size_B / (size_B - 1)).sum())
        state[f"{name}_c"] = 0.8 * batch.run.state.get(f"{name}_c", 0.0) + float((verdict_B * score_B).sum())
        state[f"{name}_v"] = 0.64 * batch.run.state.get(f"{name}_v", 0.0) + chance
        kappa *= share(state[f"{name}_c"] / max(state[f"{name}_v"], 1e-18) ** 0.5)
    return state | {"kappa": kappa}


def two_sided(z: float) -> float:
    """``max(0, 2 Phi(z) - 1)``."""
    return max(0.0, float(torch.erf(torch.tensor(z / 2**0.5))))


def shrunk(z: float, c: float = 4.0) -> float:
    """``1 - c / z^2``, the share of the squared covariance that is not chance."""
    return max(0.0, 1.0 - c / z**2) if z > 0 else 0.0


def beyond_shared(batch: ScoredBatch, value_BT: Tensor) -> Tensor:
    """[B] sum of a value over the response, less its mean over the group's responses at that place."""
    groups = batch.groups
    total_PT = torch.zeros(len(groups.size_P), value_BT.shape[1], dtype=torch.float64)
    alive_PT = total_PT.index_add(0, groups.index_B, batch.mask_BT.double()).clamp_min(1.0)
    mean_PT = total_PT.index_add(0, groups.index_B, value_BT.double().masked_fill(~batch.mask_BT, 0.0)) / alive_PT
    return batch.token_sum(value_BT - mean_PT[groups.index_B])


def surely_raised(batch: ScoredBatch, mix: float = 0.3) -> Tensor:
    """[B] ``max(0, 1 - 1/x)``, x = pi_T/pi_old; where x < 1 - mix, the group's mean over its other tokens."""
    objected_BT = batch.gap_BT.exp() < 1 - mix
    value_BT = (1 - (-batch.gap_BT.double().clamp_min(0.0)).exp()).masked_fill(objected_BT, 0.0)
    share_B = batch.group_token_mean((~objected_BT).double())
    typical_B = batch.group_token_mean(value_BT) / share_B.clamp_min(1e-9)
    return beyond_shared(batch, torch.where(objected_BT, typical_B.unsqueeze(1), value_BT))


def gain(batch: ScoredBatch, mix: float = 0.3) -> Tensor:
    """[B] sum of ``log(1 - mix + mix x)``, the bounded gap to a mixture with the teacher."""
    return beyond_shared(batch, (mix * batch.gap_BT.double().clamp_max(5.0).expm1()).log1p())


def raised_mean(batch: ScoredBatch) -> Tensor:
    """[B] token mean of ``clip(delta, 0, 5)``."""
    return batch.token_mean(batch.gap_BT.clamp(0.0, 5.0))


RULES: dict[str, Rule] = {
    "uecr_trust": lambda batch: trust(batch, horizon=32.0, margin=0.2, memory=0.8),
    "kept": lambda batch: trust(batch, horizon=16.0, margin=0.0, memory=0.8),
    "margin 1": lambda batch: trust(batch, horizon=32.0, margin=1.0, memory=0.8),
    "raised": lambda batch: significance(batch, {"raised": raised_mean(batch)}, two_sided),
    "gate": lambda batch: significance(batch, {"gain": gain(batch), "raised": surely_raised(batch)}, shrunk),
}


def kappas(rule: Rule, steps: Sequence[ScoredBatch], alter: Alter, seed: int) -> list[float]:
    """Kappa of every step, the state carried."""
    rng, state, found = torch.Generator().manual_seed(seed), dict[str, float](), []
    for step, batch in enumerate(steps):
        altered = replace(alter(batch, rng), run=RunState(step, len(steps), 0, state))
        state = dict(rule(altered))
        found.append(state["kappa"])
    return found


def traces(rule: Rule, found: Batches, teacher: str, alter: Alter) -> list[list[float]]:
    """Kappa of the counted steps of each run with a teacher."""
    return [
        kappas(rule, steps, alter, seed)[FIRST_COUNTED - 1 :]
        for seed, ((_, whose), steps) in enumerate(found.items())
        if whose == teacher
    ]


def rows(found: Batches) -> Iterator[str]:
    """By condition and rule the medians over runs of the mean kappa: strong / middling / wrong teacher."""
    yield f"| condition | {' | '.join(RULES)} |"
    yield "|---" * (len(RULES) + 1) + "|"
    largest = dict.fromkeys(RULES, 0.0)
    for condition, alter in CONDITIONS.items():
        cells = []
        for name, rule in RULES.items():
            runs = [traces(rule, found, teacher, alter) for teacher in TEACHERS.values()]
            cells.append(" / ".join(middle(of_teacher) for of_teacher in runs))
            largest[name] = max(largest[name], *(max(trace) for trace in runs[-1]))
        yield f"| {condition} | {' | '.join(cells)} |"
    yield f"| largest of wrong | {' | '.join(f'{value:.2f}' for value in largest.values())} |"
    plain = CONDITIONS["plain"]
    for title, teacher, alter in (("half wrong", "half wrong", plain), ("against short", "wrong", against_short)):
        cells = [middle(traces(rule, found, teacher, alter)) for rule in RULES.values()]
        yield f"| {title} | {' | '.join(cells)} |"
    for good in (True, False):
        long = [f"{fmean(kappas(rule, simulated(good=good), plain, 0)):.2f}" for rule in RULES.values()]
        yield f"| long, {'good' if good else 'wrong'} | {' | '.join(long)} |"


def middle(runs: Sequence[Sequence[float]]) -> str:
    """Median of the runs' means."""
    return f"{median(fmean(run) for run in runs):.2f}"


def main() -> None:
    """Make what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where models and runs are kept")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS, help="students and group sizes")
    torch.set_num_threads(1)
    given = parser.parse_args()
    found = batches(study_of(given.folder), given.variants)
    sys.stdout.write("".join(f"{line}\n" for line in rows(found)))


if __name__ == "__main__":
    main()
