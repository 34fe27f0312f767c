"""docs/library.md's code in the trainers that it is written for: TRL's GRPOTrainer and verl's estimators."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.records import ScoredBatch, Settings

PAGE = Path(__file__).parents[2] / "docs" / "library.md"
SETTINGS = {"alpha": 1.3, "rho": 0.7, "tau_delta": 0.8, "tau_entropy": 0.9}

pytestmark = pytest.mark.real


def example(heading: str) -> dict[str, Any]:
    """The names that the section's code defines."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict[str, Any] = {"__name__": f"example_{heading.lower()}"}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


def by_the_method(reward: Any, group: Any, mask: Any, old: Any, teacher: Any, entropy: Any) -> torch.Tensor:
    """UECR on records in float64, as the back ends call it."""
    batch = ScoredBatch(
        task_reward_B=reward.double(), group_B=group, mask_BT=mask.bool(), old_logp_BT=old.double(),
        teacher_logp_BT=teacher.double(), teacher_entropy_BT=entropy.double(),
    )  # fmt: skip
    return METHODS["uecr"].compute(batch, Settings(**SETTINGS, std_floor=0.0, sample_std=False)).advantage_BT


def test_trl_trains_with_the_advantages_of_the_method(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="TRL is not installed; make test-real installs it")
    from datasets import Dataset

    from nemo_uecr.study.task import build_tokenizer
    from tests.local.tiny import new_model

    tokenizer = build_tokenizer()
    student, teacher = new_model(tokenizer, seed=0), new_model(tokenizer, seed=1)
    before = [each.detach().clone() for each in student.parameters()]
    trainer_class, seen = example("TRL")["UECRTrainer"], []

    class Watched(trainer_class):  # type: ignore[misc, valid-type]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch = super()._generate_and_score_completions(inputs)
            ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
            attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
            width, chosen = batch["completion_ids"].shape[1], batch["completion_ids"].unsqueeze(-1)
            with torch.no_grad():
                student_logp, teacher_logp = (
                    model(input_ids=ids, attention_mask=attention).logits[:, -width - 1 : -1].double().log_softmax(-1)
                    for model in (self.model, self.teacher)
                )
            group = torch.arange(len(ids)) // 4
            expected = by_the_method(
                self._rewards[:, 0], group, batch["completion_mask"], student_logp.gather(-1, chosen)[..., 0],
                teacher_logp.gather(-1, chosen)[..., 0], -(teacher_logp.exp() * teacher_logp).sum(-1),
            )  # fmt: skip
            seen.append(float((batch["advantages"] - expected).abs().max()))
            return batch

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [float(len(text) % 3 == 0) for text in completions]

    config = trl.GRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], max_steps=2, save_strategy="no", seed=3,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=6, learning_rate=1e-2, beta=0.0,
        loss_type="dapo", disable_tqdm=True,
    )  # fmt: skip
    trainer = Watched(
        model=student, reward_funcs=reward, args=config, processing_class=tokenizer, teacher=teacher, settings=SETTINGS,
        train_dataset=Dataset.from_dict({"prompt": ["1 + 2", "3 + 4"]}),
    )  # fmt: skip
    found = trainer.train()
    assert found.global_step == 2
    assert len(seen) == 2
    assert max(seen) < 1e-4
    assert any(not torch.equal(a, b) for a, b in zip(before, student.parameters(), strict=True))


def test_verl_computes_the_advantages_of_the_method() -> None:
    pytest.importorskip("verl", reason="verl is not installed; make test-real installs it")
    from verl import DataProto
    from verl.trainer.ppo import ray_trainer

    example("verl")
    g = torch.Generator().manual_seed(0)
    mask = (torch.rand(6, 5, generator=g) < 0.8).long()
    mask[:, 0] = 1
    rewards = torch.zeros(6, 5)
    rewards[:, -1] = torch.tensor([1.0, 0, 0, 1, 1, 0])
    scores = {name: -3 * torch.rand(6, 5, generator=g) for name in ("old_logp", "teacher_logp")}
    scores["teacher_entropy"] = 2 * torch.rand(6, 5, generator=g)
    uid = ["a1", "a1", "a1", "b2", "b2", "b2"]
    data = DataProto.from_dict(
        tensors={"response_mask": mask, "token_level_rewards": rewards, **scores}, non_tensors={"uid": uid}
    )
    out = ray_trainer.compute_advantage(data, "uecr", config=SETTINGS).batch["advantages"]
    expected = by_the_method(rewards.sum(-1), torch.tensor([0, 0, 0, 1, 1, 1]), mask, *scores.values())
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-5)
