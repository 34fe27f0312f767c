"""Reward functions in the styles of TRL and verl, in a worker; what they return, and how they fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.config.schema import CallReward, VerifierReward
from nemo_uecr.errors import ConfigError, RewardError
from nemo_uecr.verifier.extract import Verdict
from nemo_uecr.verifier.pool import SHARED
from nemo_uecr.verifier.rewards import Outcome, Rewards, Sample, component_metrics

SOURCE = """
import asyncio, multiprocessing, os, subprocess, time

def trl(prompts, completions, completion_ids, hint, trainer_state, log_metric, scale=1, **columns):
    log_metric("seen", len(completions))
    assert len(prompts) == len(columns["task"]) == len(completions)
    return [scale * (len(ids) + (h or 0) + trainer_state.global_step) for ids, h in zip(completion_ids, hint)]

def messages(prompts, completions):
    return [len(p) * (c[0]["content"] == "yes" and p[-1]["role"] == "user") for p, c in zip(prompts, completions)]

slots = asyncio.Semaphore(1)

async def waits(completions, **columns):
    async def length(c):
        async with slots:
            await asyncio.sleep(0.01)
            return float(len(c))
    return await asyncio.gather(*map(length, completions))

def gathers(completions):
    return asyncio.gather(*(asyncio.sleep(0.01, float(len(c))) for c in completions))

def swallows(completions, task):
    try:
        return [float(c[0]["content"] == "yes") for c in completions]
    except TypeError:
        return [float(c == "yes") for c in completions]

def spawns(completions):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(half, completions)

def half(completion):
    return len(completion) / 2

def only_code(completions, task, **columns):
    return [1.0 if t == "code" else None for t in task]

def verl(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    right = solution_str == ground_truth
    return {"score": right + bonus, "source": data_source, "level": extra_info["level"]}

def verl_short(solution_str, ground_truth):
    return len(solution_str)

def only_alone(completions, **columns):
    [text] = completions
    return [float(len(text))]

def breaks(completions, **columns):
    return [1 / (c != "break") for c in completions]

def hangs(solution_str, **given):
    if solution_str == "break":
        subprocess.run(["sleep", "60"])
    return 1.0

def ends(solution_str, **given):
    if solution_str == "break":
        os._exit(3)
    return 1.0

def too_few(completions, **columns):
    return [1.0]

def not_a_number(solution_str, **given):
    return float("nan") if solution_str == "break" else 1.0

def one_for_all(completions):
    return 0.5

def no_score(solution_str, **given):
    return {"reward": 1.0}

def a_text(solution_str, **given):
    return "1.0"

def no_batch(completions):
    import numpy
    return numpy.ones(())

def two_each(completions):
    import numpy
    return numpy.ones((len(completions), 2))

def unknown(text):
    return 1.0
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rewards") / "mine.py"
    path.write_text(SOURCE)
    return path


def samples(*texts: str, **columns: Sequence[Any]) -> list[Sample]:
    return [
        Sample(
            id=f"row {row}",
            prompt="Question?",
            text=text,
            whole=text,
            token_ids=tuple(range(row + 1)),
            answer=r"\boxed{5}" if "boxed" in text else "yes",
            columns={"task": "code", "level": 3, **{name: values[row] for name, values in columns.items()}},
            dataset="train.jsonl",
        )
        for row, text in enumerate(texts)
    ]


Judge = Callable[..., list[Outcome]]


@pytest.fixture
def judge(file: Path) -> Judge:
    """Judges with functions of the file, ``None`` for the verifier."""

    def judged(given: Sequence[Sample], *named: str | None, **settings: Any) -> list[Outcome]:
        rewards = [
            VerifierReward() if name is None else CallReward(call=f"{file}:{name}", **settings) for name in named
        ]
        with closing(Rewards(rewards, correct_at=0.5, pool=SHARED)) as all_of_them:
            return all_of_them.judge(given, step=7)

    return judged


def rewards(outcomes: Sequence[Outcome]) -> list[float]:
    return [outcome.reward for outcome in outcomes]


def test_trls_style_gets_the_batch_with_its_columns(judge: Judge) -> None:
    given = samples("a", "b", hint=[0.5, None])
    assert rewards(judge(given, "trl")) == [8.5, 9.0]
    assert rewards(judge(given, "trl", args={"scale": 2}, weight=0.5)) == [8.5, 9.0]
    assert rewards(judge(samples("yes", "no"), "gathers")) == [3.0, 2.0]
    assert rewards(judge(samples("yes", "no"), "spawns")) == [1.5, 1.0]


def test_what_waits_in_one_call_serves_the_next(file: Path) -> None:
    with closing(Rewards([CallReward(call=f"{file}:waits")], correct_at=0.5, pool=SHARED)) as judges:
        for step in (1, 2):
            outcomes = judges.judge(samples("yes", "no"), step=step)
            assert rewards(outcomes) == [3.0, 2.0]


def test_a_file_imports_the_one_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, value in (("rewards", 1.0), (".", 0.25)):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "helpers.py").write_text(f"VALUE = {value}")
    (tmp_path / "rewards/r.py").write_text("from helpers import VALUE\ndef f(completions): return [VALUE]")
    monkeypatch.chdir(tmp_path)
    with closing(Rewards([CallReward(call="rewards/r.py:f")], correct_at=0.5, pool=SHARED)) as judges:
        assert rewards(judges.judge(samples("a"), step=1)) == [1.0]


def test_calls_of_several_threads_are_shared_among_copies(tmp_path: Path) -> None:
    """Each waits in a process of its own; without copies one would wait for the other."""
    (tmp_path / "slow.py").write_text("import os, time\ndef f(solution_str): return time.sleep(0.5) or os.getpid()")
    call = [CallReward(call=f"{tmp_path}/slow.py:f")]
    with (
        closing(Rewards(call, correct_at=0.5, pool=SHARED, copies=2)) as judges,
        ThreadPoolExecutor(4) as threads,
    ):
        found = [*threads.map(lambda text: judges.judge(samples(text), step=1)[0].reward, "abcd")]
    assert len(set(found)) == 2


def test_of_responses_that_come_one_by_one_a_share_may_fail(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text("def f(solution_str): return 1 / (solution_str != 'no')")
    with closing(Rewards([CallReward(call=f"{tmp_path}/odd.py:f")], correct_at=0.5, pool=SHARED)) as judges:
        assert rewards(judges.judge(samples("yes"), step=1)) == [1.0]
        assert [judges.judge(samples("no"), step=1)[0].failed for _ in range(5)] == [("f",)] * 5
        with pytest.raises(RewardError, match="failed on at least 6 of 100 responses"):
            judges.judge(samples("no"), step=1)


def test_a_reward_that_asks_for_the_step_says_so(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text("def f(completions, trainer_state): ...\ndef g(completions): ...")
    calls = [CallReward(call=f"{tmp_path}/step.py:{name}") for name in "fg"]
    with closing(Rewards(calls, correct_at=0.5, pool=SHARED)) as judges:
        assert judges.readers_of_the_step == ["f"]


def test_special_tokens_that_mark_a_thought_reach_the_verifier(judge: Judge) -> None:
    (given,) = samples(r" \boxed{5} hm")
    assert rewards(judge([replace(given, whole=r"[THINK] \boxed{5} hm")], None)) == [0.0]


def test_a_conversation_has_the_turns_before_the_users(judge: Judge) -> None:
    plain, wrong = samples("yes", "no")
    system = replace(plain, before=({"role": "system", "content": "Be brief."},))
    assert rewards(judge([plain, wrong, system], "messages", messages=True)) == [1.0, 0.0, 2.0]


@pytest.mark.parametrize(
    ("given", "name", "hint"),
    [
        ({"thinking": True}, "verl", "</think>"),
        ({"skipped": ("=",)}, "verl", "rollout.skip_special_tokens=false"),
        ({"skipped": ("=",), "thinking": True}, None, None),  # the verifier reads the whole text, and knows
        ({}, "swallows", "messages: true"),
        ({}, "verl", None),
    ],
)
def test_a_reward_of_0_for_a_whole_step_gets_a_hint_once(
    file: Path, given: dict[str, Any], name: str | None, hint: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    setting = VerifierReward() if name is None else CallReward(call=f"{file}:{name}")
    wrong, right = ([replace(each, **given) for each in samples("no", text)] for text in ("no", "yes"))
    with closing(Rewards([setting], correct_at=0.5, pool=SHARED)) as judges:
        if name is not None:
            judges.judge(right, step=1)
            assert not caplog.messages  # one response has a reward
        judges.judge(wrong, step=2)
        judges.judge(wrong, step=3)
    assert [hint in message for message in caplog.messages] == ([] if hint is None else [True])


def test_verls_style_gets_one_response(judge: Judge) -> None:
    assert rewards(judge(samples("yes", "no"), "verl")) == [1.0, 0.0]
    assert rewards(judge(samples("yes", "no"), "verl", args={"bonus": 0.25})) == [1.25, 0.25]
    assert rewards(judge(samples("four"), "verl_short")) == [4.0]


def test_the_sum_is_weighted_and_each_component_is_reported(judge: Judge) -> None:
    """Where the verifier is among the rewards, its verdict decides what is correct, whatever the sum."""
    outcomes = judge(samples(r"\boxed{5}", r"\boxed{6}", "none"), None, "verl_short", weight=-0.125)
    assert rewards(outcomes) == [1 - 9 / 8, -9 / 8, -4 / 8]
    assert [outcome.correct for outcome in outcomes] == [True, False, False]
    assert [outcome.verdict for outcome in outcomes] == [Verdict.CORRECT, Verdict.WRONG, Verdict.NO_ANSWER]
    assert component_metrics(outcomes) == pytest.approx(
        {"reward/verifier/mean": 1 / 3, "reward/verifier/failed": 0, "reward/verl_short/mean": 22 / 3,
         "reward/verl_short/failed": 0}
    )  # fmt: skip
    assert component_metrics(judge(samples(r"\boxed{5}"), None)) == {}


def test_a_function_may_leave_a_response_to_the_others(judge: Judge) -> None:
    outcomes = judge(samples("abc", "ab", task=["code", "math"]), "only_code", "waits")
    assert rewards(outcomes) == [4.0, 2.0]
    assert component_metrics(outcomes)["reward/only_code/mean"] == 1.0
    with pytest.raises(RewardError, match="row 1"):
        judge(samples("a", "b", task=["code", "math"]), "only_code")


@pytest.mark.parametrize(("name", "verdict"), [("breaks", "error"), ("hangs", "timeout"), ("ends", "error")])
def test_a_failure_counts_zero_until_there_are_too_many(judge: Judge, name: str, verdict: str) -> None:
    """One of twenty is five percent; two stop the run, with the reason and the response of the first."""
    settings = {"timeout_s": 1.0} if name == "hangs" else {}
    outcomes = judge(samples(*["fine"] * 13, "break", *["fine"] * 6), name, **settings)
    assert rewards(outcomes) == [1.0] * 13 + [0.0] + [1.0] * 6
    assert outcomes[13].verdict == verdict
    assert component_metrics(outcomes) == {f"reward/{name}/mean": 0.95, f"reward/{name}/failed": 1.0}
    began = time.monotonic()
    with pytest.raises(RewardError, match=r"(?s)2 of 20 responses.*row 3") as caught:
        judge(samples(*["fine"] * 3, "break", "break", *["fine"] * 15), name, **settings)
    assert time.monotonic() - began < 30
    assert name != "breaks" or 'return [1 / (c != "break")' in str(caught.value)


def test_a_function_that_no_longer_answers_ends_the_step(judge: Judge) -> None:
    """100 responses may fail five times, but not in a row."""
    with pytest.raises(RewardError, match=r"5 of 100 responses, 5 in a row; .*row 2"):
        judge(samples("fine", "fine", *["break"] * 98), "hangs", timeout_s=0.5)


def test_a_function_that_fails_only_on_a_batch_is_reported(judge: Judge, caplog: pytest.LogCaptureFixture) -> None:
    assert rewards(judge(samples("a", "bc"), "only_alone")) == [1.0, 2.0]
    assert "only_alone" in caplog.text


@pytest.mark.parametrize(
    ("name", "key"),
    [("too_few", "1 .* 2"), ("not_a_number", "row 1"), ("a_text", "row 0"), ("one_for_all", "1 .* 2"),
     ("no_score", "score"), ("no_batch", "0-d"), ("two_each", "size 1")],
)  # fmt: skip
def test_what_is_no_reward_ends_the_run(judge: Judge, name: str, key: str) -> None:
    with pytest.raises(RewardError, match=key):
        judge(samples("fine", "break"), name)


def test_a_function_that_cannot_be_used_is_refused_at_once(judge: Judge, tmp_path: Path) -> None:
    for name in ("missing", "unknown"):
        with pytest.raises(ConfigError, match=name):
            judge(samples("a"), name)
    with pytest.raises(ConfigError, match="bonsu"):
        judge(samples("a"), "verl", args={"bonsu": 1})
    for source, key in (
        ("import sys; sys.exit('no API key')", "no API key"),
        ("class f:\n    def __call__(self, completions): return [1.0]", "instance"),
        ("def f(solution_str, tokenizer): return 1.0", "tokenizer"),
    ):
        (tmp_path / "odd.py").write_text(source)
        with pytest.raises(ConfigError, match=key):
            Rewards([CallReward(call=f"{tmp_path}/odd.py:f")], correct_at=0.5, pool=SHARED)
    with pytest.raises(ConfigError, match=r"none\.py"):
        Rewards([CallReward(call=f"{tmp_path}/none.py:f")], correct_at=0.5, pool=SHARED)


def test_a_column_that_no_problem_has_is_found_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text(SOURCE)
    calls = [CallReward(call=f"{tmp_path}/r.py:{name}") for name in ("trl", "verl")]
    with closing(Rewards(calls, correct_at=0.5, pool=SHARED)) as asked:
        asked.check_columns(["id", "hint"])
        with pytest.raises(ConfigError, match="hint"):
            asked.check_columns(["id", "task"])
