"""Everything that needs one GPU and NeMo-RL's container, on a tiny Qwen3 made on the spot.

    python tests/gpu/one_gpu.py TOKENIZER FOLDER

TOKENIZER is a folder with a Qwen3 tokenizer and its chat template, FOLDER an empty folder for the run. It prints one
line per check and exits with 1 at the first that fails: three worker groups fit beside vLLM; the teacher's offload
returns the GPU's memory; `score_tokens` at T_r equals NeMo-RL's own log-probabilities; ten training steps start with
the ratio at 1 within bf16's reach; the benchmark is evaluated before, between and after them. For FP8, compare
`nemo-uecr teacher score` of a batch in FOLDER/run/batches with and without teacher.fp8 by `teacher compare`.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
LIMIT_MEBI, STEPS = 64, 10
#: bf16 keeps eight bits: two kernels may differ by this much in a log-probability of a tiny model.
BF16 = 0.05


def report(name: str, *, passed: bool, detail: str) -> None:
    sys.stdout.write(f"{'pass' if passed else 'FAIL'}  {name}: {detail}\n")
    sys.stdout.flush()
    if not passed:
        sys.exit(1)


def make_model(folder: Path, tokenizer_folder: str, *, seed: int) -> int:
    """Save a random Qwen3 of two layers with the tokenizer; returns its vocabulary."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    vocabulary = -(-len(tokenizer) // 128) * 128
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, intermediate_size=512, max_position_embeddings=2048, tie_word_embeddings=False,
    )  # fmt: skip
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return vocabulary


def make_rows(folder: Path) -> None:
    """Sixty-four sums to train on, and three others as a benchmark."""
    problems = [{"question": f"{a} + {a + 1} = ?", "final_answer": str(2 * a + 1), "difficulty": 6} for a in range(64)]
    sums = [{"id": str(a), "question": f"{a} + {a} = ?", "answer": str(2 * a)} for a in (11, 12, 13)]
    for name, rows in (("problems", problems), ("sums", sums)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def overrides(folder: Path) -> list[str]:
    """The shipped 1.7B recipe, made small enough for one GPU and a minute."""
    return [
        f"uecr.folder={folder / 'run'}", f"policy.model_name={folder / 'student'}",
        f"uecr.teacher.model_name={folder / 'teacher'}", f"uecr.data.train={folder / 'problems.jsonl'}",
        "uecr.data.max_prompt_tokens=256", "policy.max_total_sequence_length=320",
        "policy.sequence_packing.train_mb_tokens=1024", "policy.sequence_packing.logprob_mb_tokens=1024",
        "policy.generation.max_new_tokens=64", "grpo.num_prompts_per_step=4", "grpo.num_generations_per_prompt=4",
        "policy.generation.vllm_cfg.gpu_memory_utilization=0.3", "policy.generation.vllm_cfg.enforce_eager=true",
        "policy.train_global_batch_size=16", f"grpo.max_num_steps={STEPS}", "cluster.gpus_per_node=1",
        "checkpointing.enabled=false", "uecr.save_batch_every=1", f"uecr.tolerances.first_ratio={BF16}",
        "uecr.timeout_s=600.0", f"++uecr.evaluation.benchmarks.sums={folder}/sums.jsonl", "uecr.evaluation.every=5",
        "uecr.evaluation.samples=2", "uecr.evaluation.max_tokens=32",
    ]  # fmt: skip


def random_batch(lengths: list[int], vocabulary: int) -> Any:
    import torch

    from nemo_uecr.nemo import upstream

    shape = (len(lengths), max(lengths))
    ids = torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(0))
    masks = {"token_mask": torch.ones(shape), "sample_mask": torch.ones(shape[0])}
    return upstream.native("BatchedDataDict")({"input_ids": ids, "input_lengths": torch.tensor(lengths), **masks})


def check_offload(policy: Any, vocabulary: int) -> None:
    """On, scoring many lengths, and off three times: what the teacher leaves must neither stay nor grow."""
    from nemo_uecr.nemo.upstream import call_all

    teacher = next(iter(policy._teachers.values()))

    def allocated() -> float:
        return float(call_all(teacher._policy, "get_gpu_info", seconds=600)[0]["memory_allocated_mb"])

    before = allocated()
    for cycle in range(3):
        teacher.load()
        loaded = allocated()
        for length in range(16, 321, 16):
            teacher.score_tokens(random_batch([length] * 2, vocabulary), policy._context.teacher_request(vocabulary))
        teacher.offload()
        after = allocated()
        detail = f"{before:.1f} MiB off, {loaded:.1f} on, {after:.1f} off again"
        passed = loaded > before and abs(after - before) <= LIMIT_MEBI
        report(f"teacher offload, cycle {cycle + 1}", passed=passed, detail=detail)


def check_scores(policy: Any, vocabulary: int) -> None:
    """Our column at T_r beside NeMo-RL's own, same model, same packing."""
    import torch

    from nemo_uecr.nemo import upstream

    lengths = torch.tensor([48, 17, 33, 64])
    data = random_batch(lengths.tolist(), vocabulary)
    upstream.native("Policy").prepare_for_lp_inference(policy)
    native = upstream.native("Policy").get_logprobs(policy, data)["logprobs"]
    ours = policy.score_tokens(data, policy._context.student_request)["rollout_logp"]
    inside = (torch.arange(64)[None] < lengths[:, None]) & (torch.arange(64)[None] > 0)
    worst = float((ours - native).abs()[inside].max())
    detail = f"largest difference {worst:.3g} nats"
    report("score_tokens(T_r) against get_logprobs", passed=worst <= 1e-3, detail=detail)


def check_records(run: Path) -> None:
    """Evaluations when they were due, with all their samples; and how far the first ratio was from 1."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    records = [json.loads(line) for line in (run / "evaluation.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in records]
    report("avg@2 during training", passed=steps == [0, 5, STEPS], detail=f"after steps {steps}")
    samples = (run / "evaluations" / f"step-{STEPS:06d}.jsonl").read_text().splitlines()
    report("samples of an evaluation", passed=len(samples) == 6, detail=f"{len(samples)} of 3 problems twice")
    found = []
    for file in sorted((run / "logs").rglob("events.out*")):
        events = EventAccumulator(str(file)).Reload()
        if "train/policy/first_ratio_error" in events.Tags()["scalars"]:
            found += [event.value for event in events.Scalars("train/policy/first_ratio_error")]
    worst = max(found, default=float("inf"))
    differs = f"differs from 1 by {worst:.3g}"
    report("ratio of the first update", passed=len(found) == STEPS and worst <= BF16, detail=differs)


def main(tokenizer: str, target: str) -> None:
    """Make models and problems, hook the checks in before the loop, and train."""
    sys.path.insert(0, str(ROOT))
    from nemo_uecr.nemo import plug_in
    from nemo_uecr.responses.table import read_responses

    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    make_rows(folder)
    make_model(folder / "teacher", tokenizer, seed=1)
    vocabulary = make_model(folder / "student", tokenizer, seed=0)
    shipped = ROOT / "examples" / "configs" / "uecr_qwen3_1p7b.yaml"
    loop = importlib.import_module("nemo_rl.algorithms.grpo")
    native = loop.grpo_train

    @functools.wraps(native)  # the launcher checks its signature
    def checked_loop(policy: Any, *parts: Any) -> None:
        report("three worker groups beside vLLM", passed=True, detail="set-up returned")
        check_offload(policy, vocabulary)
        check_scores(policy, vocabulary)
        policy.offload_after_refit()
        native(policy, *parts)

    with patch.object(loop, "grpo_train", checked_loop):
        plug_in.train(str(shipped), overrides(folder))
    check_records(folder / "run")
    saved = sorted((folder / "run" / "batches").glob("*.parquet"))
    report("training steps", passed=len(saved) == STEPS, detail=f"{len(saved)} of {STEPS} left a batch")
    entropy = read_responses(saved[-1]).tokens("teacher_entropy")
    report("teacher entropy", passed=bool((entropy >= -1e-4).all()), detail=f"at most {float(entropy.max()):.3f} nats")


if __name__ == "__main__":
    main(*sys.argv[1:3])
