"""Signal complementarity: hand values, and the judge's files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nemo_uecr.audit.groups import teacher_rewards
from nemo_uecr.audit.judging import write_pairs
from nemo_uecr.audit.signal import agreement, signal_audit
from nemo_uecr.errors import DataError
from nemo_uecr.stats import ClusterBootstrap
from tests.audit.made import Made, write_scores

#: Checkpoint 0: "a" mixed, "b" all wrong and apart, "c" all right and together. Checkpoint 5: "a" all right.
HAND = [
    Made("a", 1.0, [0.2]), Made("a", 1.0, [0.4]), Made("a", 0.0, [0.4]), Made("a", 0.0, [0.0]),
    Made("b", 0.0, [0.1]), Made("b", 0.0, [0.2]),
    Made("c", 1.0, [0.10]), Made("c", 1.0, [0.13]),
    Made("a", 1.0, [0.0], checkpoint=5), Made("a", 1.0, [0.1], checkpoint=5),
]  # fmt: skip


def test_hand_values(tmp_path: Path) -> None:
    scores = write_scores(tmp_path, HAND, part=3)
    first, second = signal_audit(scores, None, replicates=50, seed=0).numbers["checkpoints"]
    assert (first["groups"], first["pairs"]) == (3, 4)
    assert first["degenerate"]["value"] == pytest.approx(2 / 3)
    assert first["all_wrong"]["value"] == pytest.approx(1 / 3)
    # of "b" (range 0.1) and "c" (range 0.03) one is beyond 0.05
    assert first["distinguished_of_degenerate"]["value"] == pytest.approx(1 / 2)
    # pairs (c, w): 0.2<0.4 wrong order 1, 0.2>0 right 0, 0.4=0.4 tie one half, 0.4>0 right 0: 1.5 of 4
    assert first["conflict"]["value"] == pytest.approx(1.5 / 4)
    assert second["conflict"]["of"] == 0
    assert np.isnan(second["conflict"]["value"])


def test_the_judge_sees_no_method_and_the_key_says_who_was_who(tmp_path: Path) -> None:
    made = [Made("b", 0.0, [0.1 * i], response=f"text {i}") for i in range(4)]
    made += [Made("c", 1.0, [0.1], response="the same")] * 3  # nothing to judge
    scores = write_scores(tmp_path / "s", made)
    assert write_pairs(scores, tmp_path / "judging", pairs=5, seed=1) == 1  # one pair of each tied group with two texts
    shown = json.loads((tmp_path / "judging" / "pairs.jsonl").read_text())
    key = json.loads((tmp_path / "judging" / "key.jsonl").read_text())
    assert set(shown) == {"pair", "question", "answer", "first", "second"}
    assert shown["first"] == f"text {key['first'][1:]}"  # "r2" is the response "text 2"
    assert shown["second"] == f"text {key['second'][1:]}"
    assert key["first"] not in json.dumps(shown)


def test_agreement_by_hand(tmp_path: Path) -> None:
    scores = write_scores(tmp_path, [*HAND, Made("d", 0.0, [0.2]), Made("d", 0.0, [0.2])])
    reward_B = teacher_rewards(scores, "student", clip=None)[0]
    judged = [
        ("r4", "r5", "second"),  # 0.1 < 0.2: agrees
        ("r6", "r7", "first"),  # 0.10 < 0.13: disagrees
        ("r1", "r0", "first"),  # both right, 0.4 > 0.2: agrees
        ("r10", "r11", "first"),  # equal: one half
        ("r8", "r9", "tie"),
        ("r8", "r9", "unjudgeable"),
    ]
    sampler = ClusterBootstrap.draw(scores.problem_B, replicates=50, seed=0)
    found = agreement(judged, scores, reward_B, sampler)
    assert (found["pairs"], found["judgeable"]) == (6, 4)
    assert found["all"]["value"] == pytest.approx(2.5 / 4)
    for other in ("r2", "r6"):  # another verdict, another prompt
        with pytest.raises(DataError, match=f"'{other}'"):
            agreement([("r0", other, "first")], scores, reward_B, sampler)
