"""The launcher with NeMo-RL's real set-up, data, math environment and loop; only GPUs are stood in for."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_uecr.config.nemo_load import load_nemo_config
from nemo_uecr.nemo_adapter import launcher, upstream
from tests.config.test_nemo import CONFIGS
from tests.nemo.tiny_world import TinyGeneration, TinyModel, TinyPolicy, TinyTeacher

CHARACTERS = "".join(map(chr, range(32, 127))) + "\n"
STEPS = 2


def make_tokenizer(folder: Path) -> int:
    """A tokenizer of single characters with a chat template; returns its vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<eos>", *CHARACTERS]
    model = models.WordLevel({name: index for index, name in enumerate(names)}, unk_token="<pad>")
    plain = Tokenizer(model)
    plain.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}="
    tokenizer.save_pretrained(folder)
    return len(names)


class LaunchedPolicy(TinyPolicy):
    """The tiny policy with the arguments that NeMo-RL's set-up gives to a policy."""

    given: dict[str, Any]

    def __init__(self, *, config: Any, tokenizer: Any, worker_extension_cls_fqn: str, **given: Any) -> None:
        super().__init__(TinyModel(0, vocabulary=config["uecr"]["vocabulary"]), minibatch=8)
        LaunchedPolicy.given = given | {"config": config, "fqn": worker_extension_cls_fqn}

    def prepare_refit_info(self) -> None:
        """Nothing to send."""

    def print_node_ip_and_gpu_id(self) -> None:
        """No GPU."""


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The worker groups, engines and refits that need GPUs, stood in for; returns the clusters that were asked for."""
    grpo: Any = upstream.grpo_module()
    asked: list[dict[str, Any]] = []

    def cluster(**given: Any) -> Any:
        asked.append(given)
        return SimpleNamespace(**given)

    class Generation(TinyGeneration):
        def __init__(self, *, cluster: Any, config: Any) -> None:
            super().__init__(TinyModel(0, vocabulary=len(CHARACTERS) + 2), upstream.batch_class(), [])

        def prepare_refit_info(self, info: Any) -> None:
            """Nothing to receive."""

    checked = upstream.check()  # before the stand-ins, which it would refuse
    monkeypatch.setattr(upstream, "check", lambda: checked)
    monkeypatch.setattr(grpo, "RayVirtualCluster", cluster)
    monkeypatch.setattr(grpo, "VllmGeneration", Generation)
    monkeypatch.setattr(grpo, "refit_policy_generation", lambda *args, **given: None)
    monkeypatch.setattr(grpo, "maybe_gpu_profile_step", lambda *args, **given: None)
    monkeypatch.setattr(importlib.import_module("nemo_rl.distributed.virtual_cluster"), "init_ray", lambda: None)
    monkeypatch.setattr(upstream, "register_worker", lambda: None)
    monkeypatch.setattr(launcher, "scoring_policy_class", lambda timeout_s: LaunchedPolicy)
    monkeypatch.setattr(launcher, "check_models", lambda config: None)
    return asked


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("method", ["uecr", "grpo"])
def test_a_run_from_its_configuration_file(
    method: str, tmp_path: Path, clusters: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = make_tokenizer(tmp_path / "student")
    problems = tmp_path / "problems.jsonl"
    rows = [{"question": f"{n}+1", "final_answer": str(n + 1), "difficulty": n % 10} for n in range(60)]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    teachers: list[Any] = []

    def make_teacher(plan: Any, config: Any, given: Any) -> Any:
        teachers.append(plan.configuration(given["config"]))
        return TinyTeacher(TinyModel(9, vocabulary=vocabulary), [])

    monkeypatch.setattr(launcher, "_teacher", make_teacher)
    config = load_nemo_config(
        CONFIGS / "uecr_qwen3_1p7b.yaml",
        [
            f"method.name={method}", f"run.folder={tmp_path / 'run'}", f"student.model_name={tmp_path / 'student'}",
            "teacher.model_name=teacher", f"student.vocabulary={vocabulary}", f"data.train={problems}",
            "data.verifier_workers=1", "rollout.prompts_per_step=2", "rollout.responses_per_prompt=4",
            "train.minibatch_responses=8", f"train.steps={STEPS}", "checkpoint.every=0", "cluster.gpus_per_node=1",
            "telemetry.save_batch_every=1", "telemetry.tensorboard=false", "tolerances.first_ratio=1e-5",
        ],
    )  # fmt: skip
    launcher.train(config)
    assert sorted(path.name for path in (tmp_path / "run" / "batches").iterdir()) == [
        "step-000001.safetensors", "step-000002.safetensors",
    ]  # fmt: skip
    assert [given["max_colocated_worker_groups"] for given in clusters] == [3 if method == "uecr" else 2]
    assert LaunchedPolicy.given["fqn"] == upstream.WORKER_FQN
    assert LaunchedPolicy.given["init_reference_model"] is True
    assert len(teachers) == (method == "uecr")
    if teachers:
        assert teachers[0]["generation"]["temperature"] == 1.0
        assert teachers[0]["megatron_cfg"]["train_iters"] == STEPS
