"""A trained model is evaluated under its run's prompt, and what was evaluated otherwise is not compared with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.audit.sources import run_source
from nemo_uecr.cli.evaluate import _prompt as prompt_of
from nemo_uecr.cli.main import entry_point
from tests.data.made import write_jsonl
from tests.local.tiny import assets, evaluation, every, records, run
from tests.reliability.commands import refused
from tests.responses import tables

CHAT = {"template": "Q {question}", "system": "Be brief.", "thinking": True}


def drawn(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The rows of an evaluation by problem and sample, without what names the place of the model in a run."""
    rows = tables.records(path)
    return {
        (row["problem"], row["sample"]): {name: row[name] for name in row if name not in ("id", "checkpoint")}
        for row in rows
    }


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps under a prompt that has nothing of the default."""
    prompt = ("data.prompt_template=Q {question}", "data.system_prompt=Be brief.", "data.enable_thinking=true")
    return run(tmp_path_factory.mktemp("prompted") / "run", *every(), *prompt)


def words(out: Path, *given: object) -> list[str]:
    """`evaluate` as the runs evaluate themselves, of the models and options given; a later option counts."""
    command, model, *sets = evaluation(given[0], out)
    return [*map(str, (command, model, *given[1:], *sets))]


def chat_of(folder: Path) -> object:
    return json.loads((folder / "settings.json").read_text())["chat"]


def test_checkpoint_run_and_export_are_evaluated_as_the_run_evaluates_itself(
    prompted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sample for sample; a model that no run trained, evaluated beside them, gets their prompt."""
    last, merged = prompted / "checkpoints" / "step-000002", tmp_path / "merged"
    assert entry_point(["export", str(prompted), "--merged", str(merged)]) == 0
    assert entry_point(words(tmp_path, f"checkpoint={last}", f"run={prompted}", f"base={assets().student}")) == 0
    line = f"prompt ({last}'s run): 'Q {{question}}', system prompt 'Be brief.', thinking True\n"
    assert (said := capsys.readouterr().out).count(line) == 1
    assert f"\nrun: {last}, the newest of the run\n" in said
    assert "\ncheckpoint: /" not in said, "it was named itself"
    assert entry_point(words(tmp_path, f"export={merged}")) == 0
    own = drawn(prompted / "evaluations" / "step-000002.parquet")
    for name in ("checkpoint", "run", "export"):
        assert drawn(tmp_path / name / "responses.parquet") == own
    assert chat_of(tmp_path / "base") == CHAT
    assert entry_point(["evaluate", "compare", str(prompted), str(tmp_path / "export")]) == 0
    assert "0     0 of 4" in capsys.readouterr().out  # six problems ask four questions


def test_the_command_line_goes_before_the_runs_prompt(
    prompted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry_point(words(tmp_path, f"a={prompted}", "--system-prompt", "", "--no-thinking")) == 0
    assert chat_of(tmp_path / "a") == CHAT | {"system": None, "thinking": False}
    assert entry_point(words(tmp_path, f"b={assets().student}", "--thinking")) == 0
    assert "prompt (default, with what is given): '{question}\\nPlease reason" in capsys.readouterr().out
    assert "'Q'" in refused(capsys, *words(tmp_path, f"c={prompted}", "--prompt-template", "Q"))


def test_models_of_runs_with_different_prompts_need_one_from_the_command_line(
    prompted: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = words(tmp_path, f"a={prompted}", f"b={trained}", "--dry-run")
    assert "evaluate them separately" in refused(capsys, *both, "--prompt-template", "{question}")
    assert entry_point([*both, "--prompt-template", "{question}", "--system-prompt", "", "--no-thinking"]) == 0


@pytest.mark.parametrize(
    ("given", "key", "note"),
    [
        (("--prompt-template", "{question}"), "chat.template='Q {question}' and '{question}'", "chat settings"),
        (("--dtype", "bfloat16"), "dtype='float32' and 'bfloat16'", "number types"),
        ((), "engine='transformers' and 'vllm'", "engines"),
    ],
)
def test_a_runs_evaluation_is_neither_compared_nor_ranked_with_one_taken_otherwise(
    prompted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: tuple[str, ...], key: str, note: str
) -> None:
    other = tmp_path / "a"
    assert entry_point(words(tmp_path, f"a={prompted}", *given)) == 0
    if not given:  # as if vLLM had drawn them
        settings = json.loads((other / "settings.json").read_text())
        (other / "settings.json").write_text(json.dumps(settings | {"engine": "vllm"}))
    for ours in (prompted, prompted / "evaluations" / "step-000002.parquet"):
        for theirs in (other, other / "responses.parquet"):
            assert f"were evaluated with {key}" in refused(capsys, "evaluate", "compare", ours, theirs)
    assert entry_point(["evaluate", "table", str(prompted), str(other)]) == 0
    table = capsys.readouterr().out
    assert f"No ranks in a: {note} of UECR-GRPO are" in table
    assert "**" not in table


def test_a_run_folder_in_a_configurations_place_is_told_what_to_name(
    prompted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "or RUN/config.yaml" in refused(capsys, "train", "--resume", prompted)


def test_the_demos_models_are_asked_as_the_demo_asks(capsys: pytest.CaptureFixture[str]) -> None:
    assert prompt_of(["demo:student", "demo:teacher"], None, None, None, {}, None).template == "{question}"
    assert "prompt (demo:student): '{question}', system prompt None, thinking False" in capsys.readouterr().out


def test_a_conversation_is_the_prompt_in_the_run_in_evaluate_and_in_audits(prompted: Path, tmp_path: Path) -> None:
    """Problems with the system turn of their own are drawn and judged as under the same system prompt of the run."""
    rows = records(assets().problems)
    system = {"role": "system", "content": "Be brief."}
    turns = [row | {"question": [system, {"role": "user", "content": row["question"]}]} for row in rows]
    talks = write_jsonl(tmp_path / "talks.jsonl", turns)
    prompt = ("data.prompt_template=Q {question}", "data.enable_thinking=true", f"data.train={talks}")
    benchmark = f"evaluation.benchmarks={{a: {talks}}}"
    folder = run(tmp_path / "run", *every(), *prompt, benchmark)
    samples = drawn(folder / "evaluations/step-000002.parquet")
    assert {tuple(turn.items()) for row in samples.values() for turn in row["context"]} == {tuple(system.items())}
    bare = drawn(prompted / "evaluations/step-000002.parquet")
    assert {key: row | {"context": [], "asked": bare[key]["asked"]} for key, row in samples.items()} == bare
    ours, theirs = (run_source(each, steps=None).rollouts for each in (folder, prompted))
    assert [each.prompt(None) for each in ours] == [each.prompt(None) for each in theirs]
    ours, theirs = (tables.records(each / "batches" / "step-000001.parquet") for each in (folder, prompted))
    assert [row["prompt_ids"] for row in ours] == [row["prompt_ids"] for row in theirs]
    given = [word.replace(str(assets().problems), str(talks)) for word in words(tmp_path, f"again={folder}")]
    assert entry_point(given) == 0
    assert drawn(tmp_path / "again" / "responses.parquet") == samples
