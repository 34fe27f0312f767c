"""What NeMo-RL's launch scripts need GPUs for, stood in for; set-up, data, environments and loop are its own."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from nemo_uecr.nemo import plug_in, upstream
from nemo_uecr.nemo.recipe import teacher_policy
from tests.nemo.inside.launched import CHARACTERS, ids_of, make_tokenizer, text_of
from tests.nemo.inside.tiny_world import TEMPERATURE, TinyGeneration, TinyModel, TinyPolicy, TinyTeacher

SOURCE = Path(os.environ.get("NEMO_RL_SOURCE", "."))
RECIPES = SOURCE / "examples" / "configs"
STEPS, PROMPTS, GROUP = 2, 2, 4


class StandInPolicy(TinyPolicy):
    """The tiny policy with the arguments that NeMo-RL's set-up gives to a policy."""

    made: ClassVar[list[StandInPolicy]] = []

    def __init__(self, *, config: Any, tokenizer: Any, worker_extension_cls_fqn: str, **given: Any) -> None:
        model = TinyModel(0, vocabulary=config["uecr"]["vocabulary"])
        super().__init__(model, minibatch=config["train_global_batch_size"])
        self.cfg, self.given = config, given | {"fqn": worker_extension_cls_fqn}
        self.use_sequence_packing = bool(config["sequence_packing"]["enabled"])
        self.use_dynamic_batches = bool(config["dynamic_batching"]["enabled"])
        StandInPolicy.made.append(self)

    def prepare_refit_info(self) -> None: ...

    def print_node_ip_and_gpu_id(self) -> None: ...

    def init_collective(self, *args: Any, **given: Any) -> list[Any]:
        return []

    def save_checkpoint(self, weights_path: str, **given: Any) -> None:
        Path(weights_path).mkdir(parents=True)

    def finalize_async_save(self, **given: Any) -> None: ...


class Answering(TinyGeneration):
    """Answers sums and moves in games.

    Of four responses to a sum the first and the last are right; with `flat`, all of those to an even number.
    """

    flat: ClassVar[bool] = False
    prompts: ClassVar[list[str]] = []

    def __init__(self, *, cluster: Any, config: Any) -> None:
        super().__init__(TinyModel(0, vocabulary=len(CHARACTERS) + 2), upstream.native("BatchedDataDict"), [])

    def prepare_refit_info(self, info: Any) -> None: ...

    def init_collective(self, *args: Any, **given: Any) -> list[Any]:
        return []

    def shutdown(self) -> bool:
        return True

    def respond(self, prompt: list[int], row: int) -> list[int]:
        text = text_of(token for token in prompt if token > 1)
        Answering.prompts.append(text)
        asked = re.findall(r"(\d+)\+1", text)
        if not asked:  # a game: a move that may be legal
            return ids_of(f"<action>{('up', 'down', 'left', 'right')[row % 4]}</action>")
        number = int(asked[-1])
        right = row % 4 in (0, 3) or (Answering.flat and number % 2 == 0)
        return ids_of(f"\\boxed{{{number + 1 if right else 0}}}")


@dataclass
class Seen:
    """What the scripts asked of the stand-ins."""

    clusters: list[dict[str, Any]] = field(default_factory=list)
    teachers: list[dict[str, Any]] = field(default_factory=list)
    room: list[bool] = field(default_factory=list)  # whether room was looked for because vLLM wakes

    @property
    def policy(self) -> StandInPolicy:
        return StandInPolicy.made[-1]


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_cluster: None) -> Seen:
    """Worker groups, engines and refits in this process."""
    grpo: Any = importlib.import_module("nemo_rl.algorithms.grpo")
    seen = Seen()

    def cluster(**given: Any) -> Any:
        seen.clusters.append(given)
        address = {"get_master_address_and_port": lambda: ("here", 1), "world_size": lambda: 1}
        return SimpleNamespace(**given, **address)

    def make_teacher(settings: Any, section: Any, *, student: Any, cluster: Any, tokenizer: Any, **more: Any) -> Any:
        policy = teacher_policy(section, student, settings.vocabulary)
        seen.teachers.append(policy | more | {"cluster": cluster.name})
        return TinyTeacher(TinyModel(9, vocabulary=settings.vocabulary), [])

    checked, native = upstream.check(), upstream.native  # before the stand-ins, which it would refuse
    monkeypatch.setattr(upstream, "check", lambda: checked)
    monkeypatch.setattr(grpo, "RayVirtualCluster", cluster)
    monkeypatch.setattr(grpo, "VllmGeneration", Answering)
    monkeypatch.setattr(grpo, "refit_policy_generation", lambda *args, **given: {})
    monkeypatch.setattr(grpo, "maybe_gpu_profile_step", lambda *args, **given: None)
    monkeypatch.setattr(importlib.import_module("nemo_rl.distributed.virtual_cluster"), "init_ray", lambda: None)
    ours = {"Policy": StandInPolicy, "RayVirtualCluster": cluster}
    monkeypatch.setattr(upstream, "native", lambda name: ours.get(name) or native(name))
    monkeypatch.setattr(upstream, "register_worker", lambda: None)
    monkeypatch.setattr(
        upstream, "score_on_workers", lambda policy, data, request, **_: TinyPolicy.score_tokens(policy, data, request)
    )
    monkeypatch.setattr(upstream, "call_all", lambda policy, method, *, waking, **_: seen.room.append(waking))
    monkeypatch.setattr(upstream, "generation_leaders", lambda generation: [])
    monkeypatch.setattr(plug_in, "RayTeacher", make_teacher)
    monkeypatch.setattr(Answering, "flat", False)
    monkeypatch.setattr(Answering, "prompts", [])
    monkeypatch.setattr(StandInPolicy, "made", [])
    monkeypatch.setenv("NRL_MEGATRON_CHECKPOINT_DIR", str(tmp_path / "conversions"))
    return seen


METHOD = "++uecr.method={name: uecr, alpha: 1.0, rho: 0.5, tau_delta: 1.0, tau_entropy: 1.0}"


def shrunk(folder: Path) -> list[str]:
    """Overrides that make any recipe tiny and give it the method: sizes, model, and where things are written."""
    student = folder / "student"
    if not student.exists():
        columns = make_tokenizer(student)
        (student / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": columns}))
        rows = [{"question": f"{n}+1", "answer": str(n + 1)} for n in range(60)]
        (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        f"policy.model_name={student}", f"policy.tokenizer.name={student}", f"grpo.num_prompts_per_step={PROMPTS}",
        f"grpo.num_generations_per_prompt={GROUP}", f"policy.train_global_batch_size={PROMPTS * GROUP}",
        "policy.train_micro_batch_size=1", "policy.logprob_batch_size=1",
        f"grpo.max_num_steps={STEPS}", "policy.max_total_sequence_length=512", "checkpointing.enabled=false",
        f"checkpointing.checkpoint_dir={folder / 'checkpoints'}", f"policy.generation.temperature={TEMPERATURE}",
        f"logger.log_dir={folder / 'logs'}", "logger.wandb_enabled=false", "logger.monitor_gpus=false",
        "logger.tensorboard_enabled=true", METHOD, f"++uecr.teacher.model_name={student}",
        "++uecr.save_batch_every=1", "++uecr.tolerances={first_ratio: 1.0e-5, first_ratio_p99: 1.0e-5}",
    ]  # fmt: skip


def local_problems(folder: Path) -> list[str]:
    """A data set of NeMo-RL's over a local file, with a part of it for validation."""
    return [
        "data.train.dataset_name=ResponseDataset", f"++data.train.data_path={folder / 'problems.jsonl'}",
        "++data.train.input_key=question", "++data.train.output_key=answer",
        "++data.train.split_validation_size=0.2", "data.validation=null", "env.math.num_workers=1",
        "grpo.val_at_start=true", "grpo.max_val_samples=4", "grpo.val_batch_size=4",
    ]  # fmt: skip


def launch(patch: pytest.MonkeyPatch, recipe: str | Path, given: Sequence[str], script: str = "run_grpo.py") -> None:
    """NeMo-RL's script on a recipe; a relative one is NeMo-RL's."""
    patch.chdir(SOURCE)
    patch.setattr(sys, "dont_write_bytecode", True)
    plug_in.run_script(SOURCE / "examples" / script, ["--config", str(RECIPES / recipe), *given])


def saved_steps(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints" / "uecr" / "batches").glob("*.parquet"))


def logged(folder: Path, tag: str) -> list[tuple[int, float]]:
    """Step and value of a number that NeMo-RL's logger wrote."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = [EventAccumulator(str(file)).Reload() for file in sorted(folder.rglob("events.out*"))]
    return [
        (event.step, event.value)
        for events in found if tag in events.Tags()["scalars"] for event in events.Scalars(tag)
    ]  # fmt: skip
