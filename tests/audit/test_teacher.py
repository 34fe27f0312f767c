"""One teacher scored in several ways: the comparisons by hand, and the real engines on a tiny model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from nemo_uecr.audit.facts import facts_of_config, facts_of_run
from nemo_uecr.audit.score import sequences_of
from nemo_uecr.audit.store import read_scored
from nemo_uecr.audit.teacher import ENGINES, EngineScores, Reference, compared, teacher_effect
from nemo_uecr.cli.main import entry_point
from nemo_uecr.core.methods import method_of
from nemo_uecr.core.record import ScoredBatch
from nemo_uecr.demo.task import build_tokenizer
from nemo_uecr.errors import ScoreError
from tests.generation.games import write_games
from tests.local import tiny
from tests.local.updates import by_hand
from tests.responses.tables import write_step

PAIRS = (((5, 6, 7), (20, 21, 3)), ((9,), (4, 8, 15, 16, 23)), ((11, 12), (2,)))


def reference_of(scores: EngineScores, student: list[float], response: list[int], group: list[int]) -> Reference:
    sampled = torch.ones(len(response), dtype=torch.bool)
    student_logp = torch.tensor(student)
    return Reference(scores.logp, scores.entropy, student_logp, np.array(response), np.array(group), sampled)


def test_differences_by_hand() -> None:
    """Differences 0, 0.1, -0.3, 0: largest 0.3 at token 2, mean -0.05, median 0.05."""
    scores = EngineScores(torch.tensor([-1.0, -2, -3, -4]), torch.tensor([1.0, 1, 1, 1]))
    reference = reference_of(scores, [0.0] * 4, [0] * 4, [0])
    found = EngineScores(torch.tensor([-1.0, -1.9, -3.3, -4]), torch.tensor([1.0, 1, 1.5, 1]))
    numbers = compared(reference, found, "made")
    assert numbers["logp"]["max"] == pytest.approx(0.3, abs=1e-6)
    assert numbers["logp"]["at_token"] == 2
    assert numbers["logp"]["mean_signed"] == pytest.approx(-0.05, abs=1e-6)
    assert numbers["logp"]["quantiles"]["0.5"] == pytest.approx(0.05, abs=1e-6)
    assert numbers["entropy"]["max"] == pytest.approx(0.5)
    assert numbers["logp"]["curve"][-1] == numbers["logp"]["max"]
    assert compared(reference, EngineScores(found.logp, None), "made")["entropy"] is None
    with pytest.raises(ScoreError, match=r"made .*nan.*-3\.0.* 2"):
        compared(reference, EngineScores(torch.tensor([-1.0, -2, torch.nan, -4]), None), "made")


def test_noise_of_the_teacher_reward_by_hand() -> None:
    """Two groups and a response alone.

    Rewards 0.1, 0.3 (std 0.1) and -1, 2 (std 1.5), of a clipped gap; then 0.2 higher in the first and third response:
    differences 0.2, 0, 0.2, 0, 0, whose mean is 0.08 and whose variance 0.016 - 0.0064.
    """
    logp = torch.tensor([-1.9, -1.7, -3.0, -4.0, -1.0, -3.0, -1.0])
    student = [-2.0, -2.0, -2.0, -3.0, -8.0, -2.0, -1.0]
    reference = reference_of(EngineScores(logp, -logp), student, [0, 1, 2, 2, 3, 3, 4], [0, 0, 1, 1, 2])
    moved = EngineScores(logp + torch.tensor([0.2, 0, 0.2, 0.2, 0.2, 0, 0]), None)
    numbers = compared(reference, moved, "made")["teacher_reward"]
    assert reference.teacher_reward(logp).tolist() == pytest.approx([0.1, 0.3, -1.0, 2.0, 0.0], abs=1e-6)
    noise = 0.0096**0.5
    expected = {"mean": 0.08, "std": noise, "spread": 0.8, "share_of_spread": noise / 0.8, "std_floor": 3 * noise}
    assert {name: numbers[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def slow(model: str) -> Reference:
    """From the whole logits in float64."""
    sequences = sequences_of(PAIRS)
    logp_BT, entropy_BT, _ = by_hand(tiny.load(Path(model), role="teacher"), sequences, 1.0)
    mask_BT, rows = sequences.mask_BT, sequences.mask_BT.nonzero()[:, 0].tolist()
    return reference_of(EngineScores(logp_BT[mask_BT], entropy_BT[mask_BT]), [0.0] * len(rows), rows, [0, 0, 0])


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("transformers", 1e-5),
        ("transformers-bf16", 0.5),
        pytest.param("transformers-int8", 0.6, marks=pytest.mark.real),
        pytest.param("transformers-nf4", 6, marks=pytest.mark.real),  # of a model whose weights depend on the machine
        pytest.param("megatron", 1e-4, marks=pytest.mark.real),
    ],
)
@pytest.mark.usefixtures("low_bits")
def test_engines_against_plain_logits(name: str, bound: float) -> None:
    """Float32 engines agree to rounding; bf16 is further off, and is not the float32 one by mistake."""
    if (reason := ENGINES[name].missing) is not None:
        pytest.skip(reason)
    model = str(tiny.assets().teacher)
    numbers = compared(slow(model), ENGINES[name].score(model, sequences_of(PAIRS)), name)
    for quantity in ("logp", "entropy"):
        assert numbers[quantity]["max"] <= bound
        assert (numbers[quantity]["max"] > 1e-4) == name.startswith("transformers-")


@pytest.mark.real
def test_vllm_against_plain_logits(tmp_path: Path) -> None:
    """vLLM's kernels want heads of 32 or more; the wide initialisation gives log-probabilities that differ."""
    if (reason := ENGINES["vllm"].missing) is not None:
        pytest.skip(reason)
    tokenizer = build_tokenizer()
    module = tiny.new_model(tokenizer, seed=2, head_dim=32, initializer_range=0.3)
    model = str(tiny.save_model(module, tokenizer, tmp_path / "model"))
    assert slow(model).logp.std() > 0.5
    assert compared(slow(model), ENGINES["vllm"].score(model, sequences_of(PAIRS)), "vllm")["logp"]["max"] <= 1e-4


def test_problems_that_ask_the_same_are_one_observation(tmp_path: Path) -> None:
    """Six problems that ask four questions: of a configuration, and of a step that a run saved."""
    assert facts_of_config(tiny.configured(tmp_path / "unused").config, problems=6).problems == 4
    run = tiny.run(tmp_path / "run", "train.steps=1", "telemetry.save_batch_every=1", "rollout.prompts_per_step=6")
    assert facts_of_run(run).problems == 4


def test_games_that_share_a_question_are_observations_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an environment six problems are six, of a configuration, of a run's batch and evaluation, and scored."""
    played = f"environment={json.dumps({'call': f'{write_games(tmp_path)}:Once', 'processes': 1})}"
    settings = ("train.steps=1", "telemetry.save_batch_every=1", "rollout.prompts_per_step=6", "evaluation.every=1")
    assert facts_of_config(tiny.configured(tmp_path / "unused", played).config, problems=6).problems == 6
    run = tiny.run(tmp_path / "run", played, *settings)
    assert facts_of_run(run).problems == 6
    assert len(np.unique(read_scored(run).problem_B)) == 6
    written = [str(run), "--out", str(tmp_path / "scores"), "--student", str(tiny.assets().student)]
    assert entry_point(["score", str(run / "batches" / "step-000001.parquet"), *written[1:]]) == 0
    assert read_scored(tmp_path / "scores").provenance()["problems"] == 6
    assert entry_point(["audit", "token-credit", str(run)]) == 0
    assert "No intervals" not in capsys.readouterr().out


def test_one_problem_has_no_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All replicates of a bootstrap over one problem are equal: the interval of width 0 would be certainty."""
    run = tiny.run(
        tmp_path / "run", "train.steps=1", "telemetry.save_batch_every=1", "rollout.prompts_per_step=1",
        "train.minibatch_responses=4", "train.microbatch_responses=4",
    )  # fmt: skip
    for name in ("token-credit", "signal", "alpha-sweep", "teacher"):
        assert entry_point(["audit", name, str(run)]) == 0
        out = capsys.readouterr().out
        assert "No intervals: they are over problems, and all responses answer one.\n" in out
        assert not re.search(r"\[[-+\d.]+, ", out)
        note = json.loads((run / "audits" / name / "section.json").read_text())["note"]
        assert note.endswith("all responses answer one.")
    assert re.search(r" \d+\.\d \[-\]", out)


# Two scorings of one batch

SETTINGS = {"alpha": 1.0, "rho": 0.5, "tau_delta": 1.0, "tau_entropy": 1.0}


def batch(teacher_logp: list[float], entropy: list[float]) -> ScoredBatch:
    """Two responses of two tokens, the last token of the second masked."""
    return ScoredBatch(
        task_reward_B=torch.tensor([1.0, 0.0]),
        group_B=torch.tensor([0, 0]),
        mask_BT=torch.tensor([[True, True], [True, False]]),
        old_logp_BT=torch.tensor([[-1.0, -2.0], [-1.0, -9.0]]),
        teacher_logp_BT=torch.tensor(teacher_logp).view(2, 2),
        teacher_entropy_BT=torch.tensor(entropy).view(2, 2),
    )


def gaps(one: ScoredBatch) -> Tensor:
    return 2 * (one.teacher_logp_BT - one.old_logp_BT)


def test_by_hand() -> None:
    """Gaps 0.5, -0.5, 1 become 0.6, 0.1, 1: differences 0.1, 0.6, 0; one of three signs turned."""
    first = batch([-0.5, -2.5, 0.0, -5.0], [1.0, 2.0, 3.0, 99.0])
    second = batch([-0.4, -1.9, 0.0, -1.0], [1.0, 1.0, 3.5, -99.0])
    gap, entropy, advantage = teacher_effect(first, second, gaps)
    assert (gap["quantity"], gap["unit"]) == ("gap", "nats")
    # Gaps 0.5, -0.5, 1: mean 1/3, mean square 0.5; variance 0.5 - 1/9.
    expected = {"bias": 0.7 / 3, "mean": 0.7 / 3, "high": 0.6, "largest": 0.6, "spread": (0.5 - 1 / 9) ** 0.5}
    assert {name: gap[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert gap["flipped"] == pytest.approx(1 / 3)
    # Entropy differences 0, -1, 0.5.
    assert (entropy["bias"], entropy["mean"]) == pytest.approx((-0.5 / 3, 1.5 / 3), abs=1e-6)
    assert entropy["flipped"] is None
    assert advantage["largest"] == pytest.approx(1.2, abs=1e-6)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "bf16", tmp_path / "fp8"
    generator = torch.Generator().manual_seed(0)
    old, right, entropy, noise = torch.rand(4, 8, 20, generator=generator)
    for path, error in ((first, 0.0), (second, 0.1)):
        tensors = {
            "reward": (torch.arange(8) % 3 == 0).float(), "group": torch.arange(8) // 4,
            "sampled": torch.ones(8, 20, dtype=torch.bool), "token_ids": torch.arange(160).view(8, 20),
            "old_logp": -old,
            "teacher_logp": -right - error * noise, "teacher_entropy": entropy + error * noise,
        }  # fmt: skip
        write_step(path, tensors, method_of("uecr", SETTINGS))
    assert entry_point(["teacher", "compare", str(first), str(second), "--json", str(tmp_path / "effect.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["quantity", "gap", "entropy", "advantage", "d"]
    spread, bias, mean, high, largest = map(float, lines[1].split()[2:7])
    assert 0 < -bias == mean < high <= largest < spread
    assert json.loads((tmp_path / "effect.json").read_text())[0]["bias"] == pytest.approx(bias, rel=1e-3)
