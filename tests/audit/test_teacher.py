"""One teacher under several engines: the comparison by hand, and the real engines on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nemo_uecr.audit.teacher import ENGINES, EngineScores, Request, compared
from nemo_uecr.demo.tokenizer import build_tokenizer
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
def test_vllm_against_plain_logits(tmp_path: Path) -> None:
    """vLLM's kernels want heads of 32 or more; the wide initialisation gives log-probabilities that differ."""
    if (reason := ENGINES["vllm"].missing()) is not None:
        pytest.skip(reason)
    tokenizer = build_tokenizer()
    module = tiny.new_model(tokenizer, seed=2, head_dim=32, initializer_range=0.3)
    model = str(tiny.save_model(module, tokenizer, tmp_path / "model"))
    assert slow(model).logp.std() > 0.5
    assert compared(slow(model), ENGINES["vllm"].score(model, REQUEST), "vllm")["logp"]["max"] <= 1e-4
