"""An evaluation that is killed and continued: no sample lost, none twice, the same result."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.data.benchmarks import load_benchmark
from nemo_uecr.data.problems import Problem
from nemo_uecr.errors import DataError, DependencyError, RunFolderError
from nemo_uecr.evaluation import runner
from nemo_uecr.evaluation.compare import differences_of
from nemo_uecr.evaluation.runner import EvaluationSettings, PendingSample, evaluate, judge_generations, pending_samples
from nemo_uecr.evaluation.samples import PARTS, RESPONSES, finished
from nemo_uecr.generation import engines
from nemo_uecr.generation.engines import Decoding, Generation, Request, load_tokens
from nemo_uecr.generation.prompts import ChatSettings
from nemo_uecr.reproducible import derive
from nemo_uecr.responses.table import part_paths, read_responses
from nemo_uecr.stopping import JOB_PROGRESS
from nemo_uecr.verifier.pool import SHARED
from tests.evaluation.tiny import save_tokenizer
from tests.responses.tables import records, with_observed

SETTINGS = EvaluationSettings(
    samples=4, decoding=Decoding(0.6, 0.95, 20, 64), seed=42, chat=ChatSettings("{question}", None, False),
    engine="transformers", dtype="float32", batch=3,
)  # fmt: skip
SIZES = {"x": 3, "y": 2}
#: Evaluates into a folder by an engine that breaks down after so many responses; the result, and the seeds drawn.
Run = Callable[..., tuple[dict[str, Any], list[int]]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a tokenizer and without weights."""
    save_tokenizer(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"eos_token_id": 257}', encoding="utf-8")
    return tmp_path / "model"


@pytest.fixture
def run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    tokens = load_tokens(str(model))
    for name, size in SIZES.items():
        rows = [{"id": f"{name}{n}", "question": f"What is {n} + {5 - n}?", "answer": "5"} for n in range(size)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")

    def evaluated(folder: str, *, stop_after: int = 10**9, **changes: object) -> tuple[dict[str, Any], list[int]]:
        seeds: list[int] = []

        class Scripted:
            """Answers right when the seed is even."""

            def generate(self, requests: Sequence[Request], decoding: Decoding) -> list[Generation]:
                if len(seeds) + len(requests) > stop_after:
                    raise KeyboardInterrupt
                seeds.extend(request.seed for request in requests)
                texts = ["no idea" if request.seed % 2 else r"\boxed{5}" for request in requests]
                return [Generation((*tokens.tokenizer(text)["input_ids"], 257), False) for text in texts]

        monkeypatch.setitem(engines.ENGINES, "transformers", lambda *_, **__: Scripted())
        benchmarks = {name: load_benchmark(str(tmp_path / f"{name}.jsonl")) for name in SIZES}
        settings = replace(SETTINGS, **changes)  # type: ignore[arg-type]
        return evaluate("m", str(model), benchmarks, settings, tmp_path / folder), seeds

    return evaluated


def test_killed_and_continued_equals_uninterrupted(run: Run, tmp_path: Path) -> None:
    whole, seeds = run("whole")
    assert len(seeds) == 20 == len(set(seeds))  # 5 problems of 4 samples, each with its own seed
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run("parts", stop_after=7)
        (tmp_path / "parts" / PARTS / ".part-000009.parquet.tmp").write_bytes(b"PAR1")  # of a kill in a write
    assert sum(len(read_responses(path)) for path in part_paths(tmp_path / "parts" / PARTS)) == 6 + 6
    with pytest.raises(DataError, match="it has 12 of 20 samples"):
        finished(tmp_path / "parts")
    result, rest = run("parts")
    assert len(rest) == 20 - 12
    assert result == whole
    contents = [sorted(map(str, records(tmp_path / name / RESPONSES))) for name in ("whole", "parts")]
    assert contents[0] == contents[1]
    assert not (tmp_path / "parts" / PARTS).exists()
    assert run("parts", stop_after=0) == (whole, [])  # a finished evaluation is not repeated


def test_a_kill_between_the_table_and_the_removal_of_its_parts(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(runner.shutil, "rmtree", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run("out")
    assert part_paths(tmp_path / "out" / PARTS)
    assert run("out", stop_after=0)[0]["samples"] == 4
    assert len(read_responses(tmp_path / "out" / RESPONSES)) == 20
    assert not part_paths(tmp_path / "out" / PARTS)


def test_an_evaluation_of_an_earlier_version_is_not_continued(run: Run, tmp_path: Path) -> None:
    run("new")
    (tmp_path / "old").mkdir()
    settings = (tmp_path / "new" / "settings.json").read_text()
    (tmp_path / "old" / "settings.json").write_text(settings.replace("evaluation/3", "evaluation/2"))
    (tmp_path / "old" / "samples.jsonl").write_text("{}\n")
    with pytest.raises(RunFolderError, match=r"format=.nemo_uecr\.evaluation/2., this one has"):
        run("old")
    with pytest.raises(DataError, match=r"samples\.jsonl has a format of version 0\.3\.0 or earlier"):
        differences_of(tmp_path / "old", tmp_path / "old", seed=0)


@pytest.mark.parametrize(("stop_after", "advanced"), [(2, False), (7, True)])
def test_a_job_hears_whether_samples_were_saved(
    stop_after: int, advanced: bool, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(JOB_PROGRESS, str(tmp_path / "progress"))
    with pytest.raises(KeyboardInterrupt):
        run("out", stop_after=stop_after)  # in batches of three
    assert (tmp_path / "progress").exists() == advanced == bool(part_paths(tmp_path / "out" / PARTS))


def test_numbers_by_hand(run: Run) -> None:
    result, _ = run("out")
    right = {
        name: [[derive(42, name, f"{name}{row}", n) % 2 == 0 for n in range(4)] for row in range(size)]
        for name, size in SIZES.items()
    }
    means = {name: sum(map(sum, rows)) / (4 * len(rows)) for name, rows in right.items()}
    for name, rows in right.items():
        assert result["sets"][name]["avg"] == pytest.approx(means[name])
        assert result["sets"][name]["pass"]["4"] == pytest.approx(sum(map(any, rows)) / len(rows))
        assert result["sets"][name]["verdicts"]["correct"] == sum(map(sum, rows))
    # x has three problems and y two; the average gives each benchmark one half.
    assert result["average"]["avg"] == pytest.approx((means["x"] + means["y"]) / 2)


def test_a_result_counts_no_token_that_was_observed(run: Run, tmp_path: Path) -> None:
    before, _ = run("a")
    with_observed(tmp_path / "a" / RESPONSES)
    again, drawn = run("a")
    assert again == before
    assert not drawn
    assert differences_of(tmp_path / "a", tmp_path / "a", seed=0)["average"].difference == 0


def test_what_a_sample_records_of_its_question_is_equal_for_repeats(model: Path, tmp_path: Path) -> None:
    """Layout does not count; options do."""
    rows = ["Find  X.", "find x", "Find X.", "Find x."]
    options: list[dict[str, Any]] = [{}, {}, {"options": ["1", "2"]}, {"options": ["2", "1"]}]
    lines = [{"question": q, "answer": "5"} | more for q, more in zip(rows, options, strict=True)]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    tokens, loaded = load_tokens(str(model)), load_benchmark(str(tmp_path / "r.jsonl"))
    pending = pending_samples({"r": tokens.prompts(loaded.problems, SETTINGS.chat, "r")}, samples=1, seed=1)
    answers = [Generation((*tokens.tokenizer(r"\boxed{5}")["input_ids"], 257), False)] * len(rows)
    rows, _ = judge_generations(pending, answers, tokens, SHARED, checkpoint=None)
    first, again, *others = rows["asked"]
    assert first == again
    assert len({first, *others}) == 3


def test_a_thought_of_the_prompt_that_never_ends_has_no_answer(run: Run, model: Path) -> None:
    template = model / "chat_template.jinja"
    template.write_text(template.read_text() + "<think>\n")
    result, _ = run("out")
    assert result["average"]["avg"] == 0.0


def test_other_settings_or_problems_in_the_same_folder_are_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run("out", stop_after=7)
    with pytest.raises(RunFolderError, match="seed=42, this one has 43"):
        run("out", seed=43)
    file = tmp_path / "x.jsonl"
    before = file.read_text()
    file.write_text(before.replace("What is 0", "What was 0", 1))
    with pytest.raises(RunFolderError, match=r"benchmarks\.x\.row_set="):
        run("out")
    file.write_text(before)
    run("out", batch=1)  # how it is cut up does not count


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_an_engine_that_is_not_installed_leaves_no_settings_behind(run: Run) -> None:
    with pytest.raises(DependencyError, match="engine vllm needs vLLM"):
        run("out", engine="vllm")
    run("out")  # the other engine, as the line says, into the same folder


def test_a_thought_that_a_special_token_closes_is_not_judged(model: Path) -> None:
    tokens = load_tokens(str(model))
    tokens.tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    prompt, response = (
        tokens.tokenizer(text)["input_ids"] for text in ("2 + 3?<think>", r"\boxed{4}</think>\boxed{5}")
    )
    wanted = PendingSample(("b", "p", 0), Problem("p", "2 + 3?", "5"), Request(tuple(prompt), 0))
    rows, _ = judge_generations([wanted], [Generation((*response, 257), False)], tokens, SHARED, checkpoint=None)
    assert (rows["verdict"], rows["extracted"]) == (["correct"], ["5"])
