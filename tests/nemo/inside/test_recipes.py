"""NeMo-RL's own launch scripts and shipped recipes, unchanged, with a section `uecr`.

Each recipe is made tiny and trains two steps. What it says of data, environment, validation, sampling, layout and loss
is its own.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

from nemo_uecr.errors import CheckpointError, ConfigError
from nemo_uecr.generation.engines import Decoding
from nemo_uecr.nemo import evaluation, plug_in, upstream
from nemo_uecr.nemo.plug_in import NotPluggedInError
from nemo_uecr.responses.table import read_responses
from nemo_uecr.stopping import RunStopped
from tests.nemo.inside.launched import ASKED, examined, make_benchmarks
from tests.nemo.inside.stand_ins import (
    GROUP,
    METHOD,
    PROMPTS,
    RECIPES,
    SOURCE,
    STEPS,
    Answering,
    Seen,
    StandInPolicy,
    launch,
    local_problems,
    logged,
    saved_steps,
    shrunk,
)
from tests.nemo.inside.stand_ins import stand_ins as stand_ins
from tests.responses.tables import tensors_of

LLM = "recipes/llm/"
#: What moves a recipe of NeMo-RL's other worker to Megatron.
TO_MEGATRON = [
    "policy.dtensor_cfg.enabled=false", "policy.megatron_cfg.enabled=true", "policy.optimizer=null",
    "policy.scheduler=null",
]  # fmt: skip
EIGHT_B = "grpo_math_8B_megatron.yaml"
#: Right, wrong, wrong, right.
REWARDS = [[1.0, 0.0, 0.0, 1.0]] * PROMPTS


def rewards_of(folder: Path) -> list[list[list[float]]]:
    return [tensors_of(step)["reward"].view(PROMPTS, GROUP).tolist() for step in saved_steps(folder)]


def test_8b_with_its_data_environment_and_validation(
    tmp_path: Path, stand_ins: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NeMo-RL's data set, processor, math environment and validation; the best checkpoints are kept by its metric."""
    given = [
        "checkpointing.enabled=true",
        "checkpointing.save_period=1",
        "checkpointing.keep_top_k=1",
        "grpo.val_period=1",
    ]
    metric = ["checkpointing.metric_name=val:accuracy", "checkpointing.higher_is_better=true"]
    launch(monkeypatch, EIGHT_B, [*shrunk(tmp_path), *local_problems(tmp_path), *given, *metric])
    assert stand_ins.policy.given["fqn"] == upstream.WORKER_FQN
    assert rewards_of(tmp_path) == [REWARDS] * STEPS
    for step in saved_steps(tmp_path):
        assert bool((read_responses(step).tokens("teacher_entropy") > 0).all())
    assert [step for step, _ in logged(tmp_path, "validation/accuracy")] == [0, 1, 2]
    kept = [json.loads(path.read_text()) for path in (tmp_path / "checkpoints").glob("step_*/training_info.json")]
    assert kept
    assert all(0 < info["val:accuracy"] < 1 for info in kept)
    # Engine, student and teacher share the policy's GPUs; the engine has left them when the teacher comes.
    assert stand_ins.clusters[0]["max_colocated_worker_groups"] == 3
    assert stand_ins.room.count(False) == STEPS
    assert len(list(tmp_path.rglob("train_data_step*.jsonl"))) == STEPS  # NeMo-RL's own logs are untouched
    record = yaml.safe_load((tmp_path / "checkpoints" / "uecr" / "config.yaml").read_text())
    assert (record["uecr"]["method"]["name"], record["grpo"]["max_num_steps"]) == ("uecr", STEPS)


def test_8b_with_an_adapter(tmp_path: Path, stand_ins: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """The teacher inherits layout and precision, and no adapter."""
    recipe = f"{LLM}grpo-qwen3-8b-base-1n8g-megatron-lora.yaml"
    launch(monkeypatch, recipe, [*shrunk(tmp_path), *local_problems(tmp_path)])
    layout, (teacher,) = stand_ins.policy.cfg["megatron_cfg"], stand_ins.teachers
    assert (layout["peft"]["enabled"], layout["peft"]["dim"]) == (True, 128)
    assert teacher["megatron_cfg"]["peft"] == {"enabled": False}
    assert teacher["megatron_cfg"]["tensor_model_parallel_size"] == layout["tensor_model_parallel_size"]
    assert (teacher["generation"]["temperature"], teacher["stays"]) == (1.0, False)
    assert rewards_of(tmp_path) == [REWARDS] * STEPS


def test_a_mixture_of_30b(tmp_path: Path, stand_ins: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its expert ranks are the student's alone; the teacher on the same GPUs has those that its section gives."""
    arguments = [*shrunk(tmp_path), *local_problems(tmp_path)]
    file = tmp_path / "student" / "config.json"
    mixture = {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    file.write_text(json.dumps(json.loads(file.read_text()) | mixture))
    ranks = "expert_model_parallel_size"
    given = ["cluster.num_nodes=1", f"++uecr.teacher.megatron_cfg.{ranks}=2"]
    launch(monkeypatch, f"{LLM}performance/grpo-qwen3-30ba3b-4n8g.yaml", [*arguments, *given])
    layout, (teacher,) = stand_ins.policy.cfg["megatron_cfg"], stand_ins.teachers
    assert (layout[ranks], layout["freeze_moe_router"], teacher["megatron_cfg"][ranks]) == (8, True, 2)
    assert teacher["stays"] is False
    assert rewards_of(tmp_path) == [REWARDS] * STEPS
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "mixtral"}))
    with pytest.raises(ConfigError, match=r"^policy\.model_name: got .*, a mixture of experts of model_type 'mixtral'"):
        launch(monkeypatch, f"{LLM}performance/grpo-qwen3-30ba3b-4n8g.yaml", [*arguments, *given])


def test_7b_with_the_papers_kl_and_several_optimizer_steps(
    tmp_path: Path, stand_ins: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["++uecr.kl=paper", f"policy.train_global_batch_size={GROUP}", "cluster.num_nodes=1"]
    recipe = f"{LLM}grpo-qwen2.5-7b-instruct-4n8g-megatron.yaml"
    launch(monkeypatch, recipe, [*shrunk(tmp_path), *local_problems(tmp_path), *given])
    assert [step for step, _ in logged(tmp_path, "train/policy/ref_kl")] == [1, 2]
    assert logged(tmp_path, "train/count/optimizer_steps")[-1] == (2, 4.0)
    assert logged(tmp_path, "train/policy/first_ratio_error")[-1][1] < 1e-6


def test_dapo_moved_to_megatron(tmp_path: Path, stand_ins: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of equal rewards are dropped between rollout and scores; rewards are scaled to [-1, 1] and shaped."""
    monkeypatch.setattr(Answering, "flat", True)
    given = [
        *TO_MEGATRON, "cluster.num_nodes=1", "++policy.megatron_cfg.pipeline_model_parallel_size=1",
        "policy.megatron_cfg.context_parallel_size=1", "policy.make_sequence_length_divisible_by=4",
        "data.train.dataset_name=ResponseDataset", "grpo.batch_multiplier=1.5",
        "env.math.math_verify_impl=hf_math_verify", "data.max_input_seq_length=512",
        "policy.generation.max_new_tokens=64", "grpo.reward_shaping.max_response_length=64",
        "grpo.reward_shaping.overlong_buffer_length=4",
    ]  # fmt: skip
    launch(monkeypatch, f"{LLM}dapo-qwen2.5-7b.v2.yaml", [*shrunk(tmp_path), *local_problems(tmp_path), *given])
    assert rewards_of(tmp_path) == [[[1.0, -1.0, -1.0, 1.0]] * PROMPTS] * STEPS
    asked = {int(prompt.partition("+")[0].split()[-1]) % 2 for prompt in Answering.prompts if "+1" in prompt}
    assert asked == {0, 1}, "no group was dropped"


def test_the_sliding_puzzle_by_its_own_script(tmp_path: Path, stand_ins: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """A game of several turns, with text of the game between; nothing of it is a data set of files."""
    given = [
        *TO_MEGATRON, "policy.generation.top_p=1.0", "policy.generation.top_k=null", "grpo.max_rollout_turns=3",
        "env.sliding_puzzle_game.cfg.game_config.size=2", "grpo.max_val_samples=4", "grpo.val_batch_size=4",
        "grpo.val_period=0", "policy.max_total_sequence_length=2048",
    ]  # fmt: skip
    script = "run_grpo_sliding_puzzle.py"
    launch(monkeypatch, "grpo_sliding_puzzle.yaml", [*shrunk(tmp_path), *given], script)
    saved = saved_steps(tmp_path)
    assert len(saved) == STEPS
    mask = tensors_of(saved[-1])["sampled"].int()
    turns = Counter(((mask[:, 1:] - mask[:, :-1]) == 1).sum(dim=1).tolist())
    assert max(turns) == 3


def test_a_recipe_with_packing_off(tmp_path: Path, stand_ins: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_megatron_forward` holds the scores of padded rows against NeMo-RL's own."""
    recipe = f"{LLM}grpo-nano-v2-12b-1n8g-megatron.yaml"
    launch(monkeypatch, recipe, [*shrunk(tmp_path), *local_problems(tmp_path)])
    assert stand_ins.policy.use_sequence_packing is False
    assert rewards_of(tmp_path) == [REWARDS] * STEPS


def test_a_recipe_with_vllm_on_gpus_of_its_own(
    tmp_path: Path, stand_ins: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The student stays on its GPUs while vLLM generates, and leaves them to the teacher."""
    recipe = f"{LLM}grpo-llama3.1-8b-instruct-2n8g-fsdp2tp1-noncolocated.yaml"
    synchronous = "policy.generation.vllm_cfg.async_engine=false"
    launch(monkeypatch, recipe, [*shrunk(tmp_path), *local_problems(tmp_path), *TO_MEGATRON, synchronous])
    groups = {given["name"]: given["max_colocated_worker_groups"] for given in stand_ins.clusters}
    assert groups == {"grpo_train_cluster": 2, "grpo_inference_cluster": 1}
    assert stand_ins.room == []
    assert stand_ins.policy.events.count("offload_after_refit") == STEPS
    assert rewards_of(tmp_path) == [REWARDS] * STEPS


# -- what else a recipe may have -------------------------------------------------------------------------------------


def test_what_a_recipe_may_ask_of_a_step(tmp_path: Path, stand_ins: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """One prompt that is too long; NeMo-RL's filter of responses whose log-probabilities are off; a forced ratio."""
    rows = [{"question": f"{n}+1", "answer": str(n + 1)} for n in range(60)]
    arguments = [*shrunk(tmp_path), *local_problems(tmp_path)]
    rows[1]["question"] = "x" * 600 + "1+1"
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    honest = Answering.generate

    def off(self: Any, data: Any, greedy: bool = False) -> Any:
        answer = honest(self, data, greedy)
        answer["logprobs"][0] *= 3.0
        return answer

    monkeypatch.setattr(Answering, "generate", off)
    given = [
        "grpo.seq_logprob_error_threshold=1.5", "loss_fn.force_on_policy_ratio=true", "grpo.val_period=0",
        "data.train.split_validation_size=0", "grpo.val_at_start=false", "data.shuffle=false",
        "data.max_input_seq_length=512",
        "grpo.max_num_epochs=2",
    ]  # fmt: skip
    launch(monkeypatch, EIGHT_B, [*arguments, *given])
    trained = stand_ins.policy.trained
    assert len(trained) == STEPS
    for columns in trained:  # of the first group one response is filtered, of the second all were too long
        assert columns["sample_mask"].tolist() == [0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert [value for _, value in logged(tmp_path, "train/count/trained")] == [3.0, 3.0]


def test_several_data_loaders(tmp_path: Path, stand_ins: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each numbers its problems from 0."""
    arguments, sets = shrunk(tmp_path), []
    for name, first in (("one", 0), ("two", 100)):
        rows = [{"question": f"{n}+1", "answer": str(n + 1)} for n in range(first, first + 10)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        file = {"data_path": str(tmp_path / f"{name}.jsonl"), "input_key": "question", "output_key": "answer"}
        sets.append({"dataset_name": "ResponseDataset", "split_validation_size": 0, **file})
    default = {
        "prompt_file": None,
        "system_prompt_file": None,
        "processor": "math_hf_data_processor",
        "env_name": "math",
    }
    data = {
        "_override_": True, "train": sets, "validation": None, "default": default, "shuffle": False, "num_workers": 1,
        "use_multiple_dataloader": True, "num_prompts_per_dataloader": 1, "max_input_seq_length": 512,
        "custom_dataloader": "examples.custom_dataloader.custom_dataloader.example_custom_dataloader",
    }  # fmt: skip
    values = {
        "defaults": str(RECIPES / EIGHT_B), "data": data, "env": {"math": {"num_workers": 1}},
        "grpo": {"val_period": 0, "val_at_start": False},
    }  # fmt: skip
    (tmp_path / "loaders.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.syspath_prepend(str(SOURCE))
    launch(monkeypatch, tmp_path / "loaders.yaml", arguments)
    assert rewards_of(tmp_path) == [REWARDS] * STEPS
    first = tensors_of(saved_steps(tmp_path)[0])["token_ids"]
    assert not torch.equal(first[0], first[GROUP])


PROBLEMS = {
    "question_key": "question", "answer_key": "answer", "prompt_template": "{question}\nwithin \\boxed{}.",
    "enable_thinking": False, "max_prompt_tokens": 200, "long_prompts": "drop", "shuffle": True,
}  # fmt: skip


def own_recipe(folder: Path, **section: Any) -> Path:
    """A recipe of a user's that inherits one of NeMo-RL's and names our data set and rewards."""
    shrunk(folder)
    rows = [{"question": f"{n}+1", "answer": str(n + 1), "kind": "ab"[n % 2], "level": n % 10} for n in range(60)]
    (folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "mine.py").write_text("def level(solution_str, extra_info): return extra_info['level'] / 10")
    train = {
        "dataset_name": "nemo_uecr.nemo.task.ProblemsDataset", "problems": "${uecr.data}", "env_name": "nemo_uecr",
        "tokenizer": "${policy.model_name}", "processor": "math_hf_data_processor", "seed": 1, "prompt_file": None,
        "system_prompt_file": None,
    }  # fmt: skip
    values = {
        "defaults": str(RECIPES / EIGHT_B),
        "data": {"train": train, "validation": None},
        "env": {"nemo_uecr": "${uecr}"},
        "policy": {"tokenizer": {"chat_template_kwargs": {"enable_thinking": False}}},
        "grpo": {"val_period": 0, "val_at_start": False},
        "uecr": {
            "data": {"train": str(folder / "own.jsonl"), **PROBLEMS},
            "reward": ["math", {"call": f"{folder}/mine.py:level", "weight": 0.5}],
            "verifier_workers": 1,
            **section,
        },
    }  # fmt: skip
    (folder / "own.yaml").write_text(yaml.safe_dump(values))
    return folder / "own.yaml"


def check_evaluations(folder: Path) -> None:
    """Before training and after the last step, each set on its own, always with the same decoding and seeds."""
    records = [json.loads(line) for line in (folder / "evaluation.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, STEPS]
    for record in records:
        assert {name: row["avg"] for name, row in record["sets"].items()} == {"easy": 1.0, "hard": 0.5}
    (first, decoding), (again, same) = ASKED
    assert decoding == same == Decoding(0.6, 0.95, 20, 64)
    assert first == again
    assert len({request.seed for request in first}) == 8


@pytest.mark.parametrize("dedicated", [0, 1])
def test_our_data_rewards_and_evaluation(
    dedicated: int, tmp_path: Path, stand_ins: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """avg@k is logged beside NeMo-RL's numbers, and a checkpoint is named by it."""
    monkeypatch.setattr(evaluation, "answers_of", examined)
    ASKED.clear()
    sets = {line.partition("=")[0].rpartition(".")[2]: line.partition("=")[2] for line in make_benchmarks(tmp_path)}
    asked = {
        "every": 5, "at_start": True, "samples": 2, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "seed": 1,
        "max_tokens": 64, "benchmarks": sets,
    }  # fmt: skip
    given = [
        f"++uecr.teacher.dedicated_gpus={dedicated}", "cluster.num_nodes=1", f"cluster.gpus_per_node={4 + dedicated}",
        "++uecr.teacher.megatron_cfg={tensor_model_parallel_size: 1, pipeline_model_parallel_size: 1}",
        "checkpointing.enabled=true", "checkpointing.metric_name=val:average/avg@2",
        "policy.generation.vllm_cfg.max_model_len=512",
    ]  # fmt: skip
    launch(monkeypatch, own_recipe(tmp_path, evaluation=asked, log_batches=False), [*shrunk(tmp_path), *given])
    assert list(tmp_path.rglob("*train_data_step*")) == []
    check_evaluations(tmp_path / "checkpoints" / "uecr")
    numbers = {"hard/avg@2": 0.5, "hard/pass@2": 1.0, "average/avg@2": 0.75, "accuracy": 0.75, "truncated_share": 0.25}
    for name, value in numbers.items():
        assert logged(tmp_path, f"validation/{name}") == [(0, value), (STEPS, value)], name
    (info,) = (tmp_path / "checkpoints").glob("step_*/training_info.json")
    assert json.loads(info.read_text())["val:average/avg@2"] == 0.75
    assert all("within \\boxed{}." in prompt for prompt in Answering.prompts)
    levels = [int(prompt.partition("+")[0]) % 10 / 20 for prompt in Answering.prompts[-PROMPTS * GROUP :: GROUP]]
    expected = torch.tensor(REWARDS) + torch.tensor(levels).unsqueeze(1)
    torch.testing.assert_close(torch.tensor(rewards_of(tmp_path)[-1]), expected)
    assert logged(tmp_path, "train/reward/level/mean")[-1] == (STEPS, pytest.approx(sum(levels)))
    asked_for = [(given["name"], given["bundle_ct_per_node_list"]) for given in stand_ins.clusters]
    assert asked_for == [("grpo_policy_cluster", [4]), *[("uecr_teacher_cluster", [1])] * dedicated]
    assert stand_ins.clusters[0]["max_colocated_worker_groups"] == 3 - dedicated
    (teacher,) = stand_ins.teachers
    assert (teacher["stays"], teacher["cluster"]) == (bool(dedicated), asked_for[-1][0])


def test_several_teachers_by_a_column(tmp_path: Path, stand_ins: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two teachers, one of them by two names."""
    one, two = ({"model_name": str(tmp_path / name)} for name in ("student", "two"))
    named = {"teachers": {"a": one, "b": two, "c": one}, "routing": {"key": "kind", "default": "c"}}
    path = own_recipe(tmp_path, **named)
    (tmp_path / "two").symlink_to(tmp_path / "student")
    given = [each for each in shrunk(tmp_path) if "uecr.teacher.model_name" not in each]
    launch(monkeypatch, path, given)
    assert [(each["workers"], each["model_name"]) for each in stand_ins.teachers] == [
        ("teacher_a", one["model_name"]), ("teacher_b", two["model_name"]),
    ]  # fmt: skip
    assert stand_ins.clusters[0]["max_colocated_worker_groups"] == 4
    shares: Counter[int] = Counter()
    for name in "ab":
        shares.update(dict(logged(tmp_path, f"train/teacher/{name}/response_share")))
    assert shares == {1: 1.0, 2: 1.0}
    assert all({*read_responses(step).column("teacher")} <= {"a", "b"} for step in saved_steps(tmp_path))


GATE = """
from dataclasses import dataclass, replace

from nemo_uecr.core.methods.base import TEACHER
from nemo_uecr.core.methods.baselines import Grpo


@dataclass(frozen=True, kw_only=True)
class Gate(Grpo):
    \"\"\"A = A^GRPO where the teacher gives more than the student, else 0.\"\"\"

    reads = TEACHER

    def __call__(self, batch):
        grpo = super().__call__(batch)
        return replace(grpo, advantage_BT=grpo.advantage_BT * (batch.gap_BT > 0))
"""


def test_a_method_in_a_file_of_the_users(tmp_path: Path, stand_ins: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """It trains, its file is in the record, and another file does not continue the run."""
    (tmp_path / "gate.py").write_text(GATE)
    own = f"++uecr.method={{name: '{tmp_path}/gate.py:Gate'}}"
    arguments = [*(each for each in shrunk(tmp_path) if each != METHOD), *local_problems(tmp_path), own]
    given = ["checkpointing.enabled=true", "grpo.max_num_steps=1", "grpo.val_period=0", "grpo.val_at_start=false"]
    launch(monkeypatch, EIGHT_B, [*arguments, *given])
    (step,) = map(read_responses, saved_steps(tmp_path))
    gap, advantage = step.tokens("teacher_logp") - step.tokens("old_logp"), step.tokens("advantage")
    assert bool((advantage == 0)[gap < 0].all())
    assert float(advantage.abs().sum()) > 0
    record = json.loads((tmp_path / "checkpoints" / "uecr" / "provenance.json").read_text())
    assert len(record["code"]["uecr.method.name"]) == 64
    (tmp_path / "gate.py").write_text(GATE.replace("> 0", ">= 0"))
    with pytest.raises(CheckpointError, match=r"the file of uecr\.method\.name changed since"):
        launch(monkeypatch, EIGHT_B, [*arguments, *given, "grpo.max_num_steps=2"])


# -- stop, resume, and what is refused -------------------------------------------------------------------------------


def test_a_stopped_run_saves_and_is_continued(tmp_path: Path, stand_ins: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal in the first step brings NeMo-RL's time-out forward; the method's state comes from its checkpoint."""
    trust = METHOD.replace("name: uecr", "name: uecr_trust")
    arguments = [each for each in shrunk(tmp_path) if each != METHOD]
    given = [
        *arguments,
        *local_problems(tmp_path),
        trust,
        "checkpointing.enabled=true",
        "checkpointing.save_period=100",
    ]
    given += ["grpo.val_period=0", "grpo.val_at_start=false"]
    native = StandInPolicy.train

    def train(self: Any, *args: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGUSR1)
        return native(self, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(StandInPolicy, "train", train)
        with pytest.raises(
            RunStopped, match=rf"^stopped by SIGUSR1 after step 1 of {STEPS}; its checkpoint is complete"
        ):
            launch(monkeypatch, EIGHT_B, given)
    saved = json.loads((tmp_path / "checkpoints" / "step_1" / "training_info.json").read_text())
    assert saved[upstream.METHOD_STATE]["groups"] > 0
    with pytest.raises(CheckpointError, match=r"step_1 was written with uecr\.method\.alpha=1\.0, this run has 2\.0"):
        launch(monkeypatch, EIGHT_B, [*given, "uecr.method.alpha=2.0"])
    with pytest.raises(CheckpointError, match="the prompts of train changed since"):
        launch(monkeypatch, EIGHT_B, [*given, "++policy.tokenizer.chat_template='{{ messages[0].content }}'"])
    launch(monkeypatch, EIGHT_B, given)
    assert len(saved_steps(tmp_path)) == STEPS
    last = json.loads((tmp_path / "checkpoints" / f"step_{STEPS}" / "training_info.json").read_text())
    assert last[upstream.METHOD_STATE]["groups"] == pytest.approx(1.8 * saved[upstream.METHOD_STATE]["groups"], rel=0.2)


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (f"{LLM}grpo-qwen3-30ba3b-10n8g-megatron-cp2-r3-async.yaml", r"policy\.router_replay\.enabled: got True"),
        ("grpo_math_1B.yaml", r"policy\.megatron_cfg\.enabled: got False"),
    ],
)
def test_a_recipe_that_is_refused_starts_nothing(
    recipe: str, said: str, tmp_path: Path, stand_ins: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*shrunk(tmp_path), *local_problems(tmp_path)]
    with pytest.raises(ConfigError, match=said):
        launch(monkeypatch, recipe, arguments)
    assert stand_ins.clusters == []
    # A script that names its recipe itself is refused when it calls `setup`.
    config = importlib.import_module("nemo_rl.utils.config")
    grpo: Any = importlib.import_module("nemo_rl.algorithms.grpo")
    config.register_omegaconf_resolvers()
    values = config.parse_hydra_overrides(config.load_config(str(RECIPES / recipe)), arguments)
    from omegaconf import OmegaConf

    native = grpo.MasterConfig(**OmegaConf.to_container(values, resolve=True))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=said), plug_in.plugged_in():
        grpo.setup(native, "tokenizer", "data", None)
    assert stand_ins.clusters == []


def test_a_block_without_a_call_of_setup_ends_with_an_error(nemo_rl: str) -> None:
    """A script that imported `setup` before the block trains plain GRPO in silence."""
    grpo: Any = importlib.import_module("nemo_rl.algorithms.grpo")
    imported = grpo.setup
    with pytest.raises(NotPluggedInError, match="was not called through the plug-in"), plug_in.plugged_in():
        assert imported is not grpo.setup
    assert imported is grpo.setup
    with pytest.raises(LookupError), plug_in.plugged_in():  # an error of the script's own is not covered
        raise LookupError


def test_a_script_is_run_as_python_runs_it(nemo_rl: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds modules beside it, and may end in sys.exit."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    (tmp_path / "beside_the_script.py").write_text("def main(): return CODE\nCODE = None")
    (tmp_path / "script.py").write_text("import sys\nfrom beside_the_script import main\nsys.exit(main())")
    with pytest.raises(NotPluggedInError, match="was not called through the plug-in"):
        plug_in.run_script(tmp_path / "script.py", [])
    monkeypatch.setattr(sys.modules["beside_the_script"], "CODE", 3)
    with pytest.raises(SystemExit, match="3"):
        plug_in.run_script(tmp_path / "script.py", [])
    with pytest.raises(ConfigError, match=r"none\.py: no such file"):
        plug_in.run_script(tmp_path / "none.py", [])


def test_an_import_before_the_block_is_refused_before_anything_trains(
    nemo_rl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    early: Any = ModuleType("a_teams_script")
    early.prepare = importlib.import_module("nemo_rl.algorithms.grpo").setup
    monkeypatch.setitem(sys.modules, early.__name__, early)
    with pytest.raises(NotPluggedInError, match="a_teams_script has imported NeMo-RL's setup"), plug_in.plugged_in():
        raise AssertionError("the block began")
