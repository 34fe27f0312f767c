"""The launcher with NeMo-RL's real set-up, data, environment actor and loop; only GPUs are stood in for."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.data.batch_file import load_batch
from nemo_uecr.generation.engines import Decoding
from nemo_uecr.nemo import evaluation, launcher, upstream
from nemo_uecr.nemo.translate import teacher_policy
from nemo_uecr.start import nemo_form
from tests.config.shipped import CONFIGS
from tests.nemo.inside.launched import ASKED, CHARACTERS, examined, ids_of, make_benchmarks, make_tokenizer, text_of
from tests.nemo.inside.tiny_world import TinyGeneration, TinyModel, TinyPolicy, TinyTeacher

STEPS = 2
#: Two teachers, one of them by two names.
SEVERAL = (
    "teacher.model_name=null", "routing.key=kind", "routing.default=c",
    "teachers={a: {model_name: one}, b: {model_name: two}, c: {model_name: one}}",
)  # fmt: skip


def load_tokenizer(folder: str) -> Any:
    """As NeMo-RL's set-up loads it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


class LaunchedPolicy(TinyPolicy):
    """The tiny policy with the arguments that NeMo-RL's set-up gives to a policy."""

    given: ClassVar[dict[str, Any]]

    def __init__(self, *, config: Any, tokenizer: Any, worker_extension_cls_fqn: str, **given: Any) -> None:
        super().__init__(TinyModel(0, vocabulary=config["uecr"]["vocabulary"]), minibatch=8)
        LaunchedPolicy.given = given | {"config": config, "fqn": worker_extension_cls_fqn}

    def prepare_refit_info(self) -> None: ...

    def print_node_ip_and_gpu_id(self) -> None: ...


class Answering(TinyGeneration):
    """Answers the sum in each prompt in four ways; only the first and the last earn our verifier's reward."""

    prompts: ClassVar[list[str]]

    def __init__(self, *, cluster: Any, config: Any) -> None:
        super().__init__(TinyModel(0, vocabulary=len(CHARACTERS) + 2), upstream.native("BatchedDataDict"), [])
        Answering.prompts = []

    def prepare_refit_info(self, info: Any) -> None: ...

    def respond(self, prompt: list[int], row: int) -> list[int]:
        Answering.prompts.append(text_of(prompt))
        return ids_of(ways(int(text_of(prompt).partition("+")[0]) + 1)[row % 4])


def ways(answer: int) -> list[str]:
    """Right in a box; right without one, which NeMo-RL's verifier rewards and ours does not; wrong; right again."""
    return [f"\\boxed{{{answer}}}", f"It is {answer}", "\\boxed{0}", f"\\boxed{{{answer}.0}}"]


#: Whether room was looked for because vLLM wakes, else because it has slept; refits, which look too, are stood in for.
ROOM: list[bool] = []


def logged(folder: Path, tag: str) -> list[tuple[int, float]]:
    """Step and value of a number that NeMo-RL's logger wrote."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = [EventAccumulator(str(file)).Reload() for file in sorted(folder.rglob("events.out*"))]
    return [
        (event.step, event.value)
        for events in found if tag in events.Tags()["scalars"] for event in events.Scalars(tag)
    ]  # fmt: skip


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The worker groups, engines and refits that need GPUs, stood in for; returns the clusters that were asked for."""
    grpo: Any = importlib.import_module("nemo_rl.algorithms.grpo")
    asked: list[dict[str, Any]] = []

    def cluster(**given: Any) -> Any:
        asked.append(given)
        return SimpleNamespace(**given)

    def score_here(policy: Any, data: Any, request: Any, *, seconds: float) -> Any:
        return TinyPolicy.score_tokens(policy, data, request)

    def call_here(policy: Any, method: str, *, seconds: float, share: float, waking: bool) -> None:
        ROOM.append(waking)

    checked, native = upstream.check(), upstream.native  # before the stand-ins, which it would refuse
    monkeypatch.setattr(upstream, "check", lambda: checked)
    monkeypatch.setattr(grpo, "RayVirtualCluster", cluster)
    monkeypatch.setattr(grpo, "VllmGeneration", Answering)
    monkeypatch.setattr(grpo, "refit_policy_generation", lambda *args, **given: None)
    monkeypatch.setattr(grpo, "maybe_gpu_profile_step", lambda *args, **given: None)
    ours = {"Policy": LaunchedPolicy, "init_ray": lambda: None}
    monkeypatch.setattr(upstream, "native", lambda name: ours.get(name) or native(name))
    monkeypatch.setattr(upstream, "register_worker", lambda: None)
    monkeypatch.setattr(upstream, "score_on_workers", score_here)
    monkeypatch.setattr(upstream, "call_all", call_here)
    monkeypatch.setattr(nemo_form, "check_models", lambda config: load_tokenizer(config.student.model_name))
    monkeypatch.setattr(nemo_form, "check_conversion", lambda role, model: None)
    monkeypatch.setattr(upstream, "generation_leaders", lambda generation: [])
    monkeypatch.setattr(evaluation, "answers_of", examined)
    ASKED.clear()
    ROOM.clear()
    return asked


def check_evaluations(folder: Path, config: NemoConfig) -> None:
    """Before training and after the last step, each set on its own, always with the same decoding and seeds."""
    records = [json.loads(line) for line in (folder / "evaluation.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, STEPS]
    for record in records:
        assert {name: row["avg"] for name, row in record["sets"].items()} == {"easy": 1.0, "hard": 0.5}
        assert record["average"]["avg"] == 0.75
    assert len((folder / "evaluations" / "step-000002.jsonl").read_text().splitlines()) == 8
    (first, decoding), (again, same) = ASKED
    assert decoding == same == Decoding(0.6, 0.95, 20, config.evaluation.max_tokens)
    assert first == again
    assert len({request.seed for request in first}) == 8
    numbers = {"hard/avg@2": 0.5, "hard/pass@2": 1.0, "average/avg@2": 0.75, "accuracy": 0.75, "truncated_share": 0.25}
    for name, value in numbers.items():
        assert logged(folder / "logs", f"validation/{name}") == [(0, value), (STEPS, value)], name
    assert [step for step, _ in logged(folder / "logs", "train/reward/task_mean")] == [1, 2]


def native_rewards(responses: list[str], answer: str) -> list[float]:
    """What NeMo-RL's own math verifier gives."""
    worker = importlib.import_module("nemo_rl.environments.math_environment").HFVerifyWorker
    verify = worker.__ray_metadata__.modified_class().verify
    return verify(responses, [answer] * len(responses), math_verify_impl="hf_math_verify")


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(("dedicated", "several"), [(0, False), (1, False), (0, True)])
def test_a_run_from_its_configuration_file(
    dedicated: int, several: bool, tmp_path: Path, clusters: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = make_tokenizer(tmp_path / "student")
    problems = tmp_path / "problems.jsonl"
    rows = [
        {"question": f"{n}+1", "final_answer": str(n + 1), "difficulty": n % 10, "kind": "ab"[n % 2]} for n in range(60)
    ]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.py").write_text("def level(solution_str, extra_info): return extra_info['difficulty'] / 10")
    teachers: list[Any] = []

    def make_teacher(config: Any, *, student: Any, cluster: Any, tokenizer: Any, stays: bool, workers: str) -> Any:
        made = {"cluster": cluster.name, "stays": stays, "workers": workers}
        teachers.append(teacher_policy(config, student, vocabulary) | made)
        return TinyTeacher(TinyModel(9, vocabulary=vocabulary), [])

    monkeypatch.setattr(launcher, "RayTeacher", make_teacher)
    config = load_nemo_config(
        CONFIGS / "uecr_qwen3_1p7b.yaml",
        [
            f"run.folder={tmp_path / 'run'}", f"student.model_name={tmp_path / 'student'}",
            "teacher.model_name=teacher", f"student.vocabulary={vocabulary}", f"data.train={problems}",
            "data.verifier_workers=1", "rollout.prompts_per_step=2", "rollout.responses_per_prompt=4",
            "train.minibatch_responses=8", f"train.steps={STEPS}", "checkpoint.every=0",
            f"cluster.gpus_per_node={1 + dedicated}", f"teacher.dedicated_gpus={dedicated}",
            "telemetry.save_batch_every=1", "tolerances.first_ratio=1e-5", "evaluation.every=5",
            "evaluation.samples=2", *make_benchmarks(tmp_path), *(SEVERAL if several else ()),
            f"reward=[math, {{call: {tmp_path}/mine.py:level, weight: 0.5}}]",
        ],
    )  # fmt: skip
    nemo_form.train(config, resume=False, origins={"run.seed": "a file"})
    saved = load_batch(tmp_path / "run" / "batches" / "step-000002.safetensors")
    assert ("teachers" in saved.header) == several
    rewarded = saved.tensors["task_reward"].view(2, 4)
    of_prompts = [int(prompt.partition("+")[0]) % 10 / 20 for prompt in Answering.prompts[-8::4]]
    right_PG = torch.tensor([[1.0, 0.0, 0.0, 1.0]] * 2)
    torch.testing.assert_close(rewarded, right_PG + torch.tensor(of_prompts).unsqueeze(1))
    assert load_nemo_config(tmp_path / "run" / "config.yaml", []) == config
    recorded = json.loads((tmp_path / "run" / "provenance.json").read_text())
    assert (list(recorded["sha256"]), "nemo_rl" in recorded["versions"]) == (["reward level"], True)
    levels = logged(tmp_path / "run" / "logs", "train/reward/level/mean")
    assert levels[1] == (2, pytest.approx(sum(of_prompts)))
    assert native_rewards(ways(5), "5") == [1.0, 1.0, 0.0, 1.0]
    # The problems come through our data set: difficulties 5 to 7 of the file, in the configured template.
    assert {int(prompt.partition("+")[0]) % 10 for prompt in Answering.prompts} <= {5, 6, 7}
    assert all("within \\boxed{}." in prompt for prompt in Answering.prompts)
    check_evaluations(tmp_path / "run", config)
    assert len(list((tmp_path / "run" / "batches").iterdir())) == STEPS
    # NeMo-RL would write each step's batch a second time, as text: 0.6 GB of 1,008 responses.
    assert list((tmp_path / "run").rglob("*train_data*")) == []
    # The evaluation before the first step has refitted the engine, which wakes again without a refit.
    assert ROOM == [True, False, False]
    # Engine, student and a colocated teacher share the policy's GPU; a dedicated teacher is alone on another.
    own = [("uecr_teacher_cluster", [1], 1)] if dedicated else []
    keys = ("name", "bundle_ct_per_node_list", "max_colocated_worker_groups")
    asked = [tuple(given[key] for key in keys) for given in clusters]
    assert asked == [(upstream.POLICY_CLUSTER, [1], 2 + (not dedicated) + several), *own]
    assert LaunchedPolicy.given["fqn"] == upstream.WORKER_FQN
    assert LaunchedPolicy.given["init_reference_model"] is True
    teacher, *others = teachers
    assert [(one["workers"], one["model_name"]) for one in others] == [("teacher_b", "two")] * several
    shares: Counter[int] = Counter()
    for name in "ab":
        shares.update(dict(logged(tmp_path / "run" / "logs", f"train/teacher/{name}/response_share")))
    assert shares == ({1: 1.0, 2: 1.0} if several else {})
    assert teacher["stays"] is bool(dedicated)
    assert teacher["cluster"] == (own[0][0] if own else upstream.POLICY_CLUSTER)
    assert teacher["generation"]["temperature"] == 1.0
    assert teacher["megatron_cfg"]["train_iters"] == STEPS
