"""The reward functions of docs/rewards.md, as they stand, judging right and wrong responses."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from nemo_uecr.config.schema import CallReward, VerifierReward
from nemo_uecr.verifier.pool import SHARED
from nemo_uecr.verifier.rewards import Outcome, Rewards, Sample
from tests.docs.pages import ROOT, blocks_of

SQUARE = "So:\n```python\ndef square(x):\n    {body}\n```\n"
TESTS = ["assert square(3) == 9", "assert square(-2) == 4"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The page's files."""
    for block in blocks_of(ROOT / "docs" / "rewards.md"):
        if block.language == "python":
            named = re.match(r"# (rewards/\w+\.py)\n", block.text)
            assert named, block.where
            (tmp_path / named[1]).parent.mkdir(exist_ok=True)
            (tmp_path / named[1]).write_text(block.text)
    return tmp_path / "rewards"


def judged(reward: CallReward, *texts: str, answer: str = "", **columns: object) -> list[Outcome]:
    given = [Sample(f"row {n}", "", text, text, (1,), answer, columns, "data") for n, text in enumerate(texts)]
    with closing(Rewards([VerifierReward(), reward], correct_at=0.5, pool=SHARED)) as rewards:
        return rewards.judge(given, step=1)


@pytest.mark.slow  # waits for a response that never ends
def test_code_with_unit_tests(folder: Path) -> None:
    bodies = ["return x * x", "return x * 3", "while True: pass", "raise SystemExit(0)"]
    texts = [*(SQUARE.format(body=body) for body in bodies), "no code"]
    outcomes = judged(CallReward(call=f"{folder}/unit_tests.py:passes"), *texts, tests=TESTS)
    assert [outcome.parts["passes"] for outcome in outcomes] == [1.0, 0.5, 0.0, 0.0, 0.0]


def test_a_length_penalty_beside_the_verifier(folder: Path) -> None:
    penalty = CallReward(call=f"{folder}/length.py:too_long", weight=0.2, args={"soft": 10, "hard": 30})
    outcomes = judged(penalty, r"\boxed{5}", r"\boxed{5}" + 11 * ".", r"\boxed{6}" + 90 * ".", answer="5")
    assert [outcome.reward for outcome in outcomes] == pytest.approx([1.0, 0.9, -0.2])
    assert [outcome.correct for outcome in outcomes] == [True, True, False]
