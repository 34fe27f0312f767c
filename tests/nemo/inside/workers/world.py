"""Two tiny Qwen3 folders, the configuration of a run of them, batches, and their scores by the definition."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from nemo_uecr.nemo import recipe, rules
from nemo_uecr.nemo.recipe import DATASET
from nemo_uecr.nemo.worker_scoring import ScoreRequest
from tests.nemo.source import SOURCE

RECIPE = Path(SOURCE or ".") / "examples" / "configs" / "grpo_math_8B_megatron.yaml"

TEMPERATURE = 0.7
#: Hidden and feed-forward width. Heads of 32, because vLLM on a CPU takes none of 16.
WIDTHS = {"student": (32, 48), "teacher": (48, 64)}
#: Of the tests' tokenizer: 96 characters, padding and end.
VOCABULARY = 98
LENGTHS = (24, 12, 17, 5, 2, 24, 9, 3)


def make_models(folder: Path, *, mixture: bool = False) -> int:
    """A student and a wider teacher, with the tests' tokenizer, and problems; returns the vocabulary.

    With ``mixture`` both have experts in the place of feed-forward layers.
    """
    import transformers

    from tests.nemo.inside.launched import make_tokenizer

    for seed, (name, (hidden, feed)) in enumerate(WIDTHS.items()):
        vocabulary = make_tokenizer(folder / name)
        torch.manual_seed(seed)
        kind, experts = "Qwen3", {}
        if mixture:
            kind = "Qwen3Moe"
            experts = {
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": feed,
                "norm_topk_prob": True,
            }
        config = getattr(transformers, f"{kind}Config")(
            vocab_size=vocabulary, hidden_size=hidden, intermediate_size=feed, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=name == "student",
            max_position_embeddings=512, rope_theta=1_000_000.0, bos_token_id=0, eos_token_id=1, dtype="bfloat16",
            **experts,
        )  # fmt: skip
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
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
    """A recipe that inherits one of NeMo-RL's, for a run of the two models; these tests make it here alone."""
    from nemo_uecr.config.recipes import load_recipe

    path = folder / "recipe.yaml"
    path.write_text(json.dumps(_recipe(folder)))
    return SimpleNamespace(path=path, changes=changes, values=load_recipe(path, changes).values, vocabulary=vocabulary)


def _recipe(folder: Path) -> dict[str, Any]:
    data = {
        "train": str(folder / "problems.jsonl"), "question_key": "question", "answer_key": "final_answer",
        "prompt_template": "{question}", "enable_thinking": False, "max_prompt_tokens": 256, "long_prompts": "refuse",
        "shuffle": True,
    }  # fmt: skip
    ours = {
        "folder": str(folder / "run"), "teacher": {"model_name": str(folder / "teacher")}, "data": data, "kl": "paper",
        "method": {"name": "uecr", "alpha": 1.0, "rho": 0.5, "tau_delta": 1.0, "tau_entropy": 1.0},
        "reward": f"{folder / 'reward.py'}:level", "verifier_workers": 1, "chunk_tokens": 16, "save_batch_every": 1,
    }  # fmt: skip
    train = {
        "dataset_name": DATASET, "problems": "${uecr.data}", "tokenizer": "${policy.model_name}",
        "processor": "math_hf_data_processor", "env_name": "nemo_uecr", "seed": 1, "prompt_file": None,
        "system_prompt_file": None,
    }  # fmt: skip
    optimizer = {"lr": 0.003, "min_lr": 0.003}  # one step moves weights of sixteen bits
    return {
        "defaults": str(RECIPE),
        "uecr": ours,
        "data": {"train": train, "validation": None},
        "env": {"nemo_uecr": "${uecr}"},
        "grpo": {
            "num_prompts_per_step": 2, "num_generations_per_prompt": 4, "max_num_steps": 2, "val_period": 0,
            "val_at_start": False,
        },
        "loss_fn": {"reference_policy_kl_penalty": 0.001},
        "policy": {
            "model_name": str(folder / "student"), "train_global_batch_size": 8, "max_total_sequence_length": 512,
            "tokenizer": {"chat_template_kwargs": {"enable_thinking": False}},  # as uecr.data has it
            "sequence_packing": {"train_mb_tokens": 512, "logprob_mb_tokens": 512},
            "megatron_cfg": {
                "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "sequence_parallel": False,
                "optimizer": optimizer, "scheduler": {"lr_warmup_iters": 0},
            },
            "generation": {
                "max_new_tokens": 12, "temperature": TEMPERATURE,
                "vllm_cfg": {"tensor_parallel_size": 1, "enforce_eager": True},
            },
        },
        "cluster": {"gpus_per_node": 1, "num_nodes": 1},
        "checkpointing": {"enabled": False, "checkpoint_dir": str(folder / "run" / "checkpoints")},
        "logger": {
            "log_dir": str(folder / "run" / "logs"), "wandb_enabled": False, "monitor_gpus": False,
            "tensorboard_enabled": True,
        },
    }  # fmt: skip


def train(config: Any, *, generation: Any, vllm_python: str) -> None:
    """Train by the plug-in in NeMo-RL's own launch script; the one place where these tests start a run.

    ``generation`` is in the place of NeMo-RL's `VllmGeneration`; without it NeMo-RL's own runs under ``vllm_python``.
    """
    import importlib

    from nemo_uecr.nemo import plug_in, upstream
    from tests.nemo.inside.workers import stand_ins

    grpo: Any = importlib.import_module("nemo_rl.algorithms.grpo")
    native = grpo.setup

    def on_cpu(master_config: Any, *args: Any, **given: Any) -> Any:
        stand_ins.without_fusions(master_config.policy)
        return native(master_config, *args, **given)

    use_this_ray()
    if generation is None:
        upstream.native("ACTOR_ENVIRONMENT_REGISTRY")[upstream.VLLM_WORKER_FQN] = vllm_python
    else:
        grpo.VllmGeneration = generation
    grpo.setup = functools.wraps(native)(on_cpu)  # what the plug-in wraps
    saved: Any = importlib.import_module("nemo_rl.utils.checkpoint")
    # Main's. 0.7 looks for common.pt, which this megatron-core does not write: there an optimizer begins anew.
    saved._load_megatron_common_state_dict = stand_ins.common_state
    plug_in.train(str(config.path), config.changes)


def use_this_ray() -> None:
    """Before NeMo-RL starts anything: Ray runs already, since it has to be told that there are GPUs."""
    import importlib
    import sys

    from nemo_uecr.nemo import upstream

    importlib.import_module("nemo_rl.distributed.virtual_cluster").init_ray = lambda: None
    # NeMo-RL would build an environment of its own for each kind of worker.
    upstream.native("ACTOR_ENVIRONMENT_REGISTRY")[upstream.NATIVE_WORKER_FQN] = sys.executable


def left_behind(run: Path) -> dict[str, Any]:
    """The numbers that a run logged, by name and step, and its saved batches by step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from tests.responses.tables import tensors_of

    logged: dict[str, dict[int, float]] = {}
    for file in sorted(run.rglob("events.out*")):
        events = EventAccumulator(str(file)).Reload()
        for tag in events.Tags()["scalars"]:
            logged.setdefault(tag, {}).update({event.step: event.value for event in events.Scalars(tag)})
    batches = {int(file.stem[-6:]): tensors_of(file) for file in sorted(run.glob("batches/step-*.parquet"))}
    return {"logged": logged, "batches": batches}


def policy_section(config: Any, *, teacher: bool) -> dict[str, Any]:
    """NeMo-RL's policy section of the student or the teacher, as the run's set-up completes it."""
    from tests.nemo.inside.workers import stand_ins

    values, section, settings = _read(config)
    found = values["policy"] | {"uecr": recipe.worker_section(settings)}
    stand_ins.without_fusions(found)
    found["megatron_cfg"]["train_iters"] = 10
    return recipe.teacher_policy(section.active_teachers["teacher"], found, config.vocabulary) if teacher else found


def _read(config: Any) -> Any:
    """The adjusted values, the section and the settings of the recipe."""
    values = copy.deepcopy(config.values)
    section = recipe.section_of(values)
    rules.apply(values, rules.adjusted(values, section))
    return values, section, recipe.view(values, section, config.vocabulary)


def loss(config: Any) -> Any:
    from nemo_uecr.nemo import upstream
    from nemo_uecr.nemo.loss import UecrLoss

    values, _, settings = _read(config)
    return UecrLoss(settings, upstream.native("MasterConfig")(**values).loss_fn)


def request(config: Any, *, teacher: bool) -> ScoreRequest:
    temperatures = {"logp": 1.0} if teacher else {"rollout_logp": TEMPERATURE, "logp": 1.0}
    return ScoreRequest(temperatures, True, config.vocabulary, 16)


def drawn(vocabulary: int, lengths: tuple[int, ...] = LENGTHS) -> Any:
    """NeMo-RL's batch of random rows of these lengths; the first quarter of each is its prompt."""
    from nemo_uecr.nemo import upstream

    generator, width, length_B = torch.Generator().manual_seed(0), max(lengths), torch.tensor(lengths)
    ids_BS = torch.randint(0, vocabulary, (len(lengths), width), generator=generator)
    position_S = torch.arange(width)
    inside_BS = position_S < length_B[:, None]
    mask_BS = inside_BS & (position_S >= (length_B // 4).clamp(min=1)[:, None])
    columns = {
        "input_ids": torch.where(inside_BS, ids_BS, 0), "input_lengths": length_B, "token_mask": mask_BS.float(),
        "sample_mask": torch.ones(len(lengths)),
    }  # fmt: skip
    return upstream.native("BatchedDataDict")(columns)


def scored_tokens(data: Any) -> Any:
    """[B, S] whether a token has a score: it is real, and not the first."""
    position_S = torch.arange(data["input_ids"].shape[1])
    return (position_S > 0) & (position_S < data["input_lengths"][:, None])


def drawn_routes(data: Any) -> Any:
    """[B, S, L, k] two of the four experts for each token and layer, as generation would hand them out."""
    rows, width = data["input_ids"].shape
    order = torch.rand(rows, width, 2, 4, generator=torch.Generator().manual_seed(5)).argsort(dim=-1)
    return order[..., :2].to(torch.int32)


def drawn_advantages(data: Any) -> Any:
    """[B, S] advantages of both signs."""
    return torch.randn(data["input_ids"].shape, generator=torch.Generator().manual_seed(3))


def training_batch(data: Any, rollout_logp: Any, advantages: Any) -> Any:
    """The batch with what NeMo-RL's loop and our policy add: an on-policy step with these advantages."""
    from nemo_uecr.nemo.loss import FIRST_STEP_COLUMN, OPD_COLUMN

    columns = {
        "prev_logprobs": rollout_logp, "generation_logprobs": rollout_logp, "reference_policy_logprobs": rollout_logp,
        "advantages": advantages, FIRST_STEP_COLUMN: torch.ones(len(advantages)),
        OPD_COLUMN: torch.zeros_like(advantages),
    }  # fmt: skip
    return type(data)(dict(data) | columns)


def trained_tokens(data: Any) -> int:
    return int((data["token_mask"][:, 1:] * data["sample_mask"][:, None]).sum())


def by_definition(folder: Path, data: Any, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """Every score of a batch by transformers, one row at a time, from logits in this type."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager")
    if hasattr(model.config, "num_experts_per_tok"):
        model.set_experts_implementation("eager")  # the grouped product knows no float64
    model = model.to(device).to(dtype)  # a conversion is faster there
    shape = data["input_ids"].shape
    found = {name: torch.zeros(shape, dtype=torch.float64) for name in ("rollout_logp", "logp", "entropy")}
    with torch.no_grad():
        for row, length in enumerate(data["input_lengths"].tolist()):
            ids = data["input_ids"][row, :length].to(device)
            logits = model(input_ids=ids[None]).logits[0, :-1].double()
            for name, temperature in {"rollout_logp": TEMPERATURE, "logp": 1.0}.items():
                found[name][row, 1:length] = (logits / temperature).log_softmax(-1).gather(1, ids[1:, None])[:, 0]
            found["entropy"][row, 1:length] = torch.special.entr(logits.softmax(-1)).sum(-1)
    return found


def mean_errors(
    answer: Any, data: Any, folder: Path, names: Any, chosen: Any, device: str = "cpu"
) -> dict[str, tuple[float, float]]:
    """Of each column, at the chosen tokens: our mean error against float64 in nats, and transformers' in bfloat16."""
    exact, sixteen = (by_definition(folder, data, dtype, device) for dtype in (torch.float64, torch.bfloat16))
    assert exact["entropy"][chosen].std() > 0.05, "a flat model agrees with anything"

    def error(column: Any, name: str) -> float:
        return float((column.double() - exact[name])[chosen].abs().mean())

    return {name: (error(answer[name], name), error(sixteen[name], name)) for name in names}


#: Columns of a saved batch, by what the definition calls them.
SAVED = {
    "teacher": {"logp": "teacher_logp", "entropy": "teacher_entropy"},
    "student": {"logp": "old_logp", "rollout_logp": "old_logp_rollout"},
}


def errors_of_batch(tensors: dict[str, Any], folder: Path, role: str) -> dict[str, tuple[float, float]]:
    """The same of a saved batch that the model in the role's folder scored."""
    mask_BT = tensors["sampled"].bool()
    lengths_B = (mask_BT * torch.arange(1, mask_BT.shape[1] + 1)).max(dim=1).values
    data = {"input_ids": tensors["token_ids"].long(), "input_lengths": lengths_B}
    answer = {name: tensors[column] for name, column in SAVED[role].items()}
    return mean_errors(answer, data, folder / role, answer, mask_BT)
