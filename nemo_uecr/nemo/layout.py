"""Whether student, teachers and vLLM of a recipe find their GPUs and hold together: the policies as workers get them.

NeMo-RL and Megatron would refuse most of this too, on the cluster, one fault at a time and after Ray has started.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nemo_uecr.config.load import flattened, value_at
from nemo_uecr.nemo import recipe, rules
from nemo_uecr.nemo.recipe import UecrSection
from nemo_uecr.nemo.rules import Adjustment

#: NeMo-RL's variable by which it takes unequal micro-batches with many tensor ranks.
IGNORED_CHECK = "NRL_IGNORE_TP_ACCURACY_CHECK"


@dataclass(frozen=True)
class Parallel:
    """How a model is split across GPUs; the remaining GPUs are data parallel."""

    tensor: int  # ranks that share each layer and the vocabulary
    pipeline: int  # ranks that share the stack of layers
    context: int  # ranks that share each sequence
    sequence: bool  # whether the tensor ranks also share the activations between layers
    expert: int = 1  # ranks that share the experts of a layer
    expert_tensor: int = 1  # ranks that share each expert
    first_layers: int | None = None  # of the first pipeline stage; None: as many as of the others
    last_layers: int | None = None  # of the last one

    @property
    def ranks(self) -> int:
        """GPUs of one copy of the model."""
        return self.tensor * self.pipeline * self.context

    @property
    def expert_ranks(self) -> int:
        """GPUs of one copy of all experts."""
        return self.pipeline * self.expert * self.expert_tensor

    def stages(self, layers: int) -> list[int] | None:
        """How many of a model's layers each pipeline stage has; None where they cannot be shared."""
        ends = [self.first_layers, self.last_layers]
        inner = self.pipeline - sum(end is not None for end in ends)
        rest = layers - sum(end or 0 for end in ends)
        if rest < 0 or inner < 0 or (rest % inner if inner else rest):
            return None
        first, last = ([] if end is None else [end] for end in ends)
        return [*first, *([rest // inner] * inner if inner else []), *last]


def parallel_of(policy: Mapping[str, Any]) -> Parallel:
    """The layout of a resolved policy."""
    megatron = policy["megatron_cfg"]
    return Parallel(
        tensor=megatron["tensor_model_parallel_size"],
        pipeline=megatron["pipeline_model_parallel_size"],
        context=megatron["context_parallel_size"],
        sequence=bool(megatron["sequence_parallel"]),
        expert=megatron.get("expert_model_parallel_size") or 1,
        expert_tensor=megatron.get("expert_tensor_parallel_size") or 1,
        first_layers=megatron.get("num_layers_in_first_pipeline_stage") or None,
        last_layers=megatron.get("num_layers_in_last_pipeline_stage") or None,
    )


@dataclass(frozen=True)
class Model:
    """A model of the run: its policy as its workers get it, and its GPUs."""

    key: str  # what precedes its keys in the recipe: `policy`, `uecr.teacher`, `uecr.teachers.NAME`
    policy: Mapping[str, Any]
    gpus: int
    left: str = ""  # of the node's GPUs, what others have; for messages

    @property
    def name(self) -> str:
        return str(self.policy["model_name"])

    @property
    def parallel(self) -> Parallel:
        return parallel_of(self.policy)

    @property
    def data_ranks(self) -> int:
        """Copies of the model, each of which takes a part of the responses."""
        return self.gpus // self.parallel.ranks

    def packed(self, tokens: int) -> int:
        """Tokens of a sequence in a micro-batch, where NeMo-RL rounds lengths up."""
        multiple = int(self.policy["make_sequence_length_divisible_by"])
        return -(-tokens // multiple) * multiple

    def microbatch_tokens(self, kind: str) -> int:
        """Tokens of a micro-batch of ``kind`` `train` or `logprob`: packed, gathered by length, or padded rows."""
        for section in ("sequence_packing", "dynamic_batching"):
            if value_at(self.policy, f"{section}.enabled"):
                return int(self.policy[section][f"{kind}_mb_tokens"])
        rows = self.policy["train_micro_batch_size" if kind == "train" else "logprob_batch_size"]
        return int(rows) * self.packed(int(self.policy["max_total_sequence_length"]))


@dataclass(frozen=True)
class Job:
    """A recipe as it will run: its values with the adjustments made, and its models on their GPUs."""

    values: Mapping[str, Any]
    section: UecrSection
    changes: Sequence[Adjustment]
    student: Model
    teachers: Mapping[str, Model]  # by `teacher` or `teachers.NAME`; empty where the method reads none
    generation_gpus: int  # vLLM's: the student's, or its own
    nodes: int  # of the whole run
    gpus_per_node: int

    @property
    def models(self) -> dict[str, Model]:
        return {"student": self.student, **self.teachers}

    @property
    def teacher(self) -> Model | None:
        """One of the teachers, which stands for the layout of all."""
        return next(iter(self.teachers.values()), None)

    @property
    def shares_gpus(self) -> bool:
        """Whether vLLM takes turns with the student on the same GPUs."""
        return bool(self.at("policy.generation.colocated.enabled"))

    @property
    def prompts(self) -> int:
        """Prompts of a step."""
        return int(self.at("grpo.num_prompts_per_step"))

    @property
    def responses(self) -> int:
        """Responses of a step."""
        return self.prompts * int(self.at("grpo.num_generations_per_prompt"))

    @property
    def minibatch(self) -> int:
        """Responses of an optimizer step."""
        return int(self.at("policy.train_global_batch_size"))

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with response."""
        return int(self.at("policy.max_total_sequence_length"))

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt: of our data set, or as NeMo-RL's processors cut it."""
        own = self.section.data
        return min(self.longest, own.max_prompt_tokens if own else int(self.at("data.max_input_seq_length")))

    @property
    def longest_response(self) -> int:
        """Tokens of the longest response."""
        return min(self.longest, int(self.at("policy.generation.max_new_tokens")))

    @property
    def engine_ranks(self) -> int:
        """GPUs of one vLLM engine."""
        vllm = self.at("policy.generation.vllm_cfg")
        return int(vllm["tensor_parallel_size"] * vllm["pipeline_parallel_size"])

    def at(self, key: str) -> Any:
        """The recipe's value at a dotted key."""
        return value_at(self.values, key)


def job_of(values: Mapping[str, Any], section: UecrSection) -> Job:
    """The job of a recipe in which `rules.faults_of` finds nothing; the adjustments are made in a copy."""
    changes = rules.adjusted(values, section)
    made = copy.deepcopy(dict(values))
    rules.apply(made, changes)
    policy, gpus = made["policy"], student_gpus(made)
    teachers = {
        name if name == "teacher" else f"teachers.{name}": Model(
            "uecr.teacher" if name == "teacher" else f"uecr.teachers.{name}",
            recipe.teacher_policy(teacher, policy, columns=0),
            teacher.dedicated_gpus or gpus,
        )
        for name, teacher in section.active_teachers.items()
    }
    shared = value_at(made, "policy.generation.colocated.enabled")
    own = section.dedicated_gpus
    student = Model("policy", policy, gpus, f", all but the teacher's dedicated_gpus={own}" if own else "")
    return Job(
        made, section, changes, student, teachers, gpus if shared else generation_gpus(made),
        values["cluster"]["num_nodes"], values["cluster"]["gpus_per_node"],
    )  # fmt: skip


def generation_gpus(values: Mapping[str, Any]) -> int:
    """GPUs that vLLM has for itself: some of the only node's, or whole nodes."""
    resources = value_at(values, "policy.generation.colocated.resources") or {}
    per_node = resources.get("gpus_per_node") or 0
    return int(per_node * (1 if values["cluster"]["num_nodes"] == 1 else resources.get("num_nodes") or 0))


def student_gpus(values: Mapping[str, Any]) -> int:
    """GPUs of the student: those that vLLM, where it is apart, and a reward model of NeMo-RL's leave."""
    nodes, per_node = values["cluster"]["num_nodes"], values["cluster"]["gpus_per_node"]
    taken = 0 if value_at(values, "policy.generation.colocated.enabled") else generation_gpus(values)
    asks = flattened(values.get("data") or {}).values()
    rewards = value_at(values, "env.reward_model.resources") or {}
    if "reward_model" in asks and rewards:
        taken += rewards["gpus_per_node"] * (1 if nodes == 1 else rewards["num_nodes"])
    return int(nodes * per_node - taken)


def layout_faults(job: Job) -> list[str]:
    """Why the models cannot be placed on the GPUs, or their sequences and batches not be split."""
    student = job.student
    faults = [fault for model in job.models.values() for fault in model_faults(model)]
    if not faults:
        faults += _batch_faults(student)
    faults += _generation_faults(job)
    longest = student.policy["max_total_sequence_length"]
    for model in job.teachers.values():
        if (own := model.policy["make_sequence_length_divisible_by"]) % recipe.sequence_multiple(model.policy):
            faults.append(
                f"{model.key}.make_sequence_length_divisible_by: got {own}; expected a multiple of "
                f"{recipe.sequence_multiple(model.policy)}, by which its layout splits a sequence"
            )
        if (most := model.policy["max_total_sequence_length"]) < longest:
            faults.append(
                f"{model.key}.max_total_sequence_length: got {most}; the student's have up to {longest} tokens"
            )
    return faults


def model_faults(model: Model) -> Iterator[str]:
    """A model against its GPUs, and its micro-batches against the longest sequence."""
    key, parallel, policy = model.key, model.parallel, model.policy
    if model.gpus <= 0:
        yield f"{key}: no GPU is left for it; expected more cluster.num_nodes or cluster.gpus_per_node"
        return
    yield from _rank_faults(model)
    if value_at(policy, "dtensor_cfg.enabled"):
        yield f"{key}.dtensor_cfg.enabled: got true beside megatron_cfg.enabled; NeMo-RL takes one of the two"
    yield from _packing_faults(model)
    longest = model.packed(int(policy["max_total_sequence_length"]))
    for kind in ("train", "logprob") if key == "policy" else ("logprob",):
        for section in ("sequence_packing", "dynamic_batching"):
            if value_at(policy, f"{section}.enabled") and (size := policy[section][f"{kind}_mb_tokens"]) < longest:
                yield f"{key}.{section}.{kind}_mb_tokens: got {size}; the longest padded sequence has {longest} tokens"
    rows, scored = policy["train_micro_batch_size"], policy["logprob_batch_size"]
    if parallel.tensor >= rules.EQUAL_FROM and rows != scored and not os.environ.get(IGNORED_CHECK):
        yield (
            f"{key}.logprob_batch_size: got {scored}; with {parallel.tensor} tensor ranks it must equal "
            f"train_micro_batch_size, else log-probabilities differ: set {key}.logprob_batch_size={rows}"
        )


def _packing_faults(model: Model) -> Iterator[str]:
    key, parallel = model.key, model.parallel
    packs, gathers = (value_at(model.policy, f"{each}.enabled") for each in ("sequence_packing", "dynamic_batching"))
    if packs and gathers:
        yield f"{key}.dynamic_batching.enabled: got true beside sequence_packing.enabled; NeMo-RL takes one of the two"
    if parallel.context > 1 and not packs:
        yield (
            f"{key}.megatron_cfg.context_parallel_size: got {parallel.context}; NeMo-RL cuts packed sequences alone: "
            f"set {key}.sequence_packing.enabled=true"
        )
    if parallel.pipeline > 1 and gathers:
        yield (
            f"{key}.megatron_cfg.pipeline_model_parallel_size: got {parallel.pipeline}, with which NeMo-RL gathers no "
            f"rows by length: set {key}.dynamic_batching.enabled=false"
        )


def _rank_faults(model: Model) -> Iterator[str]:
    """A layout that its GPUs cannot be dealt to."""
    key, parallel = model.key, model.parallel
    if model.gpus % parallel.ranks:
        yield (
            f"{key}.megatron_cfg: tensor * pipeline * context = {parallel.ranks} does not divide its {model.gpus} GPUs"
            f"{model.left}; change the layout or the GPUs"
        )
    if model.gpus % parallel.expert_ranks and (parallel.expert > 1 or parallel.expert_tensor > 1):
        yield (
            f"{key}.megatron_cfg.expert_model_parallel_size: got {parallel.expert}; pipeline * expert * expert tensor "
            f"= {parallel.expert_ranks} does not divide its {model.gpus} GPUs"
        )
    if parallel.expert > 1:
        yield from sequence_faults(model)


def sequence_faults(model: Model) -> Iterator[str]:
    """A mixture that trains on several tensor ranks without sequence parallelism, in which Megatron raises."""
    if model.key == "policy" and model.parallel.tensor > 1 and not model.parallel.sequence:
        yield (
            f"policy.megatron_cfg.sequence_parallel: got false with tensor_model_parallel_size "
            f"{model.parallel.tensor}; Megatron does not train a mixture of experts so: take true"
        )


def _batch_faults(student: Model) -> Iterator[str]:
    size, ranks = student.policy["train_global_batch_size"], student.data_ranks
    rows = student.policy["train_micro_batch_size"]
    packed = any(value_at(student.policy, f"{each}.enabled") for each in ("sequence_packing", "dynamic_batching"))
    if size % ranks or (not packed and size // ranks % rows):
        what = f"{ranks} data-parallel ranks of the student" + ("" if packed else f" in micro-batches of {rows}")
        fitting = [own for own in range(student.gpus, 0, -1) if own % student.parallel.ranks == 0]
        most = next((own for own in fitting if size % (own // student.parallel.ranks) == 0), None)
        yield (
            f"policy.train_global_batch_size: got {size}; {what} cannot share it equally"
            + (f" ({most} of its {student.gpus} GPUs could)" if most not in (None, student.gpus) else "")
        )


def _generation_faults(job: Job) -> Iterator[str]:
    """Why the engines do not fit: each node has its own, unless an engine has more GPUs than a node."""
    gpus, engine = job.generation_gpus, job.engine_ranks
    node = min(gpus, job.gpus_per_node)
    if gpus <= 0:
        yield "policy.generation.colocated.resources: no GPU for vLLM; expected gpus_per_node, and num_nodes of several"
    elif gpus % engine or (node if engine <= node else gpus) % engine:
        yield (
            f"policy.generation.vllm_cfg.tensor_parallel_size: with pipeline ranks an engine has {engine} GPUs, which "
            f"do not divide the {gpus} of generation, {node} on a node"
        )
