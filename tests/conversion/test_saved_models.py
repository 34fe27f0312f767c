"""A Qwen3 that megatron-core saved over several ranks, converted, and loaded by transformers: the same model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nemo_uecr.conversion.reading import read_weights
from tests.conversion.folders import TEMPLATE, model_folder, nemo_rl_step
from tests.conversion.real import converted, marks, tensors, transformers_logp
from tests.conversion.saved import Saved, checkpoints, saved_mixture
from tests.nemo.tiny_qwen3 import EXPERTS, VOCABULARY, whole_model
from tests.reliability.commands import refused

pytestmark = marks

LAYOUTS = [(2, 1), (2, 2)]
"""Tensor-parallel ranks, pipeline stages."""


@pytest.fixture(scope="module", params=LAYOUTS, ids=lambda layout: f"tp{layout[0]}-pp{layout[1]}")
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Saved]:
    tensor, pipeline = request.param
    return checkpoints(tmp_path_factory.mktemp("saved"), tensor=tensor, pipeline=pipeline)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_transformers_agrees_with_the_ranks(saved: dict[bool, Saved], tied: bool, tmp_path: Path) -> None:
    source = saved[tied]
    model = model_folder(tmp_path / "model", tied=tied)
    line = converted(source.folder, "--to", tmp_path / "out", "--hf", model, "--tolerance", 1e-5)
    assert "the same model" in line
    torch.testing.assert_close(transformers_logp(tmp_path / "out"), source.logp, atol=1e-5, rtol=0)
    # The model is no uniform distribution, and its output layer is in the file exactly when it is its own.
    assert float((source.logp[:, 1] + torch.tensor(float(VOCABULARY)).log()).abs().max()) > 0.3
    assert ("lm_head.weight" in tensors(tmp_path / "out")) == (not tied)


@pytest.mark.parametrize("expert", [1, 2])
def test_a_mixture_is_the_one_that_its_expert_ranks_saved(
    expert: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With names and layout of the hub's files, and the weights of the model that was saved, bit for bit."""
    source = saved_mixture(tmp_path / "saved", expert=expert)
    # The norm before experts has a name of its own where Transformer Engine saved it. A round trip alone would not
    # see a conversion that looks for it under the name of a fused one.
    names = read_weights(source.folder).shapes
    assert "decoder.layers.pre_mlp_layernorm.weight" in names
    assert not [name for name in names if "mlp" in name and "layer_norm" in name]
    model = model_folder(tmp_path / "model", tied=False, mixture=True)
    line = converted(source.folder, "--to", tmp_path / "out", "--hf", model, "--tolerance", 1e-5)
    assert "the same model" in line
    torch.testing.assert_close(transformers_logp(tmp_path / "out"), source.logp, atol=1e-5, rtol=0)
    whole, files = whole_model(mixture=True).state_dict(), tensors(tmp_path / "out")
    for layer in range(2):
        at = f"model.layers.{layer}.mlp"
        assert torch.equal(files[f"{at}.gate.weight"], whole[f"{at}.gate.weight"])
        for one in range(EXPERTS):
            gate, up = whole[f"{at}.experts.gate_up_proj"][one].chunk(2)
            expected = {"gate_proj": gate, "up_proj": up, "down_proj": whole[f"{at}.experts.down_proj"][one]}
            for name, value in expected.items():
                assert torch.equal(files[f"{at}.experts.{one}.{name}.weight"], value)
    other = model_folder(tmp_path / "other", tied=False, mixture=True, num_experts=8)
    words = ("convert", source.folder, "--hf", other, "--to", tmp_path / "wrong")
    assert "or it is another model" in refused(capsys, *words)


def test_another_feed_forward_width(
    saved: dict[bool, Saved], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_folder(tmp_path / "model", tied=False, intermediate_size=48)
    words = ("convert", saved[False].folder, "--hf", model, "--to", tmp_path / "out")
    assert "or it is another model" in refused(capsys, *words)


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Saved]:
    return checkpoints(tmp_path_factory.mktemp("padded"), tensor=2, pipeline=1, padded=64)


def test_a_step_of_nemo_rl_with_a_padded_vocabulary(padded: dict[bool, Saved], tmp_path: Path) -> None:
    """The whole of what is delivered: weights without padding, configuration, tokenizer, template, evidence."""
    model = model_folder(tmp_path / "model", tied=False)
    step = nemo_rl_step(tmp_path, padded[False].folder / "iter_0000001", model)
    out, templates = tmp_path / "out", model / "additional_chat_templates"
    templates.mkdir()
    (templates / "tool_use.jinja").write_text("1")
    converted(step, "--to", out)
    assert tensors(out)["lm_head.weight"].shape[0] == VOCABULARY
    # Megatron's softmax included the padding's columns unless they are masked, as the scores here are.
    torch.testing.assert_close(transformers_logp(out), padded[False].logp, atol=1e-5, rtol=0)
    from transformers import AutoTokenizer, GenerationConfig

    assert AutoTokenizer.from_pretrained(out).chat_template == {"default": TEMPLATE, "tool_use": "1"}
    assert GenerationConfig.from_pretrained(out).temperature == 0.7
    record = json.loads((out / "conversion.json").read_text())
    assert record["verification"]["agreement"]["largest"] <= 1e-5
    assert set(record["source_sha256"]) >= {"metadata.json", ".metadata", "common.pt", "__0_0.distcp", "__1_0.distcp"}
    files = {str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()}
    assert set(record["sha256"]) == files - {"conversion.json"}
    assert record["versions"]["megatron-bridge"] != "not installed as a package"
