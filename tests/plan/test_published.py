"""docs/plan.md: its commands, and the plan beside what others measured, on H100 where nothing else is said.

Assumed of the steps: prompts of 130 tokens (110 for Qwen3, by the tokens/s that the sources state) and lengths with
sigma 0.9.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.plan.contents import GPUS, Device, Lengths, Plan, typed
from nemo_uecr.plan.nemo import engine_seconds, nemo_plan
from nemo_uecr.plan.shapes import BF16, KNOWN, forward_flops, kv_token_bytes, parameters, shape_of
from tests.conftest import ROOT
from tests.plan.subjects import nemo

PAGE = (Path(ROOT) / "docs" / "plan.md").read_text(encoding="utf-8")
H100, A100, RTX = GPUS["h100"], GPUS["a100"], GPUS["rtx4090"]
A100_40 = replace(A100, name="A100 40 GB", bandwidth=1.4e12)  # 1555 GB/s of the vendor's, as the table takes 90% of it
MODELS = {  # hidden size, layers, heads, feed-forward size, vocabulary
    "Llama-3.1-8B": (4096, 32, 32, 14_336, 128_256),
    "Llama-3.1-70B": (8192, 80, 64, 28_672, 128_256),
    "Qwen2.5-72B": (8192, 80, 64, 29_568, 152_064),
}


class Step(NamedTuple):
    """A step of NeMo-RL with Megatron, 2048 responses of at most 4096 tokens with their prompts."""

    source: str
    model: str
    nodes: int
    layout: tuple[int, ...]  # tensor and pipeline ranks of the training, tensor ranks of vLLM; context, expert ranks
    response: int  # mean tokens
    again: bool  # activation checkpointing
    seconds: dict[str, float]
    batch: tuple[int, int] = (64, 4096)  # prompts of a step, 32 responses to each, and the longest sequence


STEPS = [
    Step("[v0.3 blog]", "Llama-3.1-8B", 1, (1, 1, 1), 795, False,
         {"rollout": 58, "score": 18, "train": 28, "refit": 5, "whole": 112}),
    Step("[issue 959]", "Llama-3.1-8B", 1, (1, 1, 1), 811, False,
         {"rollout": 56, "score": 18, "train": 27, "refit": 8, "whole": 116}),
    Step("[v0.3 blog]", "Llama-3.1-70B", 8, (4, 4, 4), 398, False,
         {"rollout": 84, "score": 18, "train": 28, "refit": 14, "whole": 147}),
    Step("[issue 959]", "Llama-3.1-70B", 8, (4, 4, 4), 396, False,
         {"rollout": 87, "score": 20, "train": 31, "refit": 26, "whole": 178}),
    Step("[0.4 summary]", "Llama-3.1-8B", 2, (1, 2, 1), 1060, True, {"whole": 97.7}),
    Step("[0.5 summary]", "Llama-3.1-8B", 2, (1, 2, 1), 1019, True, {"whole": 92.8}),
    Step("[0.4 summary]", "Qwen/Qwen3-32B", 4, (4, 4, 4), 3206, False, {"whole": 393}),
    Step("[0.5 summary]", "Qwen/Qwen3-32B", 4, (4, 4, 4), 3251, False, {"whole": 376}),
    Step("[0.7 summary]", "Qwen/Qwen3-30B-A3B", 4, (1, 1, 2, 1, 8), 3203, False, {"whole": 192}),
    Step("[0.7 summary]", "Qwen/Qwen3-235B-A22B", 16, (2, 8, 16, 2, 16), 5698, True, {"whole": 395}, (16, 8192)),
    Step("[0.7 summary]", "Qwen/Qwen3-235B-A22B", 32, (2, 8, 16, 2, 16), 5713, True, {"whole": 312}, (16, 8192)),
]  # fmt: skip
BOUNDS = {"whole": (0.8, 1.25), "refit": (0.5, 2.0)}


def llama(folder: Path, name: str) -> str:
    hidden, layers, heads, feed_forward, vocabulary = MODELS[name]
    values = {
        "model_type": "qwen2" if "Qwen" in name else "llama", "vocab_size": vocabulary, "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": feed_forward, "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(values))
    return str(folder)


def planned(step: Step, folder: Path) -> Plan:
    model = llama(folder, step.model) if step.model in MODELS else step.model
    tensor, pipeline, rollout, context, expert = (*step.layout, 1, 1)[:5]
    prompts, longest = step.batch
    prompt = 110 if "Qwen3" in step.model else 130
    keys = {
        "uecr.method.name": "grpo", "uecr.teacher": "null", "policy.model_name": model,
        "cluster.num_nodes": step.nodes, "policy.megatron_cfg.tensor_model_parallel_size": tensor,
        "policy.megatron_cfg.pipeline_model_parallel_size": pipeline,
        "policy.megatron_cfg.context_parallel_size": context,
        "policy.megatron_cfg.expert_model_parallel_size": expert,
        "policy.megatron_cfg.sequence_parallel": tensor > 1,
        "policy.megatron_cfg.activation_checkpointing": step.again,
        "policy.generation.vllm_cfg.tensor_parallel_size": rollout,
        "grpo.num_prompts_per_step": prompts, "grpo.num_generations_per_prompt": 32,
        "policy.train_global_batch_size": 512,
        "uecr.data.max_prompt_tokens": prompt, "policy.generation.max_new_tokens": longest - prompt,
        "policy.max_total_sequence_length": longest, "policy.train_micro_batch_size": 1,
        "policy.megatron_cfg.distributed_data_parallel_config.grad_reduce_in_fp32": False,  # as NeMo-RL's recipes
    }  # fmt: skip
    if "235B" in step.model:  # 94 layers
        keys |= {f"++policy.megatron_cfg.num_layers_in_{end}_pipeline_stage": 11 for end in ("first", "last")}
    return nemo_plan(nemo(*typed(keys)), H100, Lengths(prompt, step.response, 0.9))


@pytest.mark.parametrize("step", STEPS, ids=[f"{step.source}, {step.model}" for step in STEPS])
def test_a_step_takes_what_was_measured(step: Step, tmp_path: Path) -> None:
    """ "score" is policy and reference, as NeMo-RL's "get logprobs"; the page has the row."""
    plan = planned(step, tmp_path)
    found = {phase.name: phase.seconds for phase in plan.phases}
    found |= {"score": found["score student"] + found["score reference"], "whole": plan.seconds}
    cells = {name: f"{found[name]:.0f} / {seconds:.0f}" for name, seconds in step.seconds.items()}
    run = f"{step.model.removeprefix('Qwen/')}, {8 * step.nodes}, {step.response}"
    row = " | ".join([step.source, run, *cells.values()])
    assert (f"| {row} |" if len(cells) > 1 else f"- {step.source} {run}: {cells['whole']} s") in PAGE
    assert plan.faults == (), "it ran in 80 GB"
    for name, seconds in step.seconds.items():
        low, high = BOUNDS.get(name, (0.7, 1.4))
        assert low <= found[name] / seconds <= high, cells


class Decoding(NamedTuple):
    """Milliseconds per token of vLLM with few sequences."""

    source: str
    model: str
    device: Device
    sequences: int
    milliseconds: float
    context: int = 600  # mean tokens before the one at work
    tensor: int = 1


TT = "https://github.com/tenstorrent/tt-inference-server/issues"
BENCH = "https://yobitelcomm.github.io/bench/recipes/concurrency-sweep/"
DECODING = [
    Decoding("gpustack, vLLM 0.11", "Qwen/Qwen3-8B", H100, 4, 7.4),
    Decoding(f"{TT}/340", "Qwen/Qwen3-1.7B", A100, 1, 4.7),
    Decoding(f"{TT}/394", "Qwen/Qwen3-4B", RTX, 1, 10.4),
    Decoding(BENCH, "Llama-3.1-8B", H100, 1, 6.5, 200),
    Decoding(BENCH, "Llama-3.1-8B", H100, 16, 10.9, 200),
    Decoding("https://johnmusgrave.com/p/vllm-throughput-latency-sweep-on", "Llama-3.1-8B", A100_40, 1, 13.3, 1100),
    Decoding(f"{TT}/143", "Qwen2.5-72B", H100, 1, 30.9, 600, 2),
]


@pytest.mark.parametrize("point", DECODING, ids=[f"{one.source}, {one.sequences}" for one in DECODING])
def test_a_token_takes_what_was_measured(point: Decoding, tmp_path: Path) -> None:
    """The plan is slow here, by half at the most: its shares are those of many sequences."""
    shape = KNOWN.get(point.model) or shape_of(llama(tmp_path, point.model), role="student")
    seconds = engine_seconds(
        point.device, [1.0] * point.sequences, point.sequences, point.context,
        weights=BF16 * parameters(shape) // point.tensor, cached=kv_token_bytes(shape, point.tensor, BF16),
        flops=forward_flops(shape, point.context) / point.tensor,
    )  # fmt: skip
    assert 0.9 <= 1e3 * seconds / point.milliseconds <= 1.5


def test_a_run_that_was_met_afterwards() -> None:
    """vime issue 244: four H800 for the rollout, four for scoring and training; every response as long as it may be."""
    keys = (
        "uecr.method.name=grpo", "uecr.teacher=null", "policy.megatron_cfg.tensor_model_parallel_size=2",
        "policy.megatron_cfg.sequence_parallel=true", "policy.generation.vllm_cfg.tensor_parallel_size=2",
        "grpo.num_prompts_per_step=32", "policy.train_global_batch_size=256", "cluster.gpus_per_node=4",
        "uecr.data.max_prompt_tokens=512", "policy.generation.max_new_tokens=2048",
        "policy.max_total_sequence_length=2560", "policy.sequence_packing.train_mb_tokens=9216",
        "policy.sequence_packing.logprob_mb_tokens=9216",
    )  # fmt: skip
    found = {phase.name: phase.seconds for phase in nemo_plan(nemo(*keys), H100, Lengths(130, 2048, 0.9)).phases}
    trained = found["score student"] + found["score reference"] + found["train"]
    assert f"rollout {found['rollout']:.0f} / 24 s, scoring and training {trained:.0f} / 17 s" in PAGE
    assert 0.7 <= found["rollout"] / 23.8 <= 1.4
    assert 0.7 <= trained / 16.8 <= 1.4


EXAMPLES = re.findall(r"```\n\$ nemo-uecr (plan .*)\n((?:.*\n)*?)```", PAGE)
assert EXAMPLES


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[str(index) for index in range(len(EXAMPLES))])
def test_a_command_prints_what_the_page_shows(
    command: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line in order; lines may be left out only where the page says so."""
    monkeypatch.chdir(ROOT)
    entry_point(shlex.split(command))
    printed = capsys.readouterr()
    left_out = re.escape(shown).replace(re.escape("...\n"), "(.*\n)*?")
    assert re.fullmatch(left_out, printed.out + printed.err)
