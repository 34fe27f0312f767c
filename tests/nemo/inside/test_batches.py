"""Batches through NeMo-RL's own sharding, and one saved step through every back end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from nemo_uecr.core.functions import compute
from nemo_uecr.core.loss import policy_loss
from nemo_uecr.core.methods.base import LOSS_TENSORS, Advantages
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.recipe import Settings
from nemo_uecr.nemo.score_checks import score
from nemo_uecr.nemo.worker_scoring import ScoreRequest
from nemo_uecr.responses.replay import Recomputed, recompute, scored_batch
from nemo_uecr.responses.table import read_responses
from tests.core import sparse
from tests.nemo.inside.loop import run_of, train_ours
from tests.nemo.inside.nemo_forward import sharded
from tests.nemo.inside.tiny_world import (
    PROMPT,
    TEMPERATURE,
    VOCABULARY,
    TinyGeneration,
    TinyModel,
    TinyTeacher,
    columns_of,
    training_logp,
)
from tests.responses.tables import tensors_of

pytestmark = pytest.mark.usefixtures("ray_cluster")
ROWS = 1007
REQUEST = ScoreRequest({"rollout_logp": TEMPERATURE, "logp": 1.0}, True, VOCABULARY, 64)


class ShardedScorer:
    """Cuts a batch with NeMo-RL's own code, scores each part, and puts the answers back in order."""

    model, row_multiple = TinyModel(0), 4

    def score_tokens(self, data: Any, request: ScoreRequest) -> Any:
        shards, order = sharded(data, self.row_multiple, tokens=64, multiple=1)
        answer = type(data).from_batches([columns_of(self.model, shard, request) for shard in shards])
        answer.reorder_data(order)
        return answer


def test_1007_rows_on_four_ranks() -> None:
    """No row is dropped, duplicated or moved, and the masked rows are gone."""
    generator = torch.Generator().manual_seed(2)
    data = upstream.native("BatchedDataDict")(
        {
            "input_ids": torch.randint(1, VOCABULARY, (ROWS, 8), generator=generator),
            "input_lengths": torch.randint(2, 9, (ROWS,), generator=generator),
            "token_mask": torch.ones(ROWS, 8),
            "sample_mask": torch.ones(ROWS),
        }
    )
    found = score(ShardedScorer(), data, REQUEST, name="student")
    expected = columns_of(TinyModel(0), data, REQUEST)
    assert len(found["rollout_logp"]) == ROWS
    torch.testing.assert_close(found["rollout_logp"], expected["rollout_logp"], atol=1e-6, rtol=0)
    torch.testing.assert_close(found["entropy"], expected["entropy"], atol=1e-6, rtol=0)


def test_a_teacher_of_four_ranks_scores_15_responses() -> None:
    """A masked row completes its batch, and is gone from what trains."""
    batch = ["grpo.num_prompts_per_step=5", "grpo.num_generations_per_prompt=3", "policy.train_global_batch_size=15"]
    run = train_ours(run_of("uecr", *batch), teacher=functools.partial(TinyTeacher, parallel=4))
    assert [rows for rows, _ in run._teachers["teacher"].asked] == [16]
    assert run.metrics[0]["count/trained"] == 15


@pytest.mark.parametrize("method", ["uecr", "grpo_plus_opd", "uecr_trust", "sparse"])
def test_a_saved_step_gives_one_loss_everywhere(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter's first loss and gradient are `core`'s over the saved batch, and the local loop's own update's."""
    sparse.register(monkeypatch)
    saving = run_of(method, "++uecr.save_batch_every=1", f"++uecr.folder={tmp_path}")
    run = train_ours(saving)
    path = tmp_path / "batches" / "step-000001.parquet"
    saved = read_responses(path)
    assert recompute(path) == Recomputed(same_arithmetic=True, bitwise=True, difference=0.0)  # replay --check
    advantages = compute(saving.settings.method, scored_batch(saved)).named_tensors()
    assert torch.equal(advantages["advantage"], run.trained[0]["advantages"])
    for loss in (core_loss, local_loss):
        total, gradient = loss(tensors_of(path), advantages, saving.settings)
        assert total == pytest.approx(run.losses[0], abs=1e-6)
        torch.testing.assert_close(gradient, run.gradients[0], atol=1e-6, rtol=1e-4)


def gradient_of(model: TinyModel) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def core_loss(tensors: dict[str, Tensor], advantages: dict[str, Tensor], run: Settings) -> tuple[float, Tensor]:
    """The loss of a saved step at the model it was sampled from, token columns as they are: no shift, no NeMo-RL."""
    mask, model = tensors.get("loss_mask", tensors["sampled"]), TinyModel(0)
    logp = torch.cat((torch.zeros(mask.shape[0], 1), training_logp(model, tensors["token_ids"])), 1)
    second = (advantages["advantage_opd"], 1.0) if "advantage_opd" in advantages else None
    loss = policy_loss(
        logp, tensors["old_logp_rollout"], advantages["advantage"], mask, denominator=float(mask.sum()),
        ref_logp=tensors["ref_logp"], kl_coef=run.reference_kl, second=second,
    )  # fmt: skip
    loss.total.backward()
    return float(loss.total.detach()), gradient_of(model)


def local_loss(tensors: dict[str, Tensor], advantages: dict[str, Tensor], run: Settings) -> tuple[float, Tensor]:
    """The loss that the local back end's update takes its step on: its sequences, micro-batches, forward and sums."""
    from nemo_uecr.local.sequences import Response, Sequences
    from nemo_uecr.local.update import update

    ids, mask = tensors["token_ids"], tensors["sampled"].bool()
    lengths = mask.sum(dim=1).tolist()
    assert bool((mask.long().argmax(dim=1) == PROMPT).all())
    rows = [row.tolist() for row in ids]
    prompts: Any = [SimpleNamespace(token_ids=tuple(row[:PROMPT])) for row in rows]
    ends = [PROMPT + length for length in lengths]
    responses = [Response(tuple(row[PROMPT:end]), False, "") for row, end in zip(rows, ends, strict=True)]
    sequences = Sequences(prompts, responses)
    here = slice(PROMPT, PROMPT + sequences.width)
    batch: Any = SimpleNamespace(
        sequences=sequences,
        micro_rows=sequences.micro_rows(minibatch=run.minibatch_responses, microbatch=8),
        record=SimpleNamespace(
            mask_BT=mask[:, here],
            student=SimpleNamespace(rollout_logp_BT=tensors["old_logp_rollout"][:, here]),
            reference_rollout_logp_BT=tensors["ref_logp"][:, here],
        ),
    )
    read = {f"{name}_BT": tensor[:, here] for name, tensor in (advantages | tensors).items() if name in LOSS_TENSORS}
    model: Any = TinyModel(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    config: Any = SimpleNamespace(
        method=run.method, run=SimpleNamespace(seed=run.seed), tolerances=run.tolerances,
        loss=SimpleNamespace(reference_kl=run.reference_kl, clip_low=0.2, clip_high=0.2),
        rollout=SimpleNamespace(temperature=run.temperature, overlong_filter=False, lag=0),
        train=SimpleNamespace(max_grad_norm=1e9, warmup_steps=0, learning_rate=1e-3),
    )  # fmt: skip
    return update(model, optimizer, batch, Advantages(**read), config, steps_done=0).loss[0], gradient_of(model)


def alter_generation(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Tensor], Tensor]) -> None:
    """A column of what the generator answers."""
    honest = TinyGeneration.generate

    def generate(self: Any, data: Any, greedy: bool = False) -> Any:
        answer = honest(self, data, greedy)
        return type(answer)({**answer, name: change(answer[name])})

    monkeypatch.setattr(TinyGeneration, "generate", generate)


def test_a_filter_in_generation_does_not_leak_into_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator's own log-probabilities may be filtered; ratio and loss do not read them."""
    plain = train_ours(run_of("grpo"))
    alter_generation(monkeypatch, "logprobs", lambda logp: logp * 0.5)
    other = train_ours(run_of("grpo"))
    assert other.losses == plain.losses
    assert other.metrics[0]["policy/first_ratio_error"] == 0.0
    assert other.metrics[0]["token_mult_prob_error"] > 1.01


def test_the_overlong_filter_drops_from_the_loss_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fourth response counts as truncated: 24 train, all 32 stay in their groups."""
    alter_generation(monkeypatch, "truncated", lambda truncated: torch.arange(len(truncated)) % 4 == 0)
    run = train_ours(run_of("uecr", "grpo.overlong_filtering=true"))
    assert run.metrics[0]["count/trained"] == 24
    assert run.metrics[0]["response/truncated_share"] == 0.25
    assert run.trained[0]["sample_mask"].sum() == 24
    assert float(run.trained[0]["advantages"].abs().sum(dim=1).min()) > 0
