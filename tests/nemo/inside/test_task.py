"""Our problems and our verifier in NeMo-RL's own loading and environment, and evaluation numbers beside its own."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.data.manifest import training_file
from nemo_uecr.data.problems import USUAL, read_problems
from nemo_uecr.data.sources import find_source
from nemo_uecr.nemo.translate import master_config
from nemo_uecr.stats import pass_at_k, score_interval
from tests.config.shipped import nemo_run
from tests.data.made import clean_rows, prepare_folder, write_benchmark, write_jsonl
from tests.nemo.inside.launched import make_tokenizer

pytestmark = pytest.mark.usefixtures("nemo_rl")
ROWS = 12


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A folder of `nemo-uecr data prepare` with difficulties 4, 4.5, ..., 9.5."""
    rows = [row | {"difficulty": 4.0 + 0.5 * number} for number, row in enumerate(clean_rows(ROWS))]
    rows[6]["question"] = "A line separator\u2028inside a question is no new row. What is 2 + 2?"
    source = write_jsonl(tmp_path / "source.jsonl", rows)
    return prepare_folder(source, tmp_path / "data", write_benchmark(tmp_path))


def data_section(prepared: Path, *overrides: str, dropped: tuple[int, ...] = ()) -> dict[str, Any]:
    """The data section that the launcher hands to NeMo-RL."""
    config = nemo_run(f"data.train={prepared}", "data.answer_key=answer", *overrides)
    return master_config(config, dropped=dropped)["data"]


def test_a_prepared_folder_reaches_nemo_rls_loading(prepared: Path, tmp_path: Path) -> None:
    """Five problems have difficulties from 5 to 7; the second of them has too long a prompt and is dropped."""
    from nemo_rl.data.utils import setup_response_data
    from transformers import AutoTokenizer

    make_tokenizer(tmp_path / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    dataset, validation = setup_response_data(tokenizer, data_section(prepared, dropped=(1,)), None)
    rows = [json.loads(line) for line in (prepared / "train.jsonl").read_text(encoding="utf-8").split("\n") if line]
    wanted = [row for row in rows if 5 <= row["difficulty"] <= 7]
    del wanted[1]
    assert (len(rows), len(dataset), validation) == (ROWS, 4, None)
    for index, row in enumerate(wanted):
        item = dataset[index]
        assert item["extra_env_info"]["ground_truth"] == row["answer"]
        assert item["message_log"][0]["content"].startswith(row["question"])
        assert item["message_log"][0]["content"].endswith(r"put your final answer within \boxed{}.=")
        assert item["loss_multiplier"] == 1.0


def test_both_back_ends_read_the_same_problems(prepared: Path) -> None:
    from nemo_rl.data.datasets import load_response_dataset

    every = [f"data.difficulty_{name}=null" for name in ("key", "low", "high")]
    section = data_section(prepared, "data.prompt_template={question}", *every)
    native = [[turn["content"] for turn in row["messages"]] for row in load_response_dataset(section["train"]).dataset]
    file = training_file(prepared, "data.train")
    local = read_problems(find_source(str(file), "train"), USUAL)
    assert native == [[problem.question, problem.answer] for problem in local]


def test_rewards_are_those_of_the_local_back_end(tmp_path: Path) -> None:
    """The verifier and a function that reads the answer, a column and the argument."""
    from nemo_uecr.nemo.task import RewardEnvironmentImpl
    from nemo_uecr.verifier.pool import check_response

    source = "def bonus(data_source, solution_str, ground_truth, extra_info, least): return extra_info['level'] / least"
    (tmp_path / "mine.py").write_text(source)
    rewards = f"reward=[math, {{call: {tmp_path}/mine.py:bonus, weight: 0.5, args: {{least: 4}}}}]"
    master = master_config(nemo_run("data.verifier_workers=1", rewards))
    environment = RewardEnvironmentImpl(master["env"][master["data"]["train"]["env_name"]])
    prompt = {"role": "user", "content": "What is 2+3? Somebody wrote \\boxed{5}."}
    responses = ["so \\boxed{5}", "\\boxed{5.0}", "\\boxed{6}", "five", "\\boxed{5=6}"]
    logs = [[prompt, {"role": "assistant", "content": text}] for text in responses]
    about = {"ground_truth": "5", "prompt": prompt["content"], "columns": {"level": 2}}
    returned = environment.step(logs, [about] * 5)
    metrics = environment.components()
    assert returned.rewards.tolist() == [1.25, 1.25, 0.25, 0.25, 0.25]
    assert returned.rewards.tolist() == [check_response(text, "5").reward + 0.25 for text in responses]
    thinking = environment.step([[prompt | {"content": "2+3?<think>\n"}, logs[0][1]]], [about])
    environment.shutdown()
    assert thinking.rewards.tolist() == [0.25]
    assert returned.terminateds.tolist() == [1.0] * 5
    assert returned.observations[0] == {"role": "environment", "content": "Environment: correct"}
    assert (metrics["reward/verifier/mean"], metrics["reward/bonus/mean"]) == (pytest.approx(0.4), 0.5)


@pytest.mark.usefixtures("ray_cluster")
def test_an_environment_of_nemo_rls_gets_its_settings_and_the_columns(prepared: Path, tmp_path: Path) -> None:
    import ray
    from nemo_rl.data.utils import setup_response_data
    from transformers import AutoTokenizer

    make_tokenizer(tmp_path / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    named = "reward={nemo_rl_environment: code_jaccard, num_workers: 1, stop_strings: null}"
    master = master_config(nemo_run(f"data.train={prepared}", "data.answer_key=answer", named))
    assert master["env"].pop("should_log_nemo_gym_responses")
    assert master["env"] == {"code_jaccard": {"num_workers": 1, "stop_strings": None}}
    dataset, _, environments, _ = setup_response_data(tokenizer, master["data"], master["env"])
    about = dataset[0]["extra_env_info"]
    assert about["difficulty"] == about["columns"]["difficulty"] == 5.0
    logs = [[{"role": "assistant", "content": text}] for text in (about["ground_truth"], "something else")]
    returned = ray.get(environments["problems"].step.remote(logs, [about] * 2))
    assert returned.rewards[0] > returned.rewards[1]


@pytest.mark.parametrize("k", [1, 4])
def test_pass_at_k_and_avg_at_k_are_nemo_rls(k: int) -> None:
    from nemo_rl.evals.eval import eval_pass_k

    rng = random.Random(5)
    rows = [[float(rng.random() < share) for _ in range(12)] for share in (0.0, 0.1, 0.3, 0.6, 1.0, 0.05, 0.9)]
    theirs = eval_pass_k(torch.tensor(rows).flatten(), 12, k) / len(rows)  # it adds up, its caller divides
    assert pass_at_k(rows, k) == pytest.approx(theirs, abs=1e-6)
    if k == 1:
        assert score_interval({"set": rows}).avg == pytest.approx(theirs, abs=1e-6)
