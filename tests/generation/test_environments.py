"""A user's environment in its processes: both styles, what is refused, and what hangs or dies alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.config.schema import EnvironmentConfig
from nemo_uecr.data.problems import Problem
from nemo_uecr.errors import ConfigError, RewardError
from nemo_uecr.generation.environments import Environment, Episode, tools_of
from nemo_uecr.verifier.extract import Verdict
from nemo_uecr.verifier.user_code import Failure
from tests.conftest import ROOT
from tests.generation.games import write_games


@pytest.fixture
def games(tmp_path: Path) -> Path:
    return write_games(tmp_path)


@contextmanager
def played(games: Path, name: str, **settings: Any) -> Iterator[Environment]:
    with closing(Environment(EnvironmentConfig(call=f"{games}:{name}", **settings))) as environment:
        yield environment


def episodes(count: int, **columns: object) -> list[Episode]:
    return [Episode(f"row {row}", row, columns, row // 4) for row in range(count)]


def say(environment: Environment, one: Episode, *texts: str) -> list[tuple[str, ...] | None]:
    """What one episode answers to these texts."""
    failures = environment.failures(20)
    environment.begin([one], failures)
    return [environment.step([one], [text], failures)[0] for text in texts]


def test_gym_style(games: Path) -> None:
    (one,) = episodes(1, answer="3", other=[1, {"a": None}])
    with played(games, "Again") as environment:
        assert not environment.tools
        assert environment.columns == ["answer"]
        said = say(environment, one, r"\boxed{2}", r"\boxed{3}")
        assert said == [("Wrong: try again.",), None]
        assert (one.reward, one.over, one.outcome) == (0.5, True, 0.5)
        with pytest.raises(ConfigError, match="environment Again asks for answer; the problems have id, question"):
            environment.check_columns(["id", "question"])


def test_gymnasium_with_its_five_values_its_seed_and_its_first_observation(games: Path) -> None:
    with played(games, "Higher", args={"most": 5}) as environment:
        failures, several = environment.failures(8), episodes(8)
        assert environment.begin(several, failures) == ["Guess a number below 5."] * 8
        assert environment.step(several, ["0"] * 8, failures) == [None] * 4 + [("higher",)] * 4  # the seeds of groups
        assert environment.step(several[4:], ["99"] * 4, failures) == [None] * 4  # gymnasium's truncated
        assert [one.reward for one in several] == [1.0] * 4 + [0.0] * 4


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_typed_methods_are_tools(games: Path) -> None:
    (one, other) = episodes(2, answer="5")
    with played(games, "Account") as environment:
        schemas = environment.tools
        assert [each["function"]["name"] for each in schemas] == ["look", "pay"]
        pay = schemas[1]["function"]["parameters"]
        assert pay["properties"]["amount"] == {"type": "integer", "description": "How much to pay."}
        two = call("pay", '{"amount": 5}') + "then" + call("look", "{}")
        thought = "<think>" + call("pay", '{"amount": 9}') + "</think>" + two  # what is only thought is not called
        bad = [call("pay", '{"amount": -1}'), call("steal", "{}"), "<tool_call>{pay", call("pay", '{"sum": 1}')]
        said = say(environment, one, thought, *bad, "Done.")
        assert said[0] == ("5", "5 <|im_end|>")
        for answer, why in zip(
            said[1:-1], ("nothing can be", "no tool 'steal'", "JSONDecodeError", "sum"), strict=True
        ):
            assert answer is not None
            assert why in answer[0]
        assert said[-1] is None
        assert (one.reward, one.calls, len(one.errors)) == (1.0, 6, 4)
        say(environment, other, call("pay", '{"amount": 5}'))
        assert (other.reward, other.over) == (0.0, False)
        environment.end([one, other], environment.failures(2))
        assert (one.reward, other.reward) == (1.0, 1.0)  # also of one that a limit ended


def test_a_tool_may_be_called_step(games: Path) -> None:
    (one,) = episodes(1)
    with played(games, "Echo") as environment:
        assert environment.tools
        assert say(environment, one, call("step", '{"message": "hello"}'), "so") == [("hello",), None]
        assert one.reward == 0.25


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("Undocumented", {}, "Undocumented.pay has no docstring"),
        ("Nothing", {}, r"Nothing has neither step\(text\) nor methods"),
        ("Higher", {"least": 1}, r"Higher has no parameter least \(args\); it has most"),
        ("Bare", {"high": 1}, "args lacks low, for which Bare has no default"),
        ("Missing", {}, r"has no 'Missing'; expected a class with step\(text\).*it has Again"),
    ],
)
def test_what_is_no_environment_is_refused_before_anything_begins(
    games: Path, name: str, args: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?s)environment.call: .*:{name} cannot be used: .*{message}"):
        Environment(EnvironmentConfig(call=f"{games}:{name}", args=args))


def test_a_tool_without_types_is_refused(games: Path) -> None:
    with pytest.raises(ConfigError, match=r"pay: .*expected a type and a line under Args: for each parameter"):
        tools_of(EnvironmentConfig(call=f"{games}:Untyped"))


def test_tools_are_described_before_the_time_limit_counts(games: Path) -> None:
    with played(games, "Account", timeout_s=0.01) as environment:  # what describes them takes seconds to load
        assert len(environment.tools) == 2


def rolled(games: Path, count: int, *, dies: bool) -> list[list[object]]:
    """What each of several episodes of one process was shown, in its three turns."""
    with played(games, "Dice", processes=1) as environment:
        failures, several = environment.failures(100), episodes(count)
        shown: list[list[object]] = [[each] for each in environment.begin(several, failures)]
        for turn in range(3):
            texts = ["die" if dies and turn == 1 and row == count - 1 else "go" for row in range(count)]
            for own, said in zip(shown, environment.step(several, texts, failures), strict=True):
                own.append(said)
        return shown


def test_what_draws_from_global_generators_is_a_function_of_seed_and_texts(games: Path) -> None:
    shown = rolled(games, 8, dies=False)
    assert shown[0] == shown[1] == shown[2] == shown[3] != shown[4]  # the responses to a prompt play one game
    assert len(set(map(str, shown[0]))) == 4
    assert rolled(games, 1, dies=False) == shown[:1]
    assert rolled(games, 9, dies=True)[:4] == shown[:4]  # played again, in a process that replaces the first


PLAY = ("t0", "t1", "t2")


def play(games: Path, bad: str) -> dict[tuple[str, int], tuple[object, float]]:
    """Forty episodes of three turns, one of which says something bad in its second turn."""
    found, all_ = {}, episodes(40)
    with played(games, "Counter", timeout_s=3) as environment:
        failures = environment.failures(40)
        environment.begin(all_, failures)
        for turn, text in enumerate(PLAY):
            going = [one for one in all_ if not one.over]
            texts = [bad if bad and one.number == 5 and turn == 1 else f"{text}/{one.number}" for one in going]
            for one, said in zip(going, environment.step(going, texts, failures), strict=True):
                found[one.id, turn] = (said, one.reward)
        failures.end()
    if bad:
        assert isinstance(all_[5].outcome, Failure)
    return found


@pytest.mark.parametrize(
    ("bad", "verdict"), [("die", Verdict.ERROR), ("hang", Verdict.TIMEOUT), ("raise", Verdict.ERROR)]
)
def test_one_that_dies_or_hangs_leaves_the_others_as_they_were(games: Path, bad: str, verdict: Verdict) -> None:
    whole, other = play(games, ""), play(games, bad)
    assert {key: other[key] for key in other if key[0] != "row 5"} == {
        key: whole[key] for key in whole if key[0] != "row 5"
    }
    assert whole["row 5", 2] == (None, 6.0)
    assert other["row 5", 1] == (None, 1.0)
    assert ("row 5", 2) not in other


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("raise", r"(?s)environment Counter failed on at least \d of 8 responses, over 5%.*row \d.*no such door"),
        ("nothing", r"(?s)step returned None; expected \(observation, reward, done\)"),
        ("nan", "the reward is nan; expected a finite number"),
        ("number", "step returned the observation 7; expected a text, or None at the end"),
        ("die", "it ended its process"),
    ],
)
def test_too_many_failures_end_the_run(games: Path, bad: str, message: str) -> None:
    with played(games, "Counter") as environment:
        failures, several = environment.failures(8), episodes(8)
        environment.begin(several, failures)
        with pytest.raises(RewardError, match=message):
            environment.step(several, [bad] * 8, failures)


@pytest.mark.parametrize("bad", ["nothing", "nan", "number"])
def test_what_is_no_answer_is_told_in_one_line_below_the_turns(games: Path, bad: str) -> None:
    """The fault is the class's: no traceback into this package. The turns show what it failed on, the last ones."""
    with played(games, "Counter") as environment:
        failures, (one,) = environment.failures(2), episodes(1)
        environment.begin([one], failures)
        environment.step([one], ["x" * 300], failures)
        with pytest.raises(RewardError) as caught:
            environment.step([one], [bad], failures)
    head, turns, *rest = str(caught.value).splitlines()
    assert head.endswith("(row 0):")
    assert turns == "the student's turns: ... " + f"{'x' * 300}', '{bad}'"[-200:]
    assert len(rest) == 1
    assert rest[0].startswith(f"{games}:Counter: ")


def test_a_method_that_cannot_be_called_shows_no_line_of_this_package(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text("class Bad:\n def step(self):\n  return None, 0.0, True\n")
    with closing(Environment(EnvironmentConfig(call=f"{file}:Bad"))) as environment:
        failures, (one,) = environment.failures(2), episodes(1)
        environment.begin([one], failures)
        with pytest.raises(RewardError, match=r"bad.py:Bad: TypeError: Bad.step\(\) takes 1 positional") as caught:
            environment.step([one], ["a"], failures)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "args", "rewards"),
    [("Again", {}, True), ("Account", {}, True), ("Bare", {"low": 1}, False), ("Later", {}, True), ("Echo", {}, True)],
)
def test_whether_a_class_gives_rewards_is_known_from_its_code(
    games: Path, name: str, args: dict[str, int], rewards: bool
) -> None:
    with closing(Environment(EnvironmentConfig(call=f"{games}:{name}", args=args))) as environment:
        assert environment.rewards is rewards


def test_a_game_is_its_question_its_answer_and_what_reset_reads(games: Path) -> None:
    first, *others = (
        Problem(name, question, answer, {"answer": answer, "colour": colour, "id": name})
        for name, question, answer, colour in (
            ("a", "Guess.", "1", "red"), ("b", " guess. ", "1", "blue"), ("c", "Guess.", "2", "red"),
            ("d", "Try.", "1", "red"),
        )
    )  # fmt: skip
    with played(games, "Again") as environment:
        assert [environment.game(each) == environment.game(first) for each in others] == [True, False, False]
        table = Problem("e", "Guess.", "1", {"answer": 1})  # a file of other types
        assert environment.game(table) == environment.game(first)
    with played(games, "Account") as environment:  # reset(**row)
        assert [environment.game(each) == environment.game(first) for each in others] == [False] * 3


def test_the_processes_answer_at_the_same_time(games: Path) -> None:
    with played(games, "Slow", processes=4) as environment:
        failures, several = environment.failures(8), episodes(8)
        environment.begin(several, failures)
        started = time.perf_counter()
        environment.step(several, ["go"] * 8, failures)
        assert time.perf_counter() - started < 8 * 0.2  # one after the other


RETURNS = {
    "none": "return None, 0.0, True",
    "one_of_two": "if text:\n            return text, 1, False\n        return None, 0, True",
    "computed": "reward = 0.0\n        return None, reward, True",
    "another_call": "return self.other(text)\n    def other(self, text): return None, 1.0, True",
    "at_the_margin": 'shown = """\nWrong.\n"""\n        return shown, 1.0, True',
    "gymnasium": "return None, 0, False, True, {}",
}


@pytest.mark.parametrize("name", RETURNS)
def test_whether_a_step_gives_rewards_is_read_from_its_code(name: str, tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text(f"class Made:\n    def step(self, text):\n        {RETURNS[name]}\n")
    with played(tmp_path / "made.py", "Made") as environment:
        assert environment.rewards == (name not in ("none", "gymnasium"))


def test_the_shipped_calculator_leaves_the_reward_to_the_verifier() -> None:
    with played(Path(ROOT) / "examples/configs/local/calculator.py", "Calculator") as environment:
        assert not environment.rewards
