"""One teacher under several engines: the comparison by hand, and the real engines on a tiny model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nemo_uecr.audit import teacher
from nemo_uecr.audit.teacher import ENGINES, GRID, EngineScores, Request, compared, engines_of
from nemo_uecr.demo.tokenizer import build_tokenizer
from nemo_uecr.errors import DataError, ScoreError
from tests.local import tiny

REQUEST = Request(((5, 6, 7), (9,), (11, 12)), ((20, 21, 3), (4, 8, 15, 16, 23), (2,)))


def test_differences_by_hand() -> None:
    """Differences 0, 0.1, -0.3, 0: largest 0.3 at token 2, mean -0.05, median 0.05."""
    reference = EngineScores(torch.tensor([-1.0, -2, -3, -4]), torch.tensor([1.0, 1, 1, 1]))
    found = EngineScores(torch.tensor([-1.0, -1.9, -3.3, -4]), torch.tensor([1.0, 1, 1.5, 1]))
    numbers = compared(reference, found, "made")
    assert numbers["logp"]["max"] == pytest.approx(0.3, abs=1e-6)
    assert numbers["logp"]["at_token"] == 2
    assert numbers["logp"]["mean_signed"] == pytest.approx(-0.05, abs=1e-6)
    assert numbers["logp"]["quantiles"]["0.5"] == pytest.approx(0.05, abs=1e-6)
    assert numbers["entropy"]["max"] == pytest.approx(0.5)
    assert numbers["logp"]["curve"][-1] == numbers["logp"]["max"]
    assert compared(reference, EngineScores(found.logp, None), "made")["entropy"] is None


def test_the_grid_ascends_from_0_to_1() -> None:
    assert (GRID[0], GRID[-1]) == (0.0, 1.0)
    assert bool((np.diff(GRID) > 0).all())


def test_scores_that_cannot_be_compared() -> None:
    reference = EngineScores(torch.zeros(3), None)
    with pytest.raises(ScoreError, match="made scored 2 tokens; expected the 3"):
        compared(reference, EngineScores(torch.zeros(2), None), "made")
    with pytest.raises(ScoreError, match="made gives nan at token 1"):
        compared(reference, EngineScores(torch.tensor([0.0, float("nan"), 0.0]), None), "made")


def slow(model: str) -> EngineScores:
    """Plain transformers: the whole logits, log_softmax, and the sum over the vocabulary."""
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    logp, entropy = [], []
    for prompt, response in zip(REQUEST.prompts, REQUEST.responses, strict=True):
        ids = torch.tensor([*prompt, *response])
        with torch.no_grad():
            table = module(input_ids=ids[None]).logits[0].double().log_softmax(-1)
        for place in range(len(prompt), len(ids)):
            logp.append(table[place - 1, ids[place]])
            entropy.append(-(table[place - 1].exp() * table[place - 1]).sum())
    return EngineScores(torch.stack(logp), torch.stack(entropy))


@pytest.mark.parametrize(("name", "bound"), [("transformers", 1e-5), ("megatron", 1e-4), ("transformers-bf16", 0.5)])
def test_engines_against_plain_logits(name: str, bound: float) -> None:
    """Float32 engines agree to rounding; bf16 is further off, and is not the float32 one by mistake."""
    if (reason := ENGINES[name].missing()) is not None:
        pytest.skip(reason)
    model = str(tiny.assets().teacher)
    numbers = compared(slow(model), ENGINES[name].score(model, REQUEST), name)
    for quantity in ("logp", "entropy"):
        assert numbers[quantity]["max"] <= bound
        assert (numbers[quantity]["max"] > 1e-4) == (name == "transformers-bf16")


@pytest.mark.real
@pytest.mark.slow
def test_vllm_against_plain_logits(tmp_path: Path) -> None:
    """vLLM's kernels want heads of 32 or more; the wide initialisation gives log-probabilities that differ."""
    if (reason := ENGINES["vllm"].missing()) is not None:
        pytest.skip(reason)
    tokenizer = build_tokenizer()
    module = tiny.new_model(tokenizer, seed=2, head_dim=32, initializer_range=0.3)
    model = str(tiny.save_model(module, tokenizer, tmp_path / "model"))
    assert slow(model).logp.std() > 0.5
    assert compared(slow(model), ENGINES["vllm"].score(model, REQUEST), "vllm")["logp"]["max"] <= 1e-4


def test_what_cannot_run_here_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher, "find_spec", lambda name: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert ENGINES["megatron"].missing() == "megatron-core is not installed (nemo-uecr[megatron])"
    assert ENGINES["vllm"].missing() == "vLLM is not installed"
    assert ENGINES["vllm-fp8"].missing() == "needs a GPU"
    assert ENGINES["transformers"].missing() is None


def test_names_and_folders_are_checked(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--engines 'vlm'; expected names of transformers"):
        engines_of(["transformers", "vlm"])
    if ENGINES["megatron"].missing() is None:
        with pytest.raises(DataError, match="megatron-core cannot score"):
            ENGINES["megatron"].score(str(tmp_path), REQUEST)
