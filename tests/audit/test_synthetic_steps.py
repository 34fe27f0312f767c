"""The made data of the localization audit: its answer against weights written out, and against the audit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from nemo_uecr.audit import synthetic, synthetic_steps
from nemo_uecr.audit.judged_steps import items_to_judge
from nemo_uecr.audit.localization import localization_audit
from nemo_uecr.audit.rollouts import read_scores
from nemo_uecr.audit.step_judge import read_labels, write_items
from nemo_uecr.audit.synthetic import Size, make_scores
from nemo_uecr.audit.synthetic_steps import ENTROPY, StepSize, known_gap, make_step_scores
from nemo_uecr.core.records import Settings
from nemo_uecr.demo.judge import main as judge
from tests.audit.made_scores import TOKENIZER

SETTINGS = Settings(rho=0.5, tau_delta=1.0, tau_entropy=1.0)
SIZE = StepSize(problems=6, failed=5, steps=24)


def test_the_closed_form_against_weights_token_by_token() -> None:
    """Two wrong, three right and one other token, the gap -0.8, +0.8 and 0."""
    count, t = (2, 3, 1), math.tanh(0.4)
    d = [t] * 2 + [-t] * 3 + [0.0]
    for name, entropy in (("full ECR", ENTROPY), ("no entropy", (0.0, 0.0, 0.0))):
        c = [math.exp(-h) for h, n in zip(entropy, count, strict=True) for _ in range(n)]
        mu = sum(x * y for x, y in zip(c, d, strict=True)) / sum(c)
        w = [1 + 0.5 * 0.5 * x * (y - mu) for x, y in zip(c, d, strict=True)]
        assert sum(w) == pytest.approx(6, abs=1e-14)
        assert known_gap(0.8, count)[name] == pytest.approx(sum(w[:2]) / 2 - sum(w[2:5]) / 3, abs=1e-14)


def test_the_audit_finds_the_answer(tmp_path: Path) -> None:
    made, labels = tmp_path / "made", tmp_path / "labels.jsonl"
    make_step_scores(made, SIZE, TOKENIZER, seed=3)
    scores = read_scores(made)
    items = items_to_judge(scores, checkpoint=0, limit=None, seed=42)
    assert write_items(items, tmp_path / "judging", seed=42) == 30 * 25
    judge(tmp_path / "judging" / "steps.jsonl", labels)
    found = localization_audit(
        scores, read_labels(labels, tmp_path / "judging" / "key.jsonl"), SETTINGS, TOKENIZER,
        checkpoint=0, shuffles=40, replicates=50, seed=42,
    ).numbers  # fmt: skip
    answer = json.loads((made / "answer.json").read_text())
    assert found["selection"]["eligible"] == answer["responses"] == 30
    for name in ("PUU", "no entropy", "full ECR"):  # gaps and entropies are stored in float32
        assert found["variants"][name]["gap"]["value"] == pytest.approx(answer["gap"][name], abs=1e-6), name
    # every first step is right, and the tokens of a kind have one weight
    assert found["variants"]["full ECR"]["first_error"]["value"] == pytest.approx(answer["gap"]["full ECR"], abs=1e-6)
    assert found["variants"]["full ECR"]["positive"]["value"] == answer["positive"] < 1.0
    assert found["variants"]["shuffled, mean"]["gap"]["value"] == pytest.approx(
        answer["gap"]["shuffled, mean"], rel=0.05
    )


@pytest.mark.parametrize(
    ("module", "make"),
    [
        (synthetic, lambda folder: make_scores(folder, Size({0: 2, 5: 2}, problems=60, tokens=4), seed=0)),
        (synthetic_steps, lambda folder: make_step_scores(folder, SIZE, TOKENIZER, seed=0)),
    ],
    ids=["scores", "steps"],
)
def test_interrupted_it_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, make: Callable[[Path], None]
) -> None:
    """Stopped at the second part: no folder is left that a second call would refuse, or an audit would read."""
    whole, calls = module.write_part, list[int]()

    def stopped(folder: Path, number: int, *rest: object) -> None:
        calls.append(number)
        if number == 1:
            raise KeyboardInterrupt
        whole(folder, number, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(module, "write_part", stopped)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "made")
    assert calls == [0, 1]
    assert list(tmp_path.iterdir()) == []
    make(tmp_path / "made")
    assert len(read_scores(tmp_path / "made").parts) > 1


def test_the_seed_decides_everything(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make_step_scores(tmp_path / name, StepSize(2, 3, 6), TOKENIZER, seed=seed)
    answers = [(tmp_path / name / "answer.json").read_text() for name in "abc"]
    assert answers[0] == answers[1] != answers[2]
    parts = [(tmp_path / name / "part-000001.safetensors").read_bytes() for name in "ab"]
    assert parts[0] == parts[1]
