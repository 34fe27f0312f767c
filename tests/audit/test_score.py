"""Scoring with real, tiny models: against whole logits, resumed after a kill, from every kind of source."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from nemo_uecr.audit import store
from nemo_uecr.audit.score import Scoring, score_rollouts
from nemo_uecr.audit.sources import (
    RolloutSource,
    evaluation_source,
    jsonl_source,
    run_source,
    students_of,
    table_source,
)
from nemo_uecr.audit.store import Scored, read_scored
from nemo_uecr.cli.main import entry_point
from nemo_uecr.errors import DataError
from nemo_uecr.local.token_model import TokenModel
from tests.audit.made import TOKENIZER, encoded
from tests.data.made import write_jsonl
from tests.local.tiny import assets, in_child, load, run, save_model


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> RolloutSource:
    """A JSONL file with sampled ids of different lengths."""
    prompts = [
        TOKENIZER.apply_chat_template(
            [{"role": "user", "content": str(problem)}],
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=False,
        )
        for problem in range(5)
    ]
    texts = [("1=" * (row % 3)) + rf"\boxed{{{row % 4}}}" for row in range(10)]
    rows = [
        {
            "problem": f"p{row // 2}", "checkpoint": 0, "prompt": prompts[row // 2], "response": text, "answer": "1",
            "token_ids": encoded(text), "question": "1",
        }
        for row, text in enumerate(texts)
    ]  # fmt: skip
    return jsonl_source(write_jsonl(tmp_path_factory.mktemp("source") / "rollouts.jsonl", rows), step=None)


@pytest.fixture(scope="module")
def whole(source: RolloutSource, tmp_path_factory: pytest.TempPathFactory) -> Scored:
    """Its scores, with the teacher as a further anchor."""
    return scored(tmp_path_factory.mktemp("whole"), source, anchors={"base": str(assets().teacher)})


def scored(folder: Path, source: RolloutSource, **changes: Any) -> Scored:
    own = assets()
    fields: dict[str, Any] = {
        "teacher": str(own.teacher), "student_of": lambda step: str(own.student), "anchors": {}, "dtype": "float32",
        "device": torch.device("cpu"), "max_length": None, "batch": 3, "part": 4,
    }  # fmt: skip
    return score_rollouts(folder, source.rollouts, source.files, Scoring(**(fields | changes)))


def direct(scorer: TokenModel, prompt_ids: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
    """[3, N] log-probability, entropy and rank from the whole logits of one unpadded sequence."""
    with torch.no_grad():
        logits_SV = scorer.module(torch.tensor([[*prompt_ids, *ids]])).logits[0].double()
    logits_NV = logits_SV[len(prompt_ids) - 1 : -1]
    log_NV = logits_NV.log_softmax(dim=-1)
    own_N1 = torch.tensor(ids).unsqueeze(1)
    rank_N = 1 + (logits_NV > logits_NV.gather(1, own_N1)).sum(dim=1)
    return torch.stack([log_NV.gather(1, own_N1)[:, 0], -(log_NV.exp() * log_NV).sum(dim=1), rank_N])


def by_response(scores: Scored, anchor: str = "student") -> dict[str, torch.Tensor]:
    """[5, N] of each response: ids, the teacher's log-probability, entropy and rank, the anchor's log-probability."""
    found = {}
    for step in scores.checkpoints:
        table = scores.tokens(anchor, step)
        columns = (table.token_ids, table.teacher_logp, table.teacher_entropy, table.teacher_rank, table.anchor_logp)
        values_5N = torch.stack([column.double() for column in columns])
        found |= {scores.ids[row]: values_5N[:, table.span(at)] for at, row in enumerate(table.rows)}
    return found


def test_a_teacher_with_padding_columns_scores_as_the_one_without(
    tmp_path: Path, source: RolloutSource, whole: Scored
) -> None:
    """Padding columns as likely as real tokens have no effect."""
    module = load(assets().teacher).module
    weight = module.get_input_embeddings().weight.detach().clone()
    module.resize_token_embeddings(len(weight) + 20, mean_resizing=False)
    module.get_input_embeddings().weight.data.copy_(torch.cat((weight, weight[:20])))
    teacher = str(save_model(module, TOKENIZER, tmp_path / "wide"))
    wide = by_response(scored(tmp_path / "scores", source, teacher=teacher))
    assert_close(wide, by_response(whole), atol=2e-5, rtol=0)


def test_scores_are_those_of_the_whole_logits(source: RolloutSource, whole: Scored) -> None:
    found, base = by_response(whole), by_response(whole, "base")
    prompts = dict(zip(whole.ids, whole.column("prompt_ids"), strict=True))
    assert len(found) == 10
    models = [load(path) for path in (assets().teacher, assets().student)]
    for rollout in source.rollouts:
        ids, *values = found[rollout.id]
        assert rollout.token_ids == tuple(ids.tolist())  # no prompt, no padding, the end token included
        teacher, student = (direct(each, prompts[rollout.id], rollout.token_ids) for each in models)
        expected = torch.stack([*teacher, student[0], teacher[0]])
        assert_close(torch.stack([*values, base[rollout.id][4]]), expected, atol=2e-5, rtol=0)
    assert any((rank > 1).any() for _, _, _, rank, _ in found.values())
    rewards = dict(zip(whole.ids, whole.reward_B, strict=True))
    assert [rewards[each.id] for each in source.rollouts] == [0, 1, 0, 0, 0, 1, 0, 0, 0, 1]  # verified: the answer is 1


def test_the_audit_of_the_teacher_compares_engines_and_ends_in_advice(
    whole: Scored, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["audit", "teacher", str(whole.folder), "--engines", "transformers", "transformers-bf16", "vllm-fp8"]
    assert entry_point([*words, "--out", str(tmp_path / "out")]) == 0
    numbers = json.loads((tmp_path / "out" / "numbers.json").read_text())["numbers"]
    assert (numbers["mixed"], numbers["problems"], numbers["group_size"]) == (3, 5, 2)
    gaps = [values[1] - values[4] for values in by_response(whole).values()]
    assert numbers["numbers"]["teacher/gap_mean"] == pytest.approx(float(torch.cat(gaps).mean()), abs=1e-5)
    assert numbers["engines"]["transformers"]["teacher_reward"]["std"] < 1e-6
    assert numbers["engines"]["vllm-fp8"].keys() == {"skipped"}
    assert numbers["advice"]["teacher"] == "not enough evidence"  # three mixed problems bound no share
    lines = capsys.readouterr().out.splitlines()
    noise = {line.split()[2]: line.split()[3] for line in lines if line.startswith("noise of ")}
    assert [*noise] == ["transformers", "transformers-bf16", "vllm-fp8"]
    assert float(noise["transformers-bf16"]) > 1e-4
    assert lines[-1] == f"audit: {tmp_path / 'out'}"
    assert (tmp_path / "out" / "figure.svg").is_file()


@pytest.mark.parametrize("writes", [2, 3])
def test_a_kill_loses_one_part_at_most_and_the_rest_is_scored_once(
    tmp_path: Path, source: RolloutSource, whole: Scored, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is written first; then it dies before the first part, or before the second."""
    done, write = 1, store.write_part

    def write_part(*given: Any) -> None:
        nonlocal done
        done += 1
        if done == writes:
            os.kill(os.getpid(), signal.SIGKILL)
        write(*given)

    with monkeypatch.context() as patched:
        patched.setattr(store, "write_part", write_part)
        code, text = in_child(lambda: scored(tmp_path / "s", source))
    assert code == -signal.SIGKILL, text
    with pytest.raises(DataError, match="responses"):
        read_scored(tmp_path / "s")
    before = {path: path.read_bytes() for path in (tmp_path / "s").glob("part-*")}
    assert len(before) == writes - 2
    again = by_response(scored(tmp_path / "s", source))
    assert {path: path.read_bytes() for path in before} == before  # what was scored is not scored again
    assert again.keys() == set(whole.ids)
    assert_close(again, by_response(whole), atol=1e-6, rtol=0)


def test_a_long_response_keeps_its_head_and_says_so(tmp_path: Path, source: RolloutSource, whole: Scored) -> None:
    prompt = len(whole.column("prompt_ids")[0])
    scores = scored(tmp_path / "cut", source, max_length=prompt + 5)
    assert set(scores.scored_B.tolist()) <= {4, 5}
    sampled = dict(zip(whole.ids, whole.scored_B.tolist(), strict=True))
    assert scores.cut_B.tolist() == [sampled[name] > 5 for name in scores.ids]
    assert scores.cut_B.any()
    kept = by_response(scores)
    heads = {name: values_5N[:, : kept[name].shape[1]] for name, values_5N in by_response(whole).items()}
    assert_close(kept, heads, atol=1e-5, rtol=0)
    with pytest.raises(DataError, match="--max-length"):
        scored(tmp_path / "none", source, max_length=prompt)


def test_a_run_of_the_training_loop(tmp_path: Path) -> None:
    """Evaluations of each checkpoint, with the ids that were sampled; its saved steps need no scoring."""
    own = assets()
    folder = run(
        tmp_path / "run", "train.steps=2", "evaluation.at_start=true", "evaluation.every=1", "checkpoint.every=1",
        "checkpoint.keep_last=5", "telemetry.save_batch_every=1", f"evaluation.benchmarks={{tiny: {own.problems}}}",
    )  # fmt: skip
    source = run_source(folder, steps=frozenset({0, 2}))
    assert source.teacher == str(own.teacher)
    scores = scored(tmp_path / "s", source, student_of=source.student_of)
    assert scores.checkpoints == [0, 2]
    assert not scores.from_text_B.any()
    assert scores.plan["students"]["2"]["name"] == str(folder / "checkpoints" / "step-000002")
    # What training computed for its steps, scored again: the student before each update, and the teacher.
    again = dict[str, torch.Tensor]()
    for step in (1, 2):
        table = table_source(folder / "batches" / f"step-00000{step}.parquet", step=None)
        again |= by_response(scored(tmp_path / f"step-{step}", table, student_of=source.student_of))
    own_scores = read_scored(folder)
    assert own_scores.checkpoints == [0, 1]
    found = by_response(own_scores)
    assert found.keys() == again.keys()
    for name, values in found.items():
        assert_close(values, again[name], atol=2e-5, rtol=0)
    with pytest.raises(DataError, match="step 7"):
        run_source(folder, steps=frozenset({7}))


def test_text_alone_gets_the_tokenizers_ids_and_says_so(tmp_path: Path, source: RolloutSource) -> None:
    texts = [replace(each, token_ids=None, truncated=False) for each in source.rollouts]
    by_text = scored(tmp_path / "t", replace(source, rollouts=texts))
    assert by_text.from_text_B.all()
    ids = {each.id: list(each.token_ids or ()) for each in source.rollouts}  # the tiny tokenizer has one reading
    assert {name: each[0].tolist() for name, each in by_response(by_text).items()} == ids


def test_two_students_of_one_step_are_refused(source: RolloutSource) -> None:
    """Two runs on other problems: each response's name is its own, and one student would score them all."""
    first, second = (replace(source, student_of=lambda step, run=run: f"{run}/{step}") for run in ("a", "b"))
    assert students_of([first, first], None, str.upper)(0) == "A/0"
    with pytest.raises(DataError, match="a/0 and b/0"):
        students_of([first, second], None, str)


def test_an_evaluation_folder(tmp_path: Path) -> None:
    from nemo_uecr.data.benchmarks import load_benchmarks
    from nemo_uecr.evaluation.runner import EvaluationSettings, evaluate
    from nemo_uecr.generation.engines import Decoding
    from nemo_uecr.generation.prompts import ChatSettings

    own = assets()
    settings = EvaluationSettings(
        2, Decoding(0.8, 1.0, 0, 6), 1, ChatSettings("{question}", None, False), "transformers", "float32", 8
    )
    benchmarks = load_benchmarks([f"tiny={own.problems}"])
    evaluate("student", str(own.student), benchmarks, settings, tmp_path / "e")
    source = evaluation_source(tmp_path / "e", step=0)
    assert source.student_of(0) == str(own.student)
    scores = scored(tmp_path / "s", source)
    assert len(scores.ids) == 12
    assert not scores.from_text_B.any()
    with pytest.raises(DataError, match="STEP="):
        evaluation_source(tmp_path / "e", step=None)


@pytest.mark.parametrize("missing", ["response", "truncated", "prompt", "checkpoint"])
def test_a_row_that_cannot_be_scored_is_named(tmp_path: Path, missing: str) -> None:
    good = {"problem": "p", "response": "1", "prompt": "1", "checkpoint": 0, "truncated": False}
    path = write_jsonl(tmp_path / "rows.jsonl", [good, good | {missing: None}])
    with pytest.raises(DataError, match=f"rows.jsonl:2: .*{missing}"):
        jsonl_source(path, step=None)
