"""AIME24 problems in every rewriting."""

from __future__ import annotations

import json
import random

from tests.data.shared_files import FOLDER
from tools.screen_recall import HELD_OUT, REWRITES


def planted_texts() -> list[str]:
    """Every problem in every rewriting, in a fixed order."""
    rng = random.Random(7)
    problems = [json.loads(line)["problem"] for line in (FOLDER / "aime24.jsonl").read_text().splitlines()]
    return [rewrite(problem, rng) for rewrite in [*REWRITES.values(), *HELD_OUT.values()] for problem in problems]
