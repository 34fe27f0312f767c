"""Two tiny Qwen3 folders, the configuration of a run of them, batches, and their scores by the definition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from nemo_uecr.nemo.worker_scoring import ScoreRequest

TEMPERATURE = 0.7
#: Hidden and feed-forward width. Heads of 32, because vLLM on a CPU takes none of 16.
WIDTHS = {"student": (32, 48), "teacher": (48, 64)}
#: Of the tests' tokenizer: 96 characters, padding and end.
VOCABULARY = 98
LENGTHS = (24, 12, 17, 5, 2, 24, 9, 3)


def make_models(folder: Path) -> int:
    """A student and a wider teacher, with the tests' tokenizer, and problems; returns the vocabulary."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from tests.nemo.inside.launched import make_tokenizer

    for seed, (name, (hidden, feed)) in enumerate(WIDTHS.items()):
        vocabulary = make_tokenizer(folder / name)
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=vocabulary, hidden_size=hidden, intermediate_size=feed, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=name == "student",
            max_position_embeddings=512, rope_theta=1_000_000.0, bos_token_id=0, eos_token_id=1, dtype="bfloat16",
        )  # fmt: skip
        model = Qwen3ForCausalLM(config)
        with torch.no_grad():
            for weight in model.parameters():  # a random model is flat
                weight.add_(torch.randn_like(weight) * 0.1)
            model.lm_head.weight.mul_(2.0)
        model.bfloat16().save_pretrained(folder / name)
    # Equal rewards would make every advantage 0: a reward that varies.
    source = "def level(solution_str, extra_info): return (sum(map(ord, solution_str)) % 5) / 4\n"
    (folder / "reward.py").write_text(source)
    rows = [{"question": f"{n}+1", "final_answer": str(n + 1), "difficulty": n % 10} for n in range(60)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return vocabulary


def run_config(folder: Path, vocabulary: int, *changes: str) -> Any:
    """The configuration of a run of the two models; the one place where these tests make one."""
    from nemo_uecr.config.load import load_nemo_config
    from tests.config.shipped import CONFIGS

    given = [
        f"run.folder={folder / 'run'}", f"student.model_name={folder / 'student'}",
        f"teacher.model_name={folder / 'teacher'}", f"student.vocabulary={vocabulary}",
        f"data.train={folder / 'problems.jsonl'}", "data.verifier_workers=1", "data.max_prompt_tokens=256",
        f"reward={folder / 'reward.py'}:level", "rollout.max_response_tokens=12", f"rollout.temperature={TEMPERATURE}",
        "rollout.prompts_per_step=2", "rollout.responses_per_prompt=4", "train.minibatch_responses=8", "train.steps=2",
        "train.learning_rate=0.003",  # one step moves weights of sixteen bits
        "scoring.chunk_tokens=16", "scoring.tokens_per_microbatch=512", "train.tokens_per_microbatch=512",
        "loss.reference_kl=0.001", "cluster.gpus_per_node=1", "checkpoint.every=0", "telemetry.save_batch_every=1",
    ]  # fmt: skip
    return load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*given, *changes])


def train(config: Any, *, resume: bool, generation: Any, vllm_python: str) -> None:
    """Train by the launcher; the one place where these tests start a run.

    ``generation`` is in the place of NeMo-RL's `VllmGeneration`; without it NeMo-RL's own runs under ``vllm_python``.
    """
    import importlib
    import sys

    from nemo_uecr.nemo import launcher, translate, upstream
    from tests.nemo.inside.workers import stand_ins

    master, native = translate.master_config, upstream.native

    def on_cpu(config: Any, **given: Any) -> Any:
        found = master(config, **given)
        stand_ins.without_fusions(found["policy"])
        return found

    # NeMo-RL would build an environment of its own for each kind of worker.
    native("ACTOR_ENVIRONMENT_REGISTRY")[upstream.NATIVE_WORKER_FQN] = sys.executable
    if generation is None:
        native("ACTOR_ENVIRONMENT_REGISTRY")[upstream.VLLM_WORKER_FQN] = vllm_python
    else:
        importlib.import_module("nemo_rl.algorithms.grpo").VllmGeneration = generation
    translate.master_config = on_cpu
    # This Ray runs already: it has to be told that there are GPUs.
    upstream.native = lambda name: (lambda: None) if name == "init_ray" else native(name)
    launcher.train(config, resume=resume, origins={})


def left_behind(run: Path) -> dict[str, Any]:
    """The numbers that a run logged, by name and step, and its saved batches by step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from nemo_uecr.data.batch_file import load_batch

    logged: dict[str, dict[int, float]] = {}
    for file in sorted(run.rglob("events.out*")):
        events = EventAccumulator(str(file)).Reload()
        for tag in events.Tags()["scalars"]:
            logged.setdefault(tag, {}).update({event.step: event.value for event in events.Scalars(tag)})
    batches = {int(file.stem[-6:]): load_batch(file).tensors for file in sorted(run.glob("batches/step-*.safetensors"))}
    return {"logged": logged, "batches": batches}


def policy_section(config: Any, *, teacher: bool) -> dict[str, Any]:
    """NeMo-RL's policy section of the student or the teacher, as the run's set-up completes it."""
    from nemo_uecr.nemo import translate
    from tests.nemo.inside.workers import stand_ins

    found = translate.master_config(config)["policy"]
    stand_ins.without_fusions(found)
    found["megatron_cfg"]["train_iters"] = 10
    return translate.teacher_policy(config, found, config.student.vocabulary) if teacher else found


def loss(config: Any) -> Any:
    from nemo_uecr.nemo.loss import UecrLoss
    from tests.nemo.inside.loop import native_of

    return UecrLoss(config, native_of(config))


def request(config: Any, *, teacher: bool) -> ScoreRequest:
    temperatures = {"logp": 1.0} if teacher else {"rollout_logp": TEMPERATURE, "logp": 1.0}
    return ScoreRequest(temperatures, True, config.student.vocabulary, config.scoring.chunk_tokens)


def drawn(vocabulary: int) -> Any:
    """NeMo-RL's batch of random rows; the first quarter of each is its prompt."""
    from nemo_uecr.nemo import upstream

    generator, width, length_B = torch.Generator().manual_seed(0), max(LENGTHS), torch.tensor(LENGTHS)
    ids_BS = torch.randint(0, vocabulary, (len(LENGTHS), width), generator=generator)
    position_S = torch.arange(width)
    inside_BS = position_S < length_B[:, None]
    mask_BS = inside_BS & (position_S >= (length_B // 4).clamp(min=1)[:, None])
    columns = {
        "input_ids": torch.where(inside_BS, ids_BS, 0), "input_lengths": length_B, "token_mask": mask_BS.float(),
        "sample_mask": torch.ones(len(LENGTHS)),
    }  # fmt: skip
    return upstream.native("BatchedDataDict")(columns)


def scored_tokens(data: Any) -> Any:
    """[B, S] whether a token has a score: it is real, and not the first."""
    position_S = torch.arange(data["input_ids"].shape[1])
    return (position_S > 0) & (position_S < data["input_lengths"][:, None])


def training_batch(data: Any, rollout_logp: Any) -> Any:
    """The batch with what NeMo-RL's loop and our policy add: an on-policy step with advantages of both signs."""
    from nemo_uecr.nemo.loss import FIRST_STEP_COLUMN, OPD_COLUMN

    shape = data["input_ids"].shape
    columns = {
        "prev_logprobs": rollout_logp, "generation_logprobs": rollout_logp, "reference_policy_logprobs": rollout_logp,
        "advantages": torch.randn(shape, generator=torch.Generator().manual_seed(3)),
        FIRST_STEP_COLUMN: torch.ones(shape[0]), OPD_COLUMN: torch.zeros(shape),
    }  # fmt: skip
    return type(data)(dict(data) | columns)


def trained_tokens(data: Any) -> int:
    return int((data["token_mask"][:, 1:] * data["sample_mask"][:, None]).sum())


def by_definition(folder: Path, data: Any, dtype: torch.dtype) -> dict[str, Any]:
    """Every score of a batch by transformers, one row at a time, from logits in this type."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").to(dtype)
    shape = data["input_ids"].shape
    found = {name: torch.zeros(shape, dtype=torch.float64) for name in ("rollout_logp", "logp", "entropy")}
    with torch.no_grad():
        for row, length in enumerate(data["input_lengths"].tolist()):
            ids = data["input_ids"][row, :length]
            logits = model(input_ids=ids[None]).logits[0, :-1].double()
            for name, temperature in {"rollout_logp": TEMPERATURE, "logp": 1.0}.items():
                found[name][row, 1:length] = (logits / temperature).log_softmax(-1).gather(1, ids[1:, None])[:, 0]
            found["entropy"][row, 1:length] = torch.special.entr(logits.softmax(-1)).sum(-1)
    return found


def mean_errors(answer: Any, data: Any, folder: Path, names: Any) -> dict[str, tuple[float, float]]:
    """Of each column: our mean error against float64 in nats, and transformers' own in bfloat16, its yardstick."""
    exact, sixteen = by_definition(folder, data, torch.float64), by_definition(folder, data, torch.bfloat16)
    chosen = scored_tokens(data)
    assert exact["entropy"][chosen].std() > 0.05, "a flat model agrees with anything"
    return {
        name: tuple((each[name].double() - exact[name])[chosen].abs().mean().item() for each in (answer, sixteen))
        for name in names
    }  # type: ignore[misc]
