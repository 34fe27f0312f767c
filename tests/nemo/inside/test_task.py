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
from nemo_uecr.errors import DataError
from nemo_uecr.nemo.recipe import DATASET
from nemo_uecr.stats import pass_at_k, score_interval
from tests.data.made import clean_rows, prepare_folder, write_benchmark, write_jsonl
from tests.nemo.inside.launched import make_tokenizer
from tests.nemo.made_recipe import METHOD

pytestmark = pytest.mark.usefixtures("nemo_rl")
ROWS = 12


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A folder of `nemo-uecr data prepare` with difficulties 4, 4.5, ..., 9.5."""
    rows = [row | {"difficulty": 4.0 + 0.5 * number} for number, row in enumerate(clean_rows(ROWS))]
    rows[6]["question"] = "A line separator\u2028inside a question is no new row. " + "Think. " * 200 + "What is 2 + 2?"
    source = write_jsonl(tmp_path / "source.jsonl", rows)
    return prepare_folder(source, tmp_path / "data", write_benchmark(tmp_path))


def problems_of(prepared: Path, **changes: Any) -> dict[str, Any]:
    """The section `uecr.data`."""
    given = {
        "train": str(prepared), "question_key": "question", "answer_key": "answer", "max_prompt_tokens": 2048,
        "prompt_template": "{question}\nAnswer within \\boxed{}.", "enable_thinking": False, "long_prompts": "drop",
        "shuffle": True, "difficulty_key": "difficulty", "difficulty_low": 5.0, "difficulty_high": 7.0,
    }  # fmt: skip
    return given | changes


def data_section(prepared: Path, folder: Path, environment: str = "nemo_uecr", **changes: Any) -> dict[str, Any]:
    """NeMo-RL's section `data` of a recipe that names our data set."""
    make_tokenizer(folder / "tokenizer")
    (folder / "tokenizer" / "config.json").write_text('{"model_type": "qwen3", "vocab_size": 98}')
    train = {
        "dataset_name": DATASET, "processor": "math_hf_data_processor", "env_name": environment, "seed": 7,
        "problems": problems_of(prepared, **changes), "tokenizer": str(folder / "tokenizer"), "prompt_file": None,
        "system_prompt_file": None,
    }  # fmt: skip
    return {"train": train, "validation": None, "default": None, "max_input_seq_length": 2049, "shuffle": True}


def test_a_prepared_folder_reaches_nemo_rls_loading(prepared: Path, tmp_path: Path) -> None:
    """Five problems have difficulties from 5 to 7; the longest is too long and is dropped."""
    from nemo_rl.data.utils import setup_response_data
    from transformers import AutoTokenizer

    rows = [json.loads(line) for line in (prepared / "train.jsonl").read_text(encoding="utf-8").split("\n") if line]
    eligible = [row for row in rows if 5 <= row["difficulty"] <= 7]
    longest = max(eligible, key=lambda row: len(row["question"]))
    wanted = [row for row in eligible if row is not longest]
    limit = len(longest["question"]) + len("\nAnswer within \\boxed{}.")
    section = data_section(prepared, tmp_path, max_prompt_tokens=limit)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    dataset, validation = setup_response_data(tokenizer, section, None)
    assert (len(rows), len(dataset), validation) == (ROWS, 4, None)
    for index, row in enumerate(wanted):
        item = dataset[index]
        assert item["extra_env_info"]["ground_truth"] == row["answer"]
        assert item["message_log"][0]["content"].startswith(row["question"])
        assert item["message_log"][0]["content"].endswith("Answer within \\boxed{}.=")
        assert item["loss_multiplier"] == 1.0
    refused = data_section(prepared, tmp_path, max_prompt_tokens=limit, long_prompts="refuse")
    with pytest.raises(DataError, match="1 of 5 prompts have more than"):
        setup_response_data(tokenizer, refused, None)


def test_both_back_ends_read_the_same_problems(prepared: Path, tmp_path: Path) -> None:
    from nemo_rl.data.datasets import load_response_dataset

    every = dict.fromkeys(("difficulty_key", "difficulty_low", "difficulty_high"))
    section = data_section(prepared, tmp_path, prompt_template="{question}", **every)
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
    call = {"call": f"{tmp_path}/mine.py:bonus", "weight": 0.5, "args": {"least": 4}}
    section = {"method": METHOD, "teacher": {"model_name": "t"}, "reward": ["math", call], "verifier_workers": 1}
    environment = RewardEnvironmentImpl(section)
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


def test_rewards_judge_the_rows_of_a_data_set_of_nemo_rls() -> None:
    """Its rows say the reference answer alone."""
    from nemo_uecr.nemo.task import RewardEnvironmentImpl

    section = {"method": METHOD, "teacher": {"model_name": "t"}, "reward": "math", "verifier_workers": 1}
    environment = RewardEnvironmentImpl(section)
    turns = [{"role": "user", "content": "2+3"}, {"role": "assistant", "content": "\\boxed{5}"}]
    returned = environment.step([turns, turns], [{"ground_truth": "5"}, {"ground_truth": "6"}])
    environment.shutdown()
    assert returned.rewards.tolist() == [1.0, 0.0]


@pytest.mark.usefixtures("ray_cluster")
def test_an_environment_of_nemo_rls_gets_the_columns(prepared: Path, tmp_path: Path) -> None:
    import ray
    from nemo_rl.data.utils import setup_response_data
    from transformers import AutoTokenizer

    section = data_section(prepared, tmp_path, environment="code_jaccard")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    settings = {"code_jaccard": {"num_workers": 1, "stop_strings": None}}
    dataset, _, environments, _ = setup_response_data(tokenizer, section, settings)
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
