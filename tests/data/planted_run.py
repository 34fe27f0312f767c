"""AIME24 problems in every rewriting."""

from __future__ import annotations

import json
import random

from nemo_uecr.data.planting import REWRITES
from nemo_uecr.data.planting_held_out import HELD_OUT
from tests.data.shared_files import FOLDER


def planted_texts() -> list[str]:
    """Every problem in every rewriting, in a fixed order."""
    rng = random.Random(7)
    problems = [json.loads(line)["problem"] for line in (FOLDER / "aime24.jsonl").read_text().splitlines()]
    return [rewrite(problem, rng) for rewrite in [*REWRITES.values(), *HELD_OUT.values()] for problem in problems]
