"""Public environments, written anew in a few lines, train two steps as their users have them: no answers, no seeds.

TRL's documents show Wordle as a class for `environment_factory`; GEM and TextArena have the number game in gymnasium's
style. The student of each really plays: nothing that it says is given.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.audit.facts import facts_of_config
from nemo_uecr.generation.conversation import Dialogue
from nemo_uecr.responses.replay import recompute
from nemo_uecr.responses.table import Responses, read_responses
from tests.local import tiny
from tests.local.players import settings, words_of, write_players

NUMBERS = r'''
import random
import re


class GuessTheNumber:
    """A reward where the game ends, hints on the way, and numbers of the global generator."""

    def __init__(self, low=0, high=3, max_turns=4, **_):
        self.low, self.high, self.max_turns = low, high, max_turns
        self.reset()

    def reset(self, seed=None):
        self.number, self.turn = random.randint(self.low, self.high), 0
        return f"Guess the number between {self.low} and {self.high}.", {"suffix": "Enter your guess."}

    def step(self, action):
        self.turn += 1
        found = re.findall(r"\\boxed{(\d+)}", action)
        if not found:
            return "That is no guess.", -0.1, True, self.turn == self.max_turns, {}
        if int(found[-1]) == self.number:
            return "Congratulations!", 1.0, True, False, {}
        hint = "lower" if int(found[-1]) > self.number else "higher"
        return f"The number is {hint}.", 0.0, False, self.turn == self.max_turns, {}

    def sample_random_action(self):
        return f"\\boxed{{{random.randint(self.low, self.high)}}}"
'''

FOUND = re.compile(r"\[(\w+)\][^\[]*GGGGG")


def trained(folder: Path, *overrides: str) -> list[Responses]:
    """The tables of a run of two steps, which are replayed bit for bit."""
    run = tiny.run(folder / "run", *overrides)
    assert all(record["policy/first_ratio_error"] < 1e-5 for record in tiny.metrics(run))
    paths = [run / "batches" / f"step-{step:06d}.parquet" for step in (1, 2)]
    assert all(recompute(path).bitwise for path in paths)
    (evaluated,) = tiny.records(run / "evaluation.jsonl")
    assert evaluated["average"]["high"] - evaluated["average"]["low"] < 0.9  # equal questions are six games
    return [read_responses(path) for path in paths]


def texts(table: Responses) -> list[str]:
    return ["".join(words) for words in table.column("tokens")]


def test_the_number_game_of_gym(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    overrides = settings(tmp_path, NUMBERS, "GuessTheNumber", max_turns=4, turn_tokens=8, args={"high": 3})
    tables = trained(tmp_path, *overrides)
    assert "questions" not in caplog.text  # neither as repeats nor as not held out
    for table in tables:
        rows = zip(texts(table), table.column("reward"), table.column("question"), strict=True)
        assert all(question == "Play.\n\nGuess the number between 0 and 3." for *_, question in rows)
        assert len(set(table.column("reward"))) > 1
        for group in (slice(0, 4), slice(4, 8)):  # its responses play one game, whose hints agree
            hints = {(said, hint) for text in texts(table)[group] for said, hint in hints_of(text)}
            assert all(not (("higher" in hint) and (one, "lower") in hints) for one, hint in hints)
    assert {hint for table in tables for text in texts(table) for _, hint in hints_of(text)} == {"higher", "lower"}


def hints_of(text: str) -> list[tuple[str, str]]:
    """Each guess with the hint that follows it."""
    parts = text.split("The number is ")
    return [(one.rpartition("\\boxed{")[2][0], two.partition(".")[0]) for one, two in pairwise(parts)]


@pytest.fixture(scope="module")
def players(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_players(tmp_path_factory.mktemp("players"))


def test_the_word_game_of_trls_documents(players: Path, tmp_path: Path) -> None:
    tables = trained(tmp_path, *words_of(players, tmp_path))
    for table in tables:
        assert all(question == "Play.\n\nGuess the word of five letters." for question in table.column("question"))
        for group in (slice(0, 4), slice(4, 8)):  # its responses have one secret word
            own = texts(table)[group]
            (secret,) = {found[1] for text in own for found in FOUND.finditer(text)}
            assert table.column("reward")[group] == [float(f"[{secret}]" in text) for text in own]
    every = "".join(text for table in tables for text in texts(table))
    assert FOUND.search(every)
    assert re.search(r"tool\n[XY][XYG]{4}<", every)  # what a wrong word is told
    assert 'tool\n{"error": "ValueError: Game over."}' in every


def test_a_teacher_plays_what_it_is_shown_once(players: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, config = [], tiny.configured(tmp_path / "run", *words_of(players, tmp_path)).config
    hold = Dialogue.hold

    def noted(self: Dialogue, draw: Any, *args: Any, **named: Any) -> Any:
        return hold(self, lambda turns: [read.extend(turns), draw(turns)][1], *args, **named)

    monkeypatch.setattr(Dialogue, "hold", noted)
    found = facts_of_config(config, problems=2)
    first = {tiny.tokenizer().decode(turn.prompt_ids).count("Guess the word") for turn in read if turn.number == 0}
    assert first == {1}
    assert found.problems == 2  # equal questions are two games
