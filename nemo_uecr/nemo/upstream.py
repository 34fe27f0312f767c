"""The only file that names NeMo-RL's internals: what is expected of them, checked, and what is put in their place.

Everything here imports NeMo-RL inside functions, so that the module loads without it.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_uecr.nemo import megatron_state, substitutes
from nemo_uecr.nemo.parts import Evaluate, Prepared, SetUp
from nemo_uecr.nemo.replacing import replacing
from nemo_uecr.nemo.signatures import check_table, load_module, prepare_import
from nemo_uecr.stopping import StopRequest

POLICY_CLUSTER = "grpo_policy_cluster"
WORKER_FQN = "nemo_uecr.nemo.ray_worker.UecrMegatronPolicyWorker"
NATIVE_WORKER_FQN = "nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker"
VLLM_WORKER_FQN = "nemo_rl.models.generation.vllm.vllm_worker.VllmGenerationWorker"
#: How NeMo-RL makes a prompt of a problem; a name of its registry.
PROCESSOR = "math_hf_data_processor"

_GRPO = "nemo_rl.algorithms.grpo"
_POLICY = "nemo_rl.models.policy.lm_policy"
_GROUPS = "nemo_rl.distributed.worker_groups"
_LOSS = "nemo_rl.algorithms.loss.loss_functions"
_BATCH = "nemo_rl.distributed.batched_data_dict"
_CLUSTER = "nemo_rl.distributed.virtual_cluster"
_REGISTRY = "nemo_rl.distributed.ray_actor_environment_registry"
_ENVIRONMENTS = "nemo_rl.environments.utils"
_INTERFACES = "nemo_rl.algorithms.loss.interfaces"
_TOKENIZERS = "nemo_rl.algorithms.utils"
_GENERATION = "nemo_rl.models.generation"
_DATA = "nemo_rl.data.utils"
_PROCESSORS = "nemo_rl.data.processors"
_RAW_DATASET = "nemo_rl.data.datasets.raw_dataset"
_RETURNS = "nemo_rl.environments.interfaces"
_SAMPLING = "nemo_rl.algorithms.logits_sampling_utils"
_VENVS = "nemo_rl.utils.venvs"
_WORKER_OPTIONS = "nemo_rl.models.policy.utils"
_WORKER = "nemo_rl.models.policy.workers.megatron_policy_worker"
_TRAIN = "nemo_rl.models.megatron.train"
_MICRO_BATCHES = "nemo_rl.models.megatron.data"


#: Callables that this back end replaces, wraps or calls, with the parameters it counts on; where the list ends in
#: "...", further parameters may follow. NeMo-RL 0.7 and its main branch fit; what fits decides, not a version number.
TABLE = f"""
{_GRPO} _create_advantage_estimator: master_config
{_GRPO} setup: master_config tokenizer dataset val_dataset processor policy_factory
{_GRPO} grpo_train: policy policy_generation wrapped_dataloader val_dataloader tokenizer loss_fn task_to_env
    val_task_to_env logger checkpointer grpo_save_state master_config ...
{_GRPO} validate: policy_generation val_dataloader tokenizer val_task_to_env step master_config logger ...
{_GRPO} RayVirtualCluster.__init__: self bundle_ct_per_node_list use_gpus max_colocated_worker_groups
    num_gpus_per_node name ...
{_GRPO} TimeoutChecker.__init__: self timeout fit_last_save_time
{_GRPO} TimeoutChecker.check_save: self
{_POLICY} Policy.__init__: self cluster config tokenizer name_prefix workers_per_node init_optimizer weights_path
    optimizer_path init_reference_model processor worker_extension_cls_fqn ...
{_POLICY} Policy.get_logprobs: self data timer
{_POLICY} Policy.get_reference_policy_logprobs: self data micro_batch_size timer
{_POLICY} Policy.train: self data loss_fn eval_mode gbs mbs timer check_dim_skip_keys
{_POLICY} Policy.prepare_for_lp_inference: self ...
{_POLICY} Policy.prepare_for_training: self args kwargs
{_POLICY} Policy.calibrate_qkv_fp8_scales: self data micro_batch_size ...
{_POLICY} Policy.offload_after_refit: self
{_POLICY} Policy.offload_before_refit: self
{_POLICY} Policy.shutdown: self
{_POLICY} Policy._shard_for_logprob: self data
{_GROUPS} RayWorkerGroup.run_all_workers_single_data: self method_name args ...
{_GROUPS} RayWorkerGroup.run_all_workers_sharded_data: self method_name args in_sharded_axes replicate_on_axes
    output_is_replicated make_dummy_calls_to_free_axes common_kwargs kwargs
{_GROUPS} RayWorkerGroup.get_dp_leader_worker_idx: self dp_shard_idx
{_LOSS} ClippedPGLossFn.__init__: self cfg ...
{_LOSS} ClippedPGLossFn.__call__: self next_token_logprobs data global_valid_seqs global_valid_toks
{_BATCH} BatchedDataDict.reorder_data: self reorded_indices
{_BATCH} BatchedDataDict.from_batches: batches pad_value_dict ...
{_REGISTRY} get_actor_python_env: actor_class_fqn
{_ENVIRONMENTS} register_env: env_name actor_class_fqn
{_ENVIRONMENTS} create_env: env_name env_config
{_ENVIRONMENTS} ENV_REGISTRY
{_REGISTRY} ACTOR_ENVIRONMENT_REGISTRY
{_GRPO} MasterConfig
{_LOSS} ClippedPGLossConfig
{_INTERFACES} LossType.TOKEN_LEVEL
{_INTERFACES} LossInputType.LOGPROB
{_CLUSTER} RayVirtualCluster
{_CLUSTER} init_ray: ...
{_TOKENIZERS} get_tokenizer: tokenizer_config ...
{_GENERATION} configure_generation_config: config tokenizer ...
{_DATA} setup_response_data: tokenizer data_config env_configs ...
{_PROCESSORS} {PROCESSOR}: datum_dict task_data_spec tokenizer max_seq_length idx
{_RAW_DATASET} RawDataset
{_RETURNS} EnvironmentReturn.__new__: _cls observations metadata next_stop_strings rewards terminateds answers
{_SAMPLING} TrainingSamplingParams: top_k top_p temperature ...
{_VENVS} create_local_venv_on_each_node: py_executable venv_name
{_WORKER_OPTIONS} get_runtime_env_for_policy_worker: policy_worker_name
{_WORKER_OPTIONS} get_megatron_checkpoint_dir
nemo_rl.package_info __version__
"""

#: The same for what only the workers' own environment can import; checked there, when the worker's class is made.
WORKER_TABLE = f"""
{_WORKER} MegatronPolicyWorkerImpl.move_model: self model device move_params move_grads
{_TRAIN} LogprobsPostProcessor.__init__: self cfg sampling_params ...
{_TRAIN} LogprobsPostProcessor.__call__: self data_dict input_ids cu_seqlens_padded
{_TRAIN} megatron_forward_backward: model data_iterator num_microbatches seq_length mbs post_processing_fn forward_only
    defer_fp32_logits global_valid_seqs global_valid_toks sampling_params straggler_timer ...
{_MICRO_BATCHES} get_microbatch_iterator: data cfg mbs straggler_timer seq_length_key delegate_pack_to_model ...
"""


def check() -> str:
    """Refuse a NeMo-RL in which a name or signature differs from what this back end was written for.

    Returns:
        The version it says it is, with its commit where it is a git tree.

    Raises:
        UpstreamError: NeMo-RL is not importable, or something changed; one line says what.
    """
    prepare_import()
    version = str(load_module("nemo_rl.package_info").__version__)
    check_table(TABLE, version)
    return version


@contextlib.contextmanager
def substitutions(
    *,
    estimator: Callable[[], Any],
    colocated_worker_groups: int,
    evaluation: Evaluate | None,
    stop: StopRequest,
) -> Iterator[None]:
    """Put our estimator, evaluation, stop and the wider cluster in NeMo-RL's places, and its own back on leaving.

    Args:
        estimator: called by the training loop for its advantage estimator.
        colocated_worker_groups: how many worker groups share each GPU of the policy cluster.
        evaluation: called with generation object and step where NeMo-RL validates; None leaves its validation alone.
        stop: once it is asked, the training loop takes its time to be over: it saves after the step and returns.
    """
    grpo = importlib.import_module(_GRPO)
    replaced: dict[str, Any] = {
        "_create_advantage_estimator": substitutes.estimator_factory(estimator),
        "RayVirtualCluster": substitutes.shared_cluster(
            grpo.RayVirtualCluster, name=POLICY_CLUSTER, worker_groups=colocated_worker_groups
        ),
        "TimeoutChecker": substitutes.stopping_timeout(grpo.TimeoutChecker, stop),
    }
    if evaluation is not None:
        replaced["validate"] = substitutes.validation(evaluation)
    with replacing(grpo, replaced):
        yield


def registries() -> tuple[dict[str, Any], ...]:
    """Where NeMo-RL looks up environments and the Pythons of its actors."""
    environments = importlib.import_module(_ENVIRONMENTS)
    return environments.ENV_REGISTRY, importlib.import_module(_REGISTRY).ACTOR_ENVIRONMENT_REGISTRY


def register_worker() -> None:
    """Let the Megatron environment that NeMo-RL already has serve our worker as well.

    An interpreter path is used as it is; anything that starts with ``uv`` would build a second environment.
    """
    registry_module = importlib.import_module(_REGISTRY)
    environment = registry_module.get_actor_python_env(NATIVE_WORKER_FQN)
    if environment.startswith("uv"):
        venvs = importlib.import_module(_VENVS)
        environment = venvs.create_local_venv_on_each_node(environment, NATIVE_WORKER_FQN)
    registry_module.ACTOR_ENVIRONMENT_REGISTRY[WORKER_FQN] = environment


def register_environment(name: str, actor: str) -> None:
    """Make an environment known under a name, to be run by this Python."""
    environments = importlib.import_module(_ENVIRONMENTS)
    if name not in environments.ENV_REGISTRY:
        environments.register_env(name, actor)
    importlib.import_module(_REGISTRY).ACTOR_ENVIRONMENT_REGISTRY[actor] = sys.executable


def environment_return() -> Any:
    """What an environment's step returns."""
    prepare_import()
    return importlib.import_module(_RETURNS).EnvironmentReturn


def policy_class() -> Any:
    """NeMo-RL's policy over a Ray worker group."""
    return importlib.import_module(_POLICY).Policy


def cluster_class() -> Any:
    """NeMo-RL's Ray cluster."""
    return importlib.import_module(_CLUSTER).RayVirtualCluster


def batch_class() -> Any:
    """NeMo-RL's batch of columns."""
    return importlib.import_module(_BATCH).BatchedDataDict


def loss_markers() -> tuple[Any, Any]:
    """(loss type, input type) of a token-level loss over log-probabilities."""
    interfaces = importlib.import_module(_INTERFACES)
    return interfaces.LossType.TOKEN_LEVEL, interfaces.LossInputType.LOGPROB


def native_loss(values: Mapping[str, Any]) -> Any:
    """NeMo-RL's own clipped loss with these settings."""
    losses = importlib.import_module(_LOSS)
    return losses.ClippedPGLossFn(losses.ClippedPGLossConfig(**values))


def master_config_class() -> Any:
    """NeMo-RL's configuration schema."""
    return importlib.import_module(_GRPO).MasterConfig


def grpo_module() -> Any:
    """The module of the training loop and its set-up."""
    return importlib.import_module(_GRPO)


def conversion_folder(model: str) -> Path:
    """Where NeMo-RL keeps the Megatron weights that it makes of a Hugging Face folder: by the folder's name alone."""
    return Path(importlib.import_module(_WORKER_OPTIONS).get_megatron_checkpoint_dir()) / (
        f"model_{model.replace('/', '_')}"
    )


def megatron_score_forward(worker: Any, data: Any, after_forward: Callable[..., dict[str, Any]]) -> list[Any]:
    """Run a worker's model over its micro-batches and call ``after_forward(columns, starts, logits)`` on each.

    The post-processor derives from NeMo-RL's own, because its forward dispatches on the class.
    """
    train = importlib.import_module(_TRAIN)
    data_module = importlib.import_module(_MICRO_BATCHES)

    class Scores(train.LogprobsPostProcessor):  # type: ignore[misc, name-defined]
        def __call__(self, data_dict: Any, input_ids: Any, cu_seqlens_padded: Any) -> Any:
            def finish(logits: Any) -> Any:
                return logits.new_zeros(()), after_forward(data_dict, cu_seqlens_padded, logits)

            return finish

    batches, count, size, _, padded = data_module.get_microbatch_iterator(
        data,
        worker.cfg,
        worker.cfg["logprob_batch_size"],
        straggler_timer=worker.mcore_state.straggler_timer,
        delegate_pack_to_model=worker.delegate_pack_to_model,
    )
    found: list[Any] = train.megatron_forward_backward(
        model=worker.model,
        data_iterator=batches,
        seq_length=padded,
        mbs=size,
        num_microbatches=count,
        post_processing_fn=Scores(worker.cfg, sampling_params=None),
        forward_only=True,
        defer_fp32_logits=worker.defer_fp32_logits,
        sampling_params=None,
        straggler_timer=worker.mcore_state.straggler_timer,
    )
    return found if megatron_state.last_stage() else []


def temperature_only(temperature: float) -> Any:
    """NeMo-RL's sampling parameters with this temperature and no filter."""
    module = importlib.import_module(_SAMPLING)
    return module.TrainingSamplingParams(top_k=None, top_p=1.0, temperature=temperature)


def worker_actor(methods: type) -> Any:
    """NeMo-RL's Megatron worker with our methods, as a Ray actor; actors cannot be subclassed, Impl classes can."""
    import ray

    check_table(WORKER_TABLE, "in the worker's environment")
    workers = importlib.import_module(_WORKER)
    environment = importlib.import_module(_WORKER_OPTIONS).get_runtime_env_for_policy_worker

    class UecrMegatronPolicyWorker(methods, workers.MegatronPolicyWorkerImpl):  # type: ignore[misc, name-defined]
        pass

    return ray.remote(runtime_env=environment("megatron_policy_worker"))(UecrMegatronPolicyWorker)


def raw_dataset_class() -> Any:
    """NeMo-RL's base class of datasets."""
    prepare_import()
    return importlib.import_module(_RAW_DATASET).RawDataset


def start(config: Any) -> Any:
    """Start Ray, load the tokenizer and complete the configuration with it; returns the tokenizer."""
    importlib.import_module(_CLUSTER).init_ray()
    tokenizer = importlib.import_module(_TOKENIZERS).get_tokenizer(config.policy["tokenizer"])
    generation = importlib.import_module(_GENERATION)
    config.policy["generation"] = generation.configure_generation_config(config.policy["generation"], tokenizer)
    return tokenizer


def prepare_run(config: Any) -> Prepared:
    """Start Ray, and load tokenizer, problems and environment, in NeMo-RL's own order."""
    tokenizer = start(config)
    data = importlib.import_module(_DATA)
    dataset, _, environments, _ = data.setup_response_data(tokenizer, config.data, config.env)
    return Prepared(tokenizer, dataset, environments)


def set_up(config: Any, parts: Prepared, make_policy: Callable[..., Any]) -> SetUp:
    """NeMo-RL's own set-up with our policy."""
    made = grpo_module().setup(config, parts.tokenizer, parts.dataset, None, policy_factory=make_policy)
    policy, generation, _, _, dataloader, _, _, logger, checkpointer, state, final, *_ = made
    return SetUp(policy, generation, dataloader, logger, checkpointer, state, final, completed_steps(state))


def completed_steps(state: Any) -> int:
    """Training steps in the loop's state: a mapping in NeMo-RL 0.7, a dataclass since."""
    return int(state["total_steps"] if isinstance(state, Mapping) else state.total_steps)


def schedule_validation(config: Any, *, every: int, at_start: bool) -> None:
    """Say when the loop validates, after the set-up, which would have asked for a data set of NeMo-RL's own.

    The section is a mapping in NeMo-RL 0.7, a pydantic model since.
    """
    for name, value in {"val_period": every, "val_at_start": at_start, "val_at_end": True}.items():
        if isinstance(config.grpo, dict):
            config.grpo[name] = value
        else:
            setattr(config.grpo, name, value)


def begin_sharded(policy: Any, method: str, data: Any, **common: Any) -> tuple[Any, Any]:
    """Call a method of every worker with its rows, cut as for the policy's log-probabilities: futures and order."""
    shards, order = policy._shard_for_logprob(data)
    called = policy.worker_group.run_all_workers_sharded_data(
        method,
        data=shards,
        in_sharded_axes=["data_parallel"],
        replicate_on_axes=["context_parallel", "tensor_parallel", "pipeline_parallel"],
        common_kwargs=common,
    )
    return called.futures, order


def end_sharded(batch_type: Any, answers: list[Any], order: Any) -> Any:
    """What one worker of each data-parallel rank answered, in the order of the rows; its replicas answer None."""
    answer = batch_type.from_batches([part for part in answers if part is not None])
    if order is not None:
        answer.reorder_data(order)
    return answer


def begin_on_all(policy: Any, method: str, **arguments: Any) -> Any:
    """The same call to every worker; futures in rank order."""
    return policy.worker_group.run_all_workers_single_data(method, **arguments)


def worker_names(policy: Any) -> list[str]:
    """Names of a policy's workers in rank order."""
    return [str(worker["name"]) for worker in policy.worker_group.worker_metadata]


def generation_leaders(generation: Any) -> list[tuple[str, Any]]:
    """Name and Ray actor of the worker that drives each vLLM engine."""
    group = generation.worker_group
    leaders = [group.get_dp_leader_worker_idx(place) for place in range(group.dp_size)]
    return [(str(group.worker_metadata[leader]["name"]), group.workers[leader]) for leader in leaders]


def run_loop(run: SetUp, parts: Prepared, loss: Any) -> None:
    """NeMo-RL's own training loop, unmodified."""
    grpo_module().grpo_train(
        run.policy, run.generation, run.dataloader, None, parts.tokenizer, loss, parts.environments, None,
        run.logger, run.checkpointer, run.state, run.config,
    )  # fmt: skip
