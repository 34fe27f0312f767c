"""A folder of `nemo-uecr data prepare`, named in our configuration, through NeMo-RL's own dataset loading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.config.load import load_nemo_config
from tests.config.test_nemo import CONFIGS
from tests.data.made import clean_rows, prepare_folder, write_benchmark, write_jsonl
from tests.nemo.test_launch import make_tokenizer

ROWS = 12


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    rows = [row | {"difficulty": 4.0 + 0.5 * number} for number, row in enumerate(clean_rows(ROWS))]
    rows[6]["question"] = "A line separator\u2028inside a question is no new row. What is 2 + 2?"
    source = write_jsonl(tmp_path / "source.jsonl", rows)
    return prepare_folder(source, tmp_path / "data", write_benchmark(tmp_path))


def data_section(prepared: Path, tmp_path: Path, *overrides: str) -> dict[str, Any]:
    """The data section that the launcher hands to NeMo-RL."""
    from nemo_uecr.nemo.translate import master_config

    given = ["teacher.model_name=teacher", f"data.train={prepared}", f"run.folder={tmp_path}", *overrides]
    config = load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", given)
    section: dict[str, Any] = master_config(config)["data"]
    return section


@pytest.mark.usefixtures("nemo_rl")
def test_a_prepared_folder_reaches_nemo_rls_loading(prepared: Path, tmp_path: Path) -> None:
    from nemo_rl.data.utils import setup_response_data
    from transformers import AutoTokenizer

    make_tokenizer(tmp_path / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    section = data_section(prepared, tmp_path, "data.answer_key=answer")
    dataset, validation = setup_response_data(tokenizer, section, None)
    rows = [json.loads(line) for line in (prepared / "train.jsonl").read_text(encoding="utf-8").split("\n") if line]
    wanted = [row for row in rows if 5 <= row["difficulty"] <= 7]  # 4, 4.5, ..., 9.5: five of them
    assert len(rows) == ROWS
    assert (len(dataset), validation) == (5, None)
    for index, row in enumerate(wanted):
        item = dataset[index]
        assert item["extra_env_info"]["ground_truth"] == row["answer"]
        assert item["message_log"][0]["content"].startswith(row["question"])
        assert item["message_log"][0]["content"].endswith(r"put your final answer within \boxed{}.=")
        assert item["loss_multiplier"] == 1.0


@pytest.mark.usefixtures("nemo_rl")
def test_both_back_ends_read_the_same_problems(prepared: Path, tmp_path: Path) -> None:
    from nemo_rl.data.datasets import load_response_dataset

    from nemo_uecr.data.manifest import training_file
    from nemo_uecr.data.problems import load_problems

    section = data_section(
        prepared, tmp_path, "data.answer_key=answer", "data.difficulty_key=null", "data.difficulty_low=null",
        "data.difficulty_high=null", "data.prompt_template={question}",
    )  # fmt: skip
    native = [[turn["content"] for turn in row["messages"]] for row in load_response_dataset(section["train"]).dataset]
    file = training_file(prepared, "data.train")
    local = load_problems(file, question_key="question", answer_key="answer", id_key="id")
    assert native == [[problem.question, problem.answer] for problem in local]
