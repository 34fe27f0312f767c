"""The functions of plain tensors that `nemo_uecr` exports: any leading shape, any mask, groups of any identity."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import nemo_uecr
from nemo_uecr.core.functions import compute
from nemo_uecr.core.methods import method_of
from nemo_uecr.core.record import ScoredBatch
from nemo_uecr.errors import ConfigError, ScoreError
from tests.core import sparse

SCALARS = {"alpha": 1.3, "rho": 0.7, "tau_delta": 0.8, "tau_entropy": 0.9}
P, G, T = 4, 3, 7


def batch(seed: int = 0) -> dict[str, Tensor]:
    """[P, G, T] scores with holes in the mask, NaN where it is 0."""
    g = torch.Generator().manual_seed(seed)
    mask = (torch.rand(P, G, T, generator=g) < 0.7).long()
    mask[..., 0] = 1
    scores = {name: -3.0 * torch.rand(P, G, T, generator=g) for name in ("old_logp", "teacher_logp")}
    scores["teacher_entropy"] = 2.0 * torch.rand(P, G, T, generator=g)
    scores = {name: each.masked_fill(mask == 0, torch.nan) for name, each in scores.items()}
    return {"task_reward": (torch.rand(P, G, generator=g) < 0.5).float(), "mask": mask, **scores}


def uecr(data: dict[str, Tensor], group: Any, **changes: Any) -> Tensor:
    return nemo_uecr.uecr_advantage(**data, group=group, **(SCALARS | changes))


def test_the_functions_load_on_first_use_and_importing_the_package_loads_no_torch() -> None:
    code = (
        "import nemo_uecr, sys; assert 'torch' not in sys.modules; nemo_uecr.policy_loss; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert all(hasattr(nemo_uecr, name) for name in nemo_uecr.__all__)


def test_any_leading_shape_and_any_identity_give_the_bits_of_the_method() -> None:
    data = batch()
    numbers = torch.arange(P).repeat_interleave(G)
    record = ScoredBatch(
        task_reward_B=data["task_reward"].reshape(-1),
        group_B=numbers,
        **{f"{name}_BT": data[name].reshape(-1, T) for name in ("old_logp", "teacher_logp", "teacher_entropy")},
        mask_BT=data["mask"].reshape(-1, T).bool(),
    )
    expected = compute(method_of("uecr", SCALARS), record).advantage_BT.reshape(P, G, T)
    assert torch.equal(uecr(data, numbers.reshape(P, G)), expected)
    assert torch.equal(uecr(data, [f"prompt {number}" for number in numbers.tolist()]), expected)
    assert torch.equal(uecr(data, list(numbers), unusable="zero"), expected)
    assert torch.equal(nemo_uecr.method_advantage("uecr", record, **SCALARS).advantage_BT.reshape(P, G, T), expected)


def test_stages_with_gathered_statistics_are_the_whole() -> None:
    """One rank holds two responses of each prompt, the other the third: rewards are gathered, tokens are not."""
    data = batch(1)
    group = torch.arange(P).unsqueeze(1).expand(P, G)
    whole = uecr(data, group)
    tokens = {name: data[name] for name in ("teacher_logp", "old_logp", "mask")}
    ranks = [slice(0, 2), slice(2, 3)]
    reward = torch.cat([nemo_uecr.teacher_reward(**{k: v[:, own] for k, v in tokens.items()}) for own in ranks], dim=1)
    unified = nemo_uecr.unified_advantage(data["task_reward"], reward, group, alpha=SCALARS["alpha"])
    for own in ranks:
        q = nemo_uecr.ecr_residual(
            **{k: v[:, own] for k, v in tokens.items()}, teacher_entropy=data["teacher_entropy"][:, own],
            task_advantage=unified.task[:, own], tau_delta=0.8, tau_entropy=0.9,
        )  # fmt: skip
        assert float(q.sum(dim=-1).abs().max()) < 1e-6
        advantage = unified.unified[:, own, None] + 0.7 * unified.task[:, own, None] * q
        advantage = advantage * tokens["mask"][:, own]
        torch.testing.assert_close(advantage.float(), whole[:, own], rtol=1e-6, atol=1e-6)


def test_a_method_may_mask_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """A = +-1 for one response each; of the three tokens below the median two are the right one's: -(2 - 1) / 3."""
    sparse.register(monkeypatch)
    old = torch.tensor([[-3.2, -3.1, -1.0, -1.0], [-4.0, -1.0, -1.0, -9.0], [torch.nan] * 4])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]])
    record = ScoredBatch.of(torch.tensor([1.0, 0.0, 0.0]), ["a"] * 3, mask, old)
    found = nemo_uecr.method_advantage("sparse", record, unusable="zero")
    kept = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]).bool()
    assert torch.equal(found.trained(record.mask_BT), kept)
    assert not found.advantage_BT[~kept].any()
    assert found.loss_tensors().keys() == {"advantage", "loss_mask"}
    logp = torch.full_like(old, -2.0).requires_grad_()
    loss = nemo_uecr.policy_loss(logp, logp, found.advantage_BT, kept, ref_logp=logp - 0.5, kl_coef=0.1)
    loss.total.backward()
    k3 = math.exp(-0.5) + 0.5 - 1.0
    assert float(loss.total.detach()) == pytest.approx(-1 / 3 + 0.1 * k3, abs=2e-6)
    assert logp.grad is not None
    assert (logp.grad != 0).equal(kept)


def test_the_first_state_may_be_none() -> None:
    data, state = batch(2), None
    record = ScoredBatch.of(
        data["task_reward"], torch.arange(P).repeat_interleave(G), data["mask"], data["old_logp"], data["teacher_logp"]
    )
    for step in range(2):
        found = nemo_uecr.method_advantage("saf_opd", record, step=step, total_steps=2, state=state)
        state = found.state
    assert state is not None
    assert "first_kl" in state


def test_what_cannot_be_used_is_an_error_or_zero() -> None:
    data = batch(2)
    group = torch.arange(P).unsqueeze(1).expand(P, G).clone()
    group[3] = torch.tensor([10, 11, 12])  # three prompts of one response
    data["mask"][0, 1] = 0
    with pytest.raises(ScoreError, match="response 1 has no sampled token"):
        uecr(data, group)
    found = uecr(data, group, unusable="zero")
    assert not found[0, 1].any()
    assert not found[3].any()
    rest = {name: torch.cat((value[0, [0, 2]], value[1:3].flatten(0, 1))) for name, value in data.items()}
    expected = uecr(rest, torch.tensor([0, 0, 1, 1, 1, 2, 2, 2]))
    assert torch.equal(torch.cat((found[0, [0, 2]], found[1:3].flatten(0, 1))), expected)
    nothing = {name: value[:0] for name, value in data.items()}
    assert uecr(nothing, group[:0]).shape == (0, G, T)
    empty = data | {"mask": torch.zeros_like(data["mask"])}
    assert not uecr(empty, group, unusable="zero").any()
    nobody = ScoredBatch.of(data["task_reward"], group, empty["mask"], data["old_logp"], data["teacher_logp"])
    found = nemo_uecr.method_advantage("grpo_plus_opd", nobody, unusable="zero")
    assert found.advantage_opd_BT is not None
    assert not found.advantage_opd_BT.any()
    with pytest.raises(ConfigError, match="method uecr needs alpha"):
        nemo_uecr.method_advantage("uecr", nobody, unusable="zero")
    with pytest.raises(ScoreError, match="each of the 12 responses is alone in its group"):
        uecr(data, torch.arange(P * G), unusable="zero")


def test_a_negative_log_likelihood_is_no_score() -> None:
    """In either's place, in the function and in its stages; rounding above 0 and what is masked out are not refused."""
    data = batch(3)
    group = torch.arange(P).unsqueeze(1).expand(P, G)
    for name in ("old_logp", "teacher_logp"):
        wrong = data | {name: -data[name]}
        stages = {key: wrong[key] for key in ("teacher_logp", "old_logp", "mask")}
        with pytest.raises(ScoreError, match=f"{name} of response 0 at token 0 is .* no log-probability above 0"):
            uecr(wrong, group)
        with pytest.raises(ScoreError, match=name):
            nemo_uecr.teacher_reward(**stages)
        with pytest.raises(ScoreError, match=name):
            nemo_uecr.ecr_residual(
                **stages, teacher_entropy=data["teacher_entropy"], task_advantage=torch.ones(P, G), tau_delta=1.0,
                tau_entropy=1.0,
            )  # fmt: skip
        rounded = data[name].masked_fill(data["mask"] == 0, 7.0)
        rounded[..., 0] = 5e-4
        assert uecr(data | {name: rounded}, group).isfinite().all()


def test_masks_that_would_be_misread_are_refused() -> None:
    """An additive mask has 0 at the tokens; one value a response is not a mask."""
    data = batch(4)
    group = torch.arange(P).unsqueeze(1).expand(P, G)
    logp = torch.zeros_like(data["old_logp"])
    additive = torch.zeros_like(logp).masked_fill(data["mask"] == 0, -torch.inf)
    for call in (
        lambda: uecr(data | {"mask": additive}, group),
        lambda: nemo_uecr.teacher_reward(old_logp=logp, teacher_logp=logp, mask=additive),
        lambda: nemo_uecr.policy_loss(logp, logp, logp, additive),
        lambda: nemo_uecr.token_scores(logp.unsqueeze(-1), torch.zeros_like(logp).long(), additive),
        lambda: nemo_uecr.token_logp(logp.unsqueeze(-1), torch.zeros_like(logp).long(), additive),
    ):
        with pytest.raises(ScoreError, match=r"mask has dtype torch.float32; expected bool or integer"):
            call()
    with pytest.raises(ScoreError, match=r"mask \[4, 3\], old_logp \[4, 3, 7\].*; expected one \[\.\.\., T\]"):
        uecr(data | {"mask": data["mask"][..., 0]}, group)
    with pytest.raises(ScoreError, match="mask has values from -10000 to 0; expected 0 and 1"):
        uecr(data | {"mask": torch.where(data["mask"] == 0, -10000, 0)}, group)
    with pytest.raises(ScoreError, match=r"group has dtype torch\.float32; expected integers: are"):
        uecr(data, group.float())
    with pytest.raises(ScoreError, match=r"teacher_logp \[3, 4, 7\]"):  # as many values, in another order
        uecr(data | {"teacher_logp": data["teacher_logp"].transpose(0, 1)}, group)


def test_missing_settings_are_named_together_and_a_wrong_method_has_the_list() -> None:
    record = ScoredBatch.of(torch.ones(2), ["a", "a"], torch.ones(2, 3).bool(), -torch.ones(2, 3), -torch.ones(2, 3))
    with pytest.raises(ConfigError, match="method uecr needs alpha, rho, tau_delta, tau_entropy"):
        nemo_uecr.method_advantage("uecr", record)
    with pytest.raises(ConfigError, match="unusable is 'zeros'"):
        nemo_uecr.method_advantage("uecr", record, unusable="zeros", **SCALARS)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"uecr: unknown setting tau_dleta; expected of .*alpha"):
        nemo_uecr.method_advantage("uecr", record, **SCALARS, tau_dleta=1.0)
    with pytest.raises(ConfigError, match=r"no method 'urec'; expected one of .*uecr"):
        nemo_uecr.method_advantage("urec", record)
    with pytest.raises(ConfigError, match=r"turn_separator needs the tokens' text.* segments_BT"):
        nemo_uecr.method_advantage("atod", record, step=1, turn_separator="\n")
    default = nemo_uecr.method_advantage("rlsd", record).advantage_BT
    assert torch.equal(default, nemo_uecr.method_advantage("rlsd", record, mix=0.5, bound=0.2).advantage_BT)


def test_scores_of_any_leading_shape_are_those_of_the_rows() -> None:
    g = torch.Generator().manual_seed(0)
    logits, tokens = torch.randn(2, 3, 4, 11, generator=g), torch.randint(11, (2, 3, 4), generator=g)
    mask = torch.rand(2, 3, 4, generator=g) < 0.6
    logits[~mask] = torch.nan
    found = nemo_uecr.token_scores(logits, tokens, mask.long(), temperatures=(1.0, 0.7), entropy=True)
    logp = logits.double().log_softmax(dim=-1)
    expected = logp.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).masked_fill(~mask, 0.0)
    torch.testing.assert_close(found.at(1.0), expected.float(), rtol=0, atol=2e-6)
    entropy = -(logp.exp() * logp).sum(dim=-1).masked_fill(~mask, 0.0)
    torch.testing.assert_close(found.entropy, entropy.float(), rtol=0, atol=2e-6)
    leaf = logits.masked_fill(~mask.unsqueeze(-1), 0.0).requires_grad_()
    at_rollout = nemo_uecr.token_logp(leaf, tokens, mask, temperature=0.7)
    assert torch.equal(at_rollout.detach(), found.at(0.7))
    at_rollout.sum().backward()
    assert not leaf.grad[~mask].any()
    assert leaf.grad[mask].any()
    assert torch.equal(nemo_uecr.token_logp(leaf.detach(), tokens)[mask], found.at(1.0)[mask])
    alone = nemo_uecr.token_scores(logits, tokens, mask, temperatures=(), entropy=True)
    assert (alone.logp.shape, torch.equal(alone.entropy, found.entropy)) == ((0, 2, 3, 4), True)
    nothing = nemo_uecr.token_scores(logits[:0], tokens[:0], entropy=True)
    assert nothing.logp.shape == (1, 0, 3, 4)


def test_shapes_that_would_broadcast_are_refused() -> None:
    """Two temperatures' rows where one is meant, one advantage a response, and a logit too many."""
    logp, mask = torch.zeros(3, 3, requires_grad=True), torch.ones(3, 3).bool()
    for wrong in ({"old_logp": torch.zeros(2, 3, 3)}, {"advantage": torch.ones(3)}, {"mask": mask[:, :1]}):
        fields = {"old_logp": torch.zeros(3, 3), "advantage": torch.ones(3, 3), "mask": mask} | wrong
        with pytest.raises(ScoreError, match=f"{next(iter(wrong))} has shape .* the shape of logp"):
            nemo_uecr.policy_loss(logp, **fields)
    gathered = torch.ones(3, 3, dtype=torch.float64)  # as the stages for split groups give it
    assert nemo_uecr.policy_loss(logp, torch.zeros(3, 3), gathered, mask).total == -1
    with pytest.raises(ScoreError, match=r"logp has dtype torch\.bfloat16; .* bf16 scores lose the gap"):
        nemo_uecr.policy_loss(logp.bfloat16(), torch.zeros(3, 3), torch.ones(3, 3), mask)
    with pytest.raises(ScoreError, match="a row of logits for each token"):
        nemo_uecr.token_scores(torch.zeros(3, 4, 9), torch.zeros(3, 3, dtype=torch.long))
    with pytest.raises(ScoreError, match="mask has values from 0 to 3; expected 0 and 1"):
        nemo_uecr.token_scores(torch.zeros(2, 2, 9), torch.zeros(2, 2).long(), torch.tensor([[1, 3], [1, 0]]))
    with pytest.raises(ScoreError, match="bf16 scores lose the gap"):
        nemo_uecr.teacher_reward(old_logp=torch.zeros(3, 3).bfloat16(), teacher_logp=torch.zeros(3, 3), mask=mask)


def test_the_stages_refuse_what_the_whole_refuses() -> None:
    """A lost verdict, a slice of another rank's, one value for all: each would spoil a step in silence."""
    reward, teacher, group = torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.zeros(4), [0, 0, 1, 1]
    lost = torch.tensor([1.0, torch.nan, 0.0, 1.0])
    with pytest.raises(ScoreError, match="task_reward of response 1 is nan"):
        nemo_uecr.unified_advantage(lost, teacher, group, alpha=1.0)
    with pytest.raises(ScoreError, match=r"teacher_reward has shape \[3\]; expected \[4\], one for each response"):
        nemo_uecr.unified_advantage(reward, teacher[1:], group, alpha=1.0)
    with pytest.raises(ScoreError, match="group names 5 responses; expected 4"):
        nemo_uecr.unified_advantage(reward, teacher, [*group, 1], alpha=1.0)
    logp, mask = torch.full((4, 3), -1.0), torch.ones(4, 3).bool()
    given = {"old_logp": logp, "teacher_logp": logp, "teacher_entropy": -logp, "mask": mask}
    for wrong in (torch.tensor([-1.0]), torch.zeros(3)):
        with pytest.raises(ScoreError, match=r"task_advantage has shape .*; expected \[4\]"):
            nemo_uecr.ecr_residual(**given, task_advantage=wrong, tau_delta=1.0, tau_entropy=1.0)
    with pytest.raises(ScoreError, match="task_advantage of response 1 is nan"):
        nemo_uecr.ecr_residual(**given, task_advantage=lost, tau_delta=1.0, tau_entropy=1.0)
    with pytest.raises(ScoreError, match=r"ref_logp has dtype torch\.float64; expected torch\.float32, as logp has"):
        nemo_uecr.policy_loss(logp, logp, logp, mask, ref_logp=logp.double(), kl_coef=1.0)
    for clip in (-1.0, math.nan):
        with pytest.raises(ConfigError, match=f"clip is {clip}; expected a positive number of nats"):
            nemo_uecr.teacher_reward(old_logp=logp, teacher_logp=logp, mask=mask, clip=clip)
    with pytest.raises(ScoreError, match=r"clip is \(-0\.2, 0\.2\); expected distances from 1"):
        nemo_uecr.policy_loss(logp, logp, logp, mask, clip=(-0.2, 0.2))


def test_a_batch_without_a_token_has_a_loss_of_zero() -> None:
    logp = torch.zeros(2, 3, requires_grad=True)
    out = nemo_uecr.policy_loss(logp, torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(2, 3).bool())
    out.total.backward()
    assert out.total.item() == 0
    assert logp.grad is not None
    assert not logp.grad.any()
