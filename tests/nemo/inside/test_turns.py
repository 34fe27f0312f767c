"""Several turns inside NeMo-RL's real loop: rows are those of the local back end, and what ends an episode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from nemo_uecr.config.schema import EnvironmentConfig, EnvironmentReward, VerifierReward
from nemo_uecr.data.problems import Problem
from nemo_uecr.errors import RewardError
from nemo_uecr.generation.conversation import Asked, Dialogue, Turn
from nemo_uecr.generation.engines import Generation, load_tokens
from nemo_uecr.generation.environments import Environment, episodes_of
from nemo_uecr.generation.prompts import ChatSettings
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.recipe import DATASET
from nemo_uecr.responses.replay import recompute
from nemo_uecr.responses.table import read_responses
from nemo_uecr.verifier.pool import SHARED
from nemo_uecr.verifier.rewards import Rewards, Sample
from tests.generation.games import write_games
from tests.nemo.inside import loop
from tests.nemo.inside.launched import ids_of, make_tokenizer, text_of
from tests.nemo.inside.tiny_world import TinyGeneration, TinyModel, TinyProblems

pytestmark = [pytest.mark.usefixtures("nemo_rl")]
EOS, ROWS = 1, loop.PROMPTS * loop.GROUP
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}A:{{ m.content }}<eos>\n{% else %}U:{{ m.content }}\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)


def question(number: int) -> str:
    return f"U:{number}+2?\nA:"


def answer_of(number: int) -> str:
    return str(number + 2)


def script(text: str, row: int) -> list[int]:
    """What the student says after a text: the row decides in the first turn, its own words later; some are cut."""
    number = int(text[2])
    right, wrong = (f"\\boxed{{{value}}}" for value in (number + 2, number + 3))
    if "Wrong" not in text:
        said = right if row % 4 == 0 else wrong + "!" * (row % 4)
        return [*ids_of(said), *([] if row % 8 == 7 else [EOS])]
    return [*ids_of(right if text.count("!") == 1 else wrong), EOS]


def spoken(ids: Sequence[int]) -> str:
    return text_of(token for token in ids if token > EOS)


class Problems(TinyProblems):
    def __getitem__(self, index: int) -> dict[str, Any]:
        text = question(index)
        about = {"ground_truth": answer_of(index), "prompt": text, "columns": {"answer": answer_of(index)}}
        turn = {"role": "user", "content": text, "token_ids": torch.tensor(ids_of(text))}
        return {
            "message_log": [turn], "length": len(text), "extra_env_info": about, "loss_multiplier": 1.0, "idx": index,
            "task_name": "t",
        }  # fmt: skip


class Scripted(TinyGeneration):
    def respond(self, prompt: list[int], row: int) -> list[int]:
        return script(spoken(prompt), row)

    def generate(self, data: Any, greedy: bool = False) -> Any:
        out = super().generate(data, greedy)
        last = out["output_ids"].gather(1, out["unpadded_sequence_lengths"][:, None] - 1)[:, 0]
        return self.batch_class(dict(out) | {"truncated": last != EOS})


def settings_of(games: Path, **changes: Any) -> dict[str, Any]:
    return {"call": f"{games}:Again", "max_turns": 2, "processes": 2} | changes


class Answer:
    """An actor's answer, which is a key of NeMo-RL's."""

    def __init__(self, value: Any) -> None:
        self.value = value


@contextlib.contextmanager
def world(folder: Path, vocabulary: int, environment: Any) -> Iterator[None]:
    """The tiny world with a tokenizer that has a chat template, our environment and the scripted student.

    The environment is in this process: a call is answered at once, as Ray answers an actor's later.
    """
    from nemo_rl.experience import rollouts
    from nemo_rl.utils import memory_tracker

    from nemo_uecr.nemo import telemetry

    tokenizer = load_tokens(str(folder)).tokenizer
    actor = SimpleNamespace(step=SimpleNamespace(remote=lambda *given: Answer(environment.step(*given))))
    ray = SimpleNamespace(get=lambda answers: [each.value for each in answers])

    def model(seed: int) -> TinyModel:
        return TinyModel(seed, vocabulary=vocabulary)

    with (
        patch.object(loop, "VOCABULARY", vocabulary), patch.object(loop, "TinyModel", model),
        patch.object(loop, "TinyTokenizer", lambda: tokenizer), patch.object(loop, "TinyGeneration", Scripted),
        patch.object(loop, "make_environment", lambda: actor), patch.object(rollouts, "ray", ray),
        patch.object(telemetry, "components", environment.components),
        patch.object(memory_tracker, "memory_summary", lambda **_: ""),
    ):  # fmt: skip
        yield


def inside(tmp_path: Path, games: Path, room: int, *more: str) -> tuple[Path, Any]:
    """One step inside NeMo-RL; the saved table, and the policy with its metrics."""
    from nemo_uecr.nemo.task import RewardEnvironmentImpl

    made, run_folder = tmp_path / "tokenizer", tmp_path / "run"
    vocabulary = make_tokenizer(made)
    tokens = load_tokens_with(made)
    data = {
        "train": "p.jsonl", "question_key": "question", "answer_key": "answer", "max_prompt_tokens": 64,
        "prompt_template": "{question}", "enable_thinking": False, "long_prompts": "refuse", "shuffle": False,
    }  # fmt: skip
    environment = settings_of(games)
    section = {
        "method": {"name": "grpo"}, "reward": ["math", "environment"], "verifier_workers": 1, "data": data,
        "environment": environment, "tokenizer": tokens,
    }  # fmt: skip
    with patch.object(loop, "VOCABULARY", vocabulary):
        run = loop.run_of(
            "uecr", f"policy.max_total_sequence_length={room}", f"policy.generation.vllm_cfg.max_model_len={room}",
            f"++uecr.environment={as_yaml(environment)}", "++uecr.reward=[math, environment]",
            f"++uecr.data={as_yaml(data)}", f"++data.train.dataset_name={DATASET}",
            "++data.train.env_name=nemo_uecr", "++env.nemo_uecr={}",
            "++uecr.save_batch_every=1", f"++uecr.folder={run_folder}", *more,
        )  # fmt: skip
    assert (run.settings.max_turns, run.settings.plays) == (2, True)
    environment_here = RewardEnvironmentImpl(section)
    with world(made, vocabulary, environment_here), upstream.taking_turns(room=room, ours=True):
        policy = loop.train_ours(run, problems=Problems())
    environment_here.shutdown()
    return run_folder / "batches" / "step-000001.parquet", policy


def as_yaml(values: dict[str, Any]) -> str:
    given = {name: f'"{each}"' if isinstance(each, str) else str(each).lower() for name, each in values.items()}
    return "{" + ", ".join(f"{name}: {each}" for name, each in given.items()) + "}"


def load_tokens_with(folder: Path) -> str:
    """Save the tokenizer with a chat template that closes answers; returns its folder."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "qwen3", "eos_token_id": 1}')
    return str(folder)


def outside(tmp_path: Path, games: Path, room: int) -> list[tuple[Any, ...]]:
    """The same rows by the local back end: token ids, mask, truncated, reward."""
    tokens = load_tokens(str(tmp_path / "tokenizer"))
    numbers = [row // loop.GROUP for row in range(ROWS)]
    problems = [Problem(str(n), "", answer_of(n), {"answer": answer_of(n)}) for n in numbers]
    asked = [Asked(one, tuple(ids_of(question(n)))) for one, n in zip(problems, numbers, strict=True)]

    def draw(turns: Sequence[Turn]) -> list[Generation]:
        said = [script(spoken(turn.prompt_ids), turn.row) for turn in turns]
        return [Generation(tuple(ids), ids[-1] != EOS) for ids in said]

    rewards = Rewards([VerifierReward(), EnvironmentReward()], correct_at=0.5, pool=SHARED)
    with closing(Environment(EnvironmentConfig(**settings_of(games)))) as environment, closing(rewards):
        chat = ChatSettings("{question}", None, thinking=False)
        dialogue = Dialogue.of(environment, tokens, chat, max_prompt_tokens=64)
        episodes = episodes_of([f"row {row}" for row in range(ROWS)], problems, 0)
        _, held = dialogue.hold(draw, asked, episodes, max_tokens=room - len(question(0)))
        samples = [
            Sample(str(row), "", one.said[-1], one.said[-1], None, problem.answer, {}, "", episode=episode.outcome)
            for row, (one, problem, episode) in enumerate(zip(held, problems, episodes, strict=True))
        ]
        outcomes = rewards.judge(samples, step=1)
    rows = []
    for one, outcome in zip(held, outcomes, strict=True):
        mask = [any(start <= place < end for start, end in one.spans) for place in range(len(one.token_ids))]
        turn = [next((n for n, (a, b) in enumerate(one.spans) if a <= p < b), None) for p in range(len(mask))]
        rows.append((list(one.token_ids), mask, turn, one.truncated, pytest.approx(outcome.reward)))
    return rows


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[Any]:
    """A game inside NeMo-RL that counts, and fails where it is told to."""
    from nemo_uecr.nemo.recipe import section_of
    from nemo_uecr.nemo.task import Game

    games, made = write_games(tmp_path), tmp_path / "tokenizer"
    make_tokenizer(made)
    data = {
        "train": "p.jsonl", "question_key": "question", "answer_key": None, "max_prompt_tokens": 64,
        "prompt_template": "{question}", "enable_thinking": False, "long_prompts": "refuse", "shuffle": False,
    }  # fmt: skip
    section = {
        "method": {"name": "grpo"}, "reward": "environment", "data": data, "tokenizer": load_tokens_with(made),
        "environment": settings_of(games) | {"call": f"{games}:Counter"},
    }  # fmt: skip
    with closing(Game(section_of({"uecr": section}))) as game:
        yield game


def play(game: Any, text: str, *problems: int) -> list[dict[str, Any]]:
    """What the game answers to one turn of several responses."""
    from nemo_uecr.nemo.recipe import PROBLEM

    turns = [{"role": "user", "content": "Play."}, {"role": "assistant", "content": text}]
    about = [{"prompt": "Play.", PROBLEM: number, upstream.TURN: TURN} for number in problems]
    return list(game.answer([turns] * len(problems), about)[0])


def test_equal_prompts_of_several_problems_are_games_of_their_own(counter: Any) -> None:
    seeds = [said["content"].split(":")[1] for said in play(counter, "go", 0, 0, 1)]
    assert seeds[0] == seeds[1] != seeds[2]


def test_a_game_that_fails_too_often_ends_a_run_whose_responses_come_alone(counter: Any) -> None:
    """As in the asynchronous loop: of the last hundred at most five may fail."""
    for number in range(5):
        play(counter, "raise", number)
    play(counter, "go", 5)
    with pytest.raises(RewardError, match=r"(?s)failed on at least 6 of 100 responses, over 5%.*no such door"):
        play(counter, "raise", 6)


#: What the loop tells of a turn that ended in room enough.
TURN = {"cut": False, "last": EOS, "left": 100}


@pytest.mark.parametrize("room", [200, 40])  # in the second, no observation fits
def test_rows_are_those_of_the_local_back_end(room: int, tmp_path: Path) -> None:
    games = write_games(tmp_path)
    path, policy = inside(tmp_path, games, room)
    table = read_responses(path)
    columns = ("token_ids", "sampled", "turn", "truncated", "reward")
    turns = table.column("turn") if "turn" in table.names else [[0] * len(ids) for ids in table.column("token_ids")]
    found = {name: table.column(name) for name in columns if name != "turn"} | {"turn": turns}
    theirs = list(zip(*(found[name] for name in columns), strict=True))
    assert theirs == outside(tmp_path, games, room)
    assert max(max(v for v in own if v is not None) for own in turns) == (1 if room == 200 else 0)
    truncated = found["truncated"]
    cut = [row % 8 == 7 for row in range(ROWS)]
    if room == 200:
        assert truncated == cut
        assert any(reward == 1.5 for reward in found["reward"])  # the second try: the verdict, and half the reward
    else:
        assert [reward for reward in found["reward"] if reward] == [2.0] * (ROWS // 4)
        assert all(each or row % 4 == 0 for row, each in enumerate(truncated))
    assert recompute(path).bitwise
    assert policy.metrics[-1]["policy/first_ratio_error"] == 0
