"""docs/library.md's code in the trainers that it is written for: TRL's GRPOTrainer and verl's estimators."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.core.functions import compute
from nemo_uecr.core.methods import method_of
from nemo_uecr.core.record import ScoredBatch

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
    return compute(method_of("uecr", SETTINGS), batch).advantage_BT


def test_trl_trains_with_the_advantages_of_the_method(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="TRL is not installed; make test-real installs it")
    from datasets import Dataset

    from nemo_uecr.demo.task import build_tokenizer
    from tests.local.tiny import new_model

    tokenizer = build_tokenizer()
    student = new_model(tokenizer, seed=0, attention_dropout=0.5)
    teacher = new_model(tokenizer, seed=1, vocab_size=len(tokenizer) + 40)  # padded columns
    before = [each.detach().clone() for each in student.parameters()]
    trainer_class, seen = example("TRL")["UECRTrainer"], []

    class Watched(trainer_class):  # type: ignore[misc, valid-type]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch = super()._generate_and_score_completions(inputs)
            ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
            attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
            width, chosen = batch["completion_ids"].shape[1], batch["completion_ids"].unsqueeze(-1)
            assert self.model.training
            self.model.eval()
            with torch.no_grad():
                logits = (model(input_ids=ids, attention_mask=attention).logits for model in (self.model, self.teacher))
                student_logp, teacher_logp = (
                    each[:, -width - 1 : -1, : len(tokenizer)].double().log_softmax(-1) for each in logits
                )
            self.model.train()
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


def test_trl_scores_both_models_in_one_arithmetic(tmp_path: Path) -> None:
    """In TRL's default precision the student's forward pass is autocast; a teacher that is not would be another one."""
    trl = pytest.importorskip("trl", reason="TRL is not installed; make test-real installs it")
    from datasets import Dataset

    from nemo_uecr.demo.task import build_tokenizer
    from tests.local.tiny import new_model

    tokenizer, seen = build_tokenizer(), list[torch.Tensor]()
    trainer_class = example("TRL")["UECRTrainer"]

    class Watched(trainer_class):  # type: ignore[misc, valid-type]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch = super()._generate_and_score_completions(inputs)
            seen.append(batch["advantages"])
            return batch

    config = trl.GRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, report_to=[], max_steps=1, save_strategy="no", learning_rate=0.0,
        per_device_train_batch_size=4, num_generations=4, max_completion_length=6, disable_tqdm=True,
    )  # fmt: skip
    assert config.bf16
    Watched(
        model=new_model(tokenizer, seed=0), teacher=new_model(tokenizer, seed=0), settings=SETTINGS, args=config,
        reward_funcs=lambda completions, **_: [0.0] * len(completions), processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": ["1 + 2"]}),
    ).train()  # fmt: skip
    assert len(seen) == 1
    assert not seen[0].any()


def test_trl_refuses_a_group_that_is_split_over_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    trl = pytest.importorskip("trl", reason="TRL is not installed; make test-real installs it")
    trainer_class = example("TRL")["UECRTrainer"]
    batch = {"completion_mask": torch.ones(6, 5, dtype=torch.long)}
    monkeypatch.setattr(trl.GRPOTrainer, "_generate_and_score_completions", lambda self, inputs: batch)
    trainer = object.__new__(trainer_class)
    trainer.model, trainer.num_generations = torch.nn.Identity(), 4
    with pytest.raises(ValueError, match="6 rows on a process; expected whole groups of 4"):
        trainer._generate_and_score_completions([])


def test_verl_computes_the_advantages_of_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its default trainer's own stage, from the queue and back into it."""
    pytest.importorskip("verl", reason="verl is not installed; make test-real installs it")
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf
    from tensordict import TensorDict
    from verl.trainer.ppo.v1 import PPOTrainer, PPOTrainerSync

    monkeypatch.setattr(PPOTrainer, "_compute_advantage", PPOTrainer._compute_advantage)  # the example replaces it
    example("verl")
    g = torch.Generator().manual_seed(0)
    lengths, uid = (5, 3, 4, 1, 5, 2), ["a1", "a1", "a1", "b2", "b2", "b2"]
    rewards = torch.tensor([1.0, 0, 0, 1, 1, 0])
    mask = torch.arange(5).unsqueeze(0) < torch.tensor(lengths).unsqueeze(1)
    mask[0, 2] = False  # another's turn
    scores = {name: -3 * torch.rand(6, 5, generator=g) for name in ("old_logp", "teacher_logp")}
    scores["teacher_entropy"] = 2 * torch.rand(6, 5, generator=g)

    def nested(values: torch.Tensor) -> torch.Tensor:
        rows = [row[:length] for row, length in zip(values, lengths, strict=True)]
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    placed = torch.zeros(6, 5).index_put((torch.arange(6), torch.tensor(lengths) - 1), rewards)
    columns = {"response_mask": mask.long(), "rm_scores": placed, "old_log_probs": scores["old_logp"] / 2, **scores}
    fields = {name: nested(values) for name, values in columns.items()} | {"uid": uid}
    keys = [f"{name}_{row}_0" for row, name in enumerate(uid)]
    trainer = object.__new__(PPOTrainerSync)
    algorithm = {
        "adv_estimator": "uecr",
        "gamma": 1.0,
        "lam": 1.0,
        "use_kl_in_reward": False,
        "std_floor": 0,
        **SETTINGS,
    }
    trainer.config = OmegaConf.create({"algorithm": algorithm, "actor_rollout_ref": {"rollout": {"n": 3}}})
    ray.init(num_cpus=4, include_dashboard=False)
    try:
        tq.init()
        data = TensorDict(fields, batch_size=6)
        batch = tq.kv_batch_put(keys=keys, partition_id="train", fields=data, tags=[{}] * 6)
        trainer._compute_advantage(batch, {})
        found = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=["advantages"])["advantages"]
        later = [f"later_{key}" for key in keys]
        data = TensorDict({name: fields[name] for name in fields if name != "teacher_entropy"}, batch_size=6)
        forgotten = tq.kv_batch_put(keys=later, partition_id="train", fields=data, tags=[{}] * 6)
        with pytest.raises(KeyError, match="teacher_entropy"):  # not those of the step before
            trainer._compute_advantage(forgotten, {})
        tq.close()
    finally:
        ray.shutdown()
    expected = by_the_method(rewards, torch.tensor([0, 0, 0, 1, 1, 1]), mask, *scores.values())
    torch.testing.assert_close(found.to_padded_tensor(0.0, (6, 5)).double(), expected, rtol=0, atol=1e-5)
