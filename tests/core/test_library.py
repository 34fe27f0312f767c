"""The functions of plain tensors that `nemo_uecr` exports: any leading shape, any mask, groups of any identity."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

import nemo_uecr
from nemo_uecr.core.functions import compute
from nemo_uecr.core.methods import method_of
from nemo_uecr.core.record import ScoredBatch
from nemo_uecr.errors import ConfigError, ScoreError, UecrError
from tests.core import sparse

SCALARS = {"alpha": 1.3, "rho": 0.7, "tau_delta": 0.8, "tau_entropy": 0.9}
P, G, T = 4, 3, 7
PROMPTS = torch.arange(P).unsqueeze(1).expand(P, G)


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
    data, group = batch(1), PROMPTS
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
        of_batch = replace(record, run=nemo_uecr.RunState(step=step, total_steps=2, state=state or {}))
        assert found.advantage_BT.equal(nemo_uecr.method_advantage("saf_opd", of_batch).advantage_BT)
        state = found.state
    assert state is not None
    assert "first_kl" in state


def test_what_cannot_be_used_is_an_error_or_zero() -> None:
    data, group = batch(2), PROMPTS.clone()
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
    assert not nemo_uecr.method_advantage("saf_opd", nobody, unusable="zero", step=0, total_steps=9).advantage_BT.any()
    with pytest.raises(ScoreError, match="each of the 12 responses is alone in its group"):
        uecr(data, torch.arange(P * G), unusable="zero")


def test_scores_of_any_leading_shape_are_those_of_the_rows() -> None:
    g = torch.Generator().manual_seed(0)
    logits, tokens = torch.randn(2, 3, 4, 11, generator=g), torch.randint(11, (2, 3, 4), generator=g)
    mask = torch.rand(2, 3, 4, generator=g) < 0.6
    found = nemo_uecr.token_scores(logits, tokens, mask.long(), temperatures=(1.0, 0.7), entropy=True)
    rows = nemo_uecr.token_scores(logits[mask], tokens[mask], temperatures=(1.0, 0.7), entropy=True)
    assert torch.equal(found.logp[:, mask], rows.logp)
    assert torch.equal(found.entropy[mask], rows.entropy)
    assert not found.logp[:, ~mask].any()
    assert torch.equal(nemo_uecr.token_logp(logits, tokens, mask, temperature=0.7), found.at(0.7))
    alone = nemo_uecr.token_scores(logits, tokens, mask, temperatures=(), entropy=True)
    assert (alone.logp.shape, torch.equal(alone.entropy, found.entropy)) == ((0, 2, 3, 4), True)
    nothing = nemo_uecr.token_scores(logits[:0], tokens[:0], entropy=True)
    assert nothing.logp.shape == (1, 0, 3, 4)


def test_rounding_above_0_and_what_is_masked_out_are_not_refused() -> None:
    data = batch(3)
    for name in ("old_logp", "teacher_logp"):
        rounded = data[name].masked_fill(data["mask"] == 0, 7.0)
        rounded[..., 0] = 5e-4
        assert uecr(data | {name: rounded}, PROMPTS).isfinite().all()


DATA = batch(3)
LOGP, MASK = torch.full((4, 3), -1.0), torch.ones(4, 3).bool()
PAIRS, REWARD, LOST = [0, 0, 1, 1], torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.tensor([1.0, torch.nan, 0.0, 1.0])
ADDITIVE = torch.zeros(4, 3).masked_fill(torch.eye(4, 3).bool(), -torch.inf)
TAUS = {"tau_delta": 1.0, "tau_entropy": 1.0}


def stage(**changes: Any) -> Tensor:
    given = {"old_logp": LOGP, "teacher_logp": LOGP, "teacher_entropy": -LOGP, "mask": MASK, "task_advantage": REWARD}
    return nemo_uecr.ecr_residual(**(given | changes), **TAUS)


def reward(**changes: Any) -> Tensor:
    return nemo_uecr.teacher_reward(**({"old_logp": LOGP, "teacher_logp": LOGP, "mask": MASK} | changes))


def loss(
    *, logp: Tensor = LOGP, old_logp: Tensor = LOGP, advantage: Tensor = LOGP, mask: Tensor = MASK, **more: Any
) -> Any:
    return nemo_uecr.policy_loss(logp, old_logp, advantage, mask, **more)


#: What would spoil a step in silence: a negative log-likelihood, an additive mask (0 at the tokens), shapes that would
#: broadcast, a lost verdict, a slice of another rank's.
REFUSED: dict[str, Callable[[], Any]] = {
    r"old_logp of response 0 at token 0 is .* no log-probability above 0": lambda: uecr(
        DATA | {"old_logp": -DATA["old_logp"]}, PROMPTS
    ),
    r"teacher_logp of response 0 at token 0": lambda: reward(teacher_logp=-LOGP),
    r"old_logp of response 0 at token 0": lambda: stage(old_logp=-LOGP),
    r"mask has dtype torch.float32; expected bool or integer": lambda: reward(mask=ADDITIVE),
    r"mask has dtype torch.float32": lambda: uecr(DATA | {"mask": DATA["mask"].float()}, PROMPTS),
    r"mask \[4, 3\], old_logp \[4, 3, 7\].*; expected one \[\.\.\., T\]": lambda: uecr(
        DATA | {"mask": DATA["mask"][..., 0]}, PROMPTS
    ),
    r"mask has values from -10000 to 0; expected 0 and 1": lambda: uecr(
        DATA | {"mask": 10_000 * DATA["mask"] - 10_000}, PROMPTS
    ),
    r"group has dtype torch\.float32; expected integers: are": lambda: uecr(DATA, PROMPTS.float()),
    r"teacher_logp \[3, 4, 7\]": lambda: uecr(DATA | {"teacher_logp": DATA["teacher_logp"].transpose(0, 1)}, PROMPTS),
    r"old_logp has shape .* the shape of logp": lambda: loss(old_logp=torch.stack([LOGP, LOGP])),
    r"advantage has shape .* the shape of logp": lambda: loss(advantage=torch.ones(3)),
    r"logp has dtype torch\.bfloat16; .* bf16 scores lose the gap": lambda: loss(logp=LOGP.bfloat16()),
    r"ref_logp has dtype torch\.float64; expected torch\.float32": lambda: loss(ref_logp=LOGP.double(), kl_coef=1.0),
    r"clip is \(-0\.2, 0\.2\); expected distances from 1": lambda: loss(clip=(-0.2, 0.2)),
    r"response 3 has the group None; expected": lambda: nemo_uecr.unified_advantage(
        REWARD, REWARD, ["a", "a", "a", None], alpha=1.0
    ),
    r"logits are a DTensor": lambda: nemo_uecr.token_scores(Mock(to_local=id), torch.zeros(3, 3).long()),
    r"a row of logits for each token": lambda: nemo_uecr.token_scores(torch.zeros(3, 4, 9), torch.zeros(3, 3).long()),
    r"mask has dtype torch.float32; expected bool": lambda: nemo_uecr.token_logp(
        torch.zeros(4, 3, 9), torch.zeros(4, 3).long(), ADDITIVE
    ),
    r"task_reward of response 1 is nan": lambda: nemo_uecr.unified_advantage(LOST, REWARD, PAIRS, alpha=1.0),
    r"teacher_reward has shape \[3\]; expected \[4\], one for each response": lambda: nemo_uecr.unified_advantage(
        REWARD, REWARD[1:], PAIRS, alpha=1.0
    ),
    r"group names 5 responses; expected 4": lambda: nemo_uecr.unified_advantage(REWARD, REWARD, [*PAIRS, 1], alpha=1.0),
    r"task_advantage has shape .*; expected \[4\]": lambda: stage(task_advantage=torch.tensor([-1.0])),
    r"task_advantage of response 1 is nan": lambda: stage(task_advantage=LOST),
    r"clip is -1.0; expected a positive number of nats": lambda: reward(clip=-1.0),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_would_be_misread_is_refused(said: str) -> None:
    with pytest.raises(UecrError, match=said):
        REFUSED[said]()


def test_missing_settings_are_named_together_and_a_wrong_method_has_the_list() -> None:
    record = ScoredBatch.of(torch.ones(2), ["a", "a"], MASK[:2], LOGP[:2], LOGP[:2])
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


def test_a_batch_without_a_token_has_a_loss_of_zero() -> None:
    logp = torch.zeros(4, 3, requires_grad=True)
    assert loss(logp=logp, old_logp=torch.zeros(4, 3), advantage=torch.ones(4, 3, dtype=torch.float64)).total == -1
    out = loss(logp=logp, mask=~MASK)
    out.total.backward()
    assert out.total.item() == 0
    assert not logp.grad.any()
