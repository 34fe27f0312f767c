"""Environments as users write them, in both styles."""

from __future__ import annotations

from pathlib import Path

GAMES = r'''
import os, random, re, time

import numpy


class Again:
    """Gym's style: a second try after feedback."""

    def reset(self, answer):
        self.answer, self.tries = answer, 0

    def step(self, text):
        self.tries += 1
        found = re.findall(r"\\boxed\{(\d+)\}", text)
        if found and found[-1] == self.answer:
            return None, 1.0 / self.tries, True
        return "Wrong: try again.", 0.0, False


class Once:
    def step(self, text):
        return None, 0.0, True


class Higher:
    """Gymnasium's five values, a first observation, and a number of its own from the seed."""

    def __init__(self, most=9):
        self.most = most

    def reset(self, *, seed=None, options=None):
        self.number = seed % self.most
        return f"Guess a number below {self.most}.", {"seed": seed}

    def step(self, action):
        guess = int((re.findall(r"\d+", action) or [0])[0])
        right = guess == self.number
        return "higher" if guess < self.number else "lower", float(right), right, guess > 90, {}


class Counter:
    """Remembers what was said; ends its process, or hangs, on one text."""

    def reset(self, seed):
        self.seed, self.said = seed, []

    def step(self, text):
        if text == "die":
            os._exit(3)
        if text == "hang":
            time.sleep(100)
        if text == "raise":
            raise LookupError("no such door")
        if text == "nothing":
            return None
        if text == "nan":
            return "so?", float("nan"), False
        if text == "number":
            return 7, 0.0, False
        self.said.append(text)
        return f"{self.seed}:{'|'.join(self.said)}", float(len(self.said)), len(self.said) == 3


class Dice:
    """Draws from the global generators, as public classes do."""

    def __init__(self):
        self.made = random.random()

    def reset(self):
        return f"{self.made} {random.random()} {numpy.random.random()}"

    def step(self, text):
        if text == "die":
            os._exit(3)
        return f"{random.random()} {numpy.random.random()}", 0.0, False


class Slow:
    def step(self, text):
        time.sleep(0.2)
        return "so?", 0.0, False


class Account:
    """TRL's style: typed methods are tools."""

    def __init__(self):
        self.balance = 0

    def reset(self, **row):
        self.wanted = int(row["answer"])

    def pay(self, amount: int) -> int:
        """
        Pay money in.

        Args:
            amount: How much to pay.

        Returns:
            The balance.
        """
        if amount < 0:
            raise ValueError("nothing can be taken out")
        self.balance += amount
        return self.balance

    async def look(self) -> str:
        """Look at the balance."""
        return f"{self.balance} <|im_end|>"

    def get_reward(self):
        return float(self.balance == self.wanted)


class Echo:
    """A tool that is called step, as in a public example."""

    reward = 0.25

    def step(self, message: str) -> str:
        """
        Echo a message.

        Args:
            message: What to echo.
        """
        return message


class Bare:
    """Tools without a reward."""

    def __init__(self, low, high=9):
        self.low = low

    def look(self) -> str:
        """Look."""
        return str(self.low)


class Later:
    """Its reward is an attribute that begins with the game."""

    def reset(self, answer):
        self.reward = 0.0

    def look(self) -> str:
        """Look."""
        return "so"


class Untyped:
    def pay(self, amount):
        """Pay money in."""


class Undocumented:
    def pay(self, amount: int):
        pass


class Nothing:
    pass
'''


def write_games(folder: Path) -> Path:
    """The file that the tests name."""
    path = folder / "games.py"
    path.write_text(GAMES)
    return path
