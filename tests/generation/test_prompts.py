"""A prompt is what was asked for and what was recorded: dates, arguments and special tokens in what others bring."""

from __future__ import annotations

import datetime
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.data.problems import Problem
from nemo_uecr.errors import CheckpointError, ConfigError, DataError
from nemo_uecr.generation import models, prompts
from nemo_uecr.generation.prompts import (
    ChatSettings,
    ClockError,
    check_questions,
    check_template,
    prompt_ids,
)
from nemo_uecr.local.provenance import verify_run
from nemo_uecr.start.model_files import chat_template_in_nemo_rl
from nemo_uecr.start.seen import Caution
from tests.local import tiny
from tests.reliability.commands import refused

CHAT = ChatSettings("{question}", None, thinking=False)
DAY = "2026-02-03"
TURNS = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def templated(template: str | dict[str, str]) -> Any:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def text_of(tokenizer: Any, **settings: Any) -> str:
    """The prompt of a question, after the checks of a run's start."""
    chat = ChatSettings("{question}", None, False, **settings)
    check_template(tokenizer, chat)
    return str(tokenizer.decode(prompt_ids(tokenizer, "1+2", chat)))


# Clocks.

#: As Llama 3.1 and later, gpt-oss, Magistral and SmolLM3 print the date, with what they print on `DAY`.
CLOCKS = {
    "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}{{ date_string }}":
        "03 Feb 2026",
    '{{ "Current date: " + strftime_now("%Y-%m-%d") }}': "Current date: 2026-02-03",
    "{%- set today = strftime_now( '%Y-%m-%d' ) -%}{{ today }}": "2026-02-03",
    "{% if strftime_now is defined %}{{ strftime_now('%A') }}{% endif %}": "Tuesday",
    "{{ strftime_now('%H:%M') }}": "00:00",
    "{% set now = strftime_now %}{{ now('%Y-%m-%d') }}": "2026-02-03",
    "{% set form = '%d.' ~ '%m.' %}{{ strftime_now(form) }}": "03.02.",
    "{{ strftime_now(format='%-d %B %Y') }}": "3 February 2026",
    "{% macro head() %}{{ strftime_now('%Y').split('-')[0] }}{% endmacro %}{{ head() }}": "2026",
}  # fmt: skip


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_template_with_a_clock_asks_for_the_date_and_prints_it(clock: str) -> None:
    tokenizer = templated(clock + TURNS)
    with pytest.raises(ClockError, match=rf"data\.prompt_date={datetime.date.today()} \(evaluate: --prompt-date\)"):
        text_of(tokenizer)
    assert text_of(tokenizer, prompt_date=DAY).startswith(CLOCKS[clock])
    assert tokenizer.chat_template == clock + TURNS, "a saved tokenizer keeps its clock"


def test_a_clock_that_is_not_reached_asks_for_nothing() -> None:
    llama = next(iter(CLOCKS)) + TURNS
    assert text_of(templated(llama), chat_template_kwargs={"date_string": "26 Jul 2024"}).startswith("26 Jul 2024")
    system = "{% if messages[0]['role'] == 'tool' %}{{ strftime_now('%Y') }}{% endif %}"
    assert "1+2" in text_of(templated(system + TURNS))


TOOLS = ({"type": "function", "function": {"name": "add"}},)


def test_of_several_templates_the_one_that_is_applied_is_looked_at() -> None:
    """As Hermes and Command have them: one of its own for tools."""
    several = templated({"default": TURNS, "tool_use": f"{{{{ tools[0].function.name }}}} {list(CLOCKS)[1]}{TURNS}"})
    assert text_of(several).startswith("<|im_start|>")
    with pytest.raises(ClockError):
        text_of(several, tools=TOOLS)
    assert text_of(several, tools=TOOLS, prompt_date=DAY).startswith("add Current date: 2026-02-03")
    with pytest.raises(DataError, match=r"several chat templates \(rag, tool_use\), and none is named default"):
        text_of(templated({"rag": TURNS, "tool_use": TURNS}))


def test_two_chat_templates_of_one_folder_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The edited one may be the one that nothing reads."""
    monkeypatch.setattr(models, "SAID", set())
    folder = shutil.copytree(tiny.assets().student, tmp_path / "m")
    stated = json.loads((folder / "tokenizer_config.json").read_text())
    for other, told in (((folder / "chat_template.jinja").read_text() + "\n", 0), (TURNS, 1)):
        (folder / "tokenizer_config.json").write_text(json.dumps(stated | {"chat_template": other}))
        models.load_tokenizer(str(folder), local_files_only=True)
        assert len([text for text in caplog.messages if "have different chat templates" in text]) == told


def test_inside_nemo_rl_the_clock_is_told() -> None:
    """It applies the template itself, and its own key can settle the date."""
    said = chat_template_in_nemo_rl(templated(next(iter(CLOCKS)) + TURNS), CHAT, verified=False)
    assert isinstance(said, Caution)
    assert "policy.tokenizer.chat_template_kwargs" in said.remedy


# Arguments.

EFFORT = "{{ reasoning_effort | default('medium') }}" + TURNS


def test_arguments_reach_the_template_and_what_it_does_not_read_is_refused() -> None:
    tokenizer = templated(EFFORT)
    assert text_of(tokenizer).startswith("medium")
    assert text_of(tokenizer, chat_template_kwargs={"reasoning_effort": "low"}).startswith("low")
    with pytest.raises(DataError, match=r"chat_template_kwargs: .* reads no effort; expected names that stand in"):
        text_of(tokenizer, chat_template_kwargs={"effort": "low"})
    with pytest.raises(DataError, match="is missing, and so is thinking_budget"):
        text_of(templated(None), chat_template_kwargs={"thinking_budget": 512})  # type: ignore[arg-type]
    granite = templated("{% if thinking %}think{% endif %}" + TURNS)
    assert text_of(granite, chat_template_kwargs={"thinking": True}).startswith("think")


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ("data.chat_template_kwargs={enable_thinking: true}", "data.enable_thinking"),
        ("data.chat_template_kwargs={add_generation_prompt: false}", "add_generation_prompt is no argument"),
        ("data.prompt_date=29.11.2026", "prompt_date: got '29.11.2026', expected a day"),
        ("data.prompt_date=2026-13-01", "prompt_date: got '2026-13-01', expected a day"),
    ],
)
def test_configurations_that_cannot_be_meant(given: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=fault):
        tiny.configured(tmp_path, given)


# Special tokens.


def problems(*questions: str) -> list[Problem]:
    return [Problem(f"p{place}", question, "3") for place, question in enumerate(questions)]


@pytest.mark.parametrize(
    "question", ["What does <|im_end|> mean?", "1+1\n<|im_start|>assistant\n", "<|im_start|>user\n1+2<|im_end|>"]
)
def test_special_tokens_in_questions(question: str, caplog: pytest.LogCaptureFixture) -> None:
    """One among others is told, with the token; most are prompts that somebody rendered, and refused."""
    tokenizer = templated(TURNS)
    check_questions(tokenizer, problems("1+1", "2+2", question), CHAT, "set")
    assert "set: 1 of 3 questions hold special tokens of the model" in caplog.text
    assert "in problem 'p2'" in caplog.text
    with pytest.raises(DataError, match=r"2 of 3 questions .* rendered already.*data\.question_key"):
        check_questions(tokenizer, problems("1+1", question, question), CHAT, "set")


def test_of_special_tokens_that_begin_alike_the_longest_is_named() -> None:
    tokenizer = templated(TURNS)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|a", "<|a|>"]})
    with pytest.raises(DataError, match=r"the first is '<\|a\|>' in problem"):
        check_questions(tokenizer, problems("What is <|a|>?"), CHAT, "set")


def test_special_tokens_that_are_meant(caplog: pytest.LogCaptureFixture) -> None:
    rows = problems("1+1", "2+2")
    check_questions(templated(TURNS), rows, ChatSettings("<|im_start|>{question}", None, False), "set")
    plain = templated(TURNS)
    plain.chat_template = None  # whole prompts as questions
    check_questions(plain, problems("<|im_start|>user\n1+2<|im_end|>\n"), CHAT, "set")
    assert not caplog.messages


def test_special_tokens_in_turns_before_the_question() -> None:
    row = Problem("p", "1+2", "3", context=({"role": "user", "content": "<|im_end|>"},))
    with pytest.raises(DataError, match=r"'<\|im_end\|>' in problem 'p'"):
        check_questions(templated(TURNS), [row], CHAT, "set")


# What is recorded.


def test_a_run_with_other_prompts_is_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an update of the library that renders them: data, models and settings are the same."""
    folder = tiny.run(tmp_path / "run", *tiny.every())
    kinds = verify_run(folder)
    assert "prompts of data.train" in kinds["same"]
    assert "prompts of a" in kinds["same"]
    monkeypatch.setattr(prompts, "rendered", lambda *given: f" {rendered(*given)}")
    with pytest.raises(CheckpointError, match=r"input 'prompts of a': sha256 \w{12} in the run, \w{12} here"):
        tiny.run(folder, *tiny.every(), "train.steps=3", resume=True)
    assert [text for text in verify_run(folder)["changed"] if "prompts of" in text]


rendered = prompts.rendered


def test_a_run_on_a_dated_template_goes_on_on_another_day(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a model's folder to checkpoints and an evaluation, which takes date and arguments from the run."""
    student = tiny.save_model(
        tiny.new_model(tiny.tokenizer(), seed=1), templated(next(iter(CLOCKS)) + EFFORT), tmp_path
    )
    short = ("train.steps=1", "checkpoint.every=1", f"student.model_name={student}", "method.name=grpo")
    run = tmp_path / "run"
    with pytest.raises(DataError, match=r"data\.prompt_date="):
        tiny.run(run, *short)
    assert not run.exists()
    given = (f"data.prompt_date={DAY}", "data.chat_template_kwargs={reasoning_effort: low}")
    tiny.run(run, *short, *given)
    tiny.run(run, *short[1:], *given, "train.steps=2", resume=True)
    words = [str(word) for word in tiny.evaluation(f"e={run}", tmp_path / "out")]
    assert entry_point(words) == 0
    said = capsys.readouterr().out
    assert f"reasoning_effort 'low', date {DAY}" in said
    chat = json.loads((tmp_path / "out" / "e" / "settings.json").read_text())["chat"]
    assert (chat["prompt_date"], chat["chat_template_kwargs"]) == (DAY, {"reasoning_effort": "low"})
    assert "prompt_date: got 'soon', expected a day" in refused(capsys, *words, "--prompt-date", "soon")
    again = [*words, "--prompt-date", "2026-02-04"]
    assert "chat.prompt_date='2026-02-03', this one has '2026-02-04'" in refused(capsys, *again)
    assert entry_point([*words[:-1], str(tmp_path / "b"), "--chat-template-kwargs", "reasoning_effort=high"]) == 0
    assert "reasoning_effort 'high'" in capsys.readouterr().out
    assert "expected NAME=VALUE" in refused(capsys, *words, "--chat-template-kwargs", "high")


def test_an_evaluation_makes_the_checks_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dated = tiny.save_model(tiny.new_model(tiny.tokenizer(), seed=1), templated(next(iter(CLOCKS)) + TURNS), tmp_path)
    assert "data.prompt_date=" in refused(capsys, *tiny.evaluation(f"a={dated}", tmp_path / "out"))
    (tmp_path / "set.jsonl").write_text(json.dumps({"question": "<|im_start|>user\n1+1<|im_end|>", "answer": "2"}))
    words = ["evaluate", tiny.STUDENT, "--benchmarks", f"b={tmp_path / 'set.jsonl'}", "--engine", "transformers"]
    words += ["--max-tokens", 3, "--out", tmp_path / "out"]
    assert "1 of 1 questions hold special tokens" in refused(capsys, *words)
    assert not list((tmp_path / "out").glob("**/*.parquet"))


def test_an_evaluation_with_other_prompts_is_not_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(word) for word in tiny.evaluation(f"a={tiny.STUDENT}", tmp_path)]
    assert entry_point(words) == 0
    monkeypatch.setattr(prompts, "rendered", lambda *given: f" {rendered(*given)}")
    assert "model.prompts_sha256.a='" in refused(capsys, *words)
