"""The only file that names NeMo-RL's internals: what is expected of them, checked, and what is put in their place.

Everything here imports NeMo-RL inside functions, so that the module loads without it.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nemo_uecr.nemo_adapter.early_end import also_asked
from nemo_uecr.nemo_adapter.errors import UpstreamError
from nemo_uecr.nemo_adapter.replacing import replacing
from nemo_uecr.nemo_adapter.signatures import check_signature, expected_signatures, load_module, prepare_import
from nemo_uecr.stopping import StopRequest

#: Versions whose source the table below was checked against.
SUPPORTED = (0, 7)
POLICY_CLUSTER = "grpo_policy_cluster"
WORKER_FQN = "nemo_uecr.nemo_adapter.ray_worker.UecrMegatronPolicyWorker"
NATIVE_WORKER_FQN = "nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker"

_GRPO = "nemo_rl.algorithms.grpo"
_POLICY = "nemo_rl.models.policy.lm_policy"
_GROUPS = "nemo_rl.distributed.worker_groups"
_LOSS = "nemo_rl.algorithms.loss.loss_functions"
_BATCH = "nemo_rl.distributed.batched_data_dict"
_CLUSTER = "nemo_rl.distributed.virtual_cluster"
_REGISTRY = "nemo_rl.distributed.ray_actor_environment_registry"
_ENVIRONMENTS = "nemo_rl.environments.utils"


#: Callables that this back end replaces, wraps or calls, with the parameters it counts on; where the list ends in
#: "...", further parameters may follow.
TABLE = f"""
{_GRPO} _create_advantage_estimator: master_config
{_GRPO} setup: master_config tokenizer dataset val_dataset processor policy_factory
{_GRPO} grpo_train: policy policy_generation wrapped_dataloader val_dataloader tokenizer loss_fn task_to_env
    val_task_to_env logger checkpointer grpo_save_state master_config
{_GRPO} validate: policy_generation val_dataloader tokenizer val_task_to_env step master_config logger
{_GRPO} RayVirtualCluster.__init__: self bundle_ct_per_node_list use_gpus max_colocated_worker_groups
    num_gpus_per_node name ...
{_GRPO} TimeoutChecker.__init__: self timeout fit_last_save_time
{_GRPO} TimeoutChecker.check_save: self
{_POLICY} Policy.__init__: self cluster config tokenizer name_prefix workers_per_node init_optimizer weights_path
    optimizer_path init_reference_model processor worker_extension_cls_fqn
{_POLICY} Policy.get_logprobs: self data timer
{_POLICY} Policy.get_reference_policy_logprobs: self data micro_batch_size timer
{_POLICY} Policy.train: self data loss_fn eval_mode gbs mbs timer check_dim_skip_keys
{_POLICY} Policy.prepare_for_lp_inference: self args kwargs
{_POLICY} Policy.prepare_for_training: self args kwargs
{_POLICY} Policy.calibrate_qkv_fp8_scales: self data micro_batch_size ...
{_POLICY} Policy.offload_after_refit: self
{_POLICY} Policy.shutdown: self
{_POLICY} Policy._shard_for_logprob: self data
{_GROUPS} RayWorkerGroup.run_all_workers_single_data: self method_name args ...
{_GROUPS} RayWorkerGroup.run_all_workers_sharded_data: self method_name args in_sharded_axes replicate_on_axes
    output_is_replicated make_dummy_calls_to_free_axes common_kwargs kwargs
{_GROUPS} RayWorkerGroup.get_all_worker_results: self future_bundle ...
{_GROUPS} RayWorkerGroup.get_dp_leader_worker_idx: self dp_shard_idx
{_LOSS} ClippedPGLossFn.__init__: self cfg
{_LOSS} ClippedPGLossFn.__call__: self next_token_logprobs data global_valid_seqs global_valid_toks
{_BATCH} BatchedDataDict.reorder_data: self reorded_indices
{_BATCH} BatchedDataDict.from_batches: batches pad_value_dict
{_REGISTRY} get_actor_python_env: actor_class_fqn
{_ENVIRONMENTS} register_env: env_name actor_class_fqn
{_ENVIRONMENTS} create_env: env_name env_config
"""


def check() -> str:
    """Refuse a NeMo-RL whose version or signatures differ from what this back end was written for.

    Returns:
        The installed version.

    Raises:
        UpstreamError: NeMo-RL is not importable, is another version, or a callable changed; one line says which.
    """
    version = _version()
    for expected in expected_signatures(TABLE):
        check_signature(expected, version)
    registry = load_module(_REGISTRY, version).ACTOR_ENVIRONMENT_REGISTRY
    if NATIVE_WORKER_FQN not in registry:
        raise UpstreamError(
            f"NeMo-RL {version}: no environment is registered for {NATIVE_WORKER_FQN}; expected its Megatron worker"
        )
    return version


def _version() -> str:
    prepare_import()
    try:
        info = importlib.import_module("nemo_rl.package_info")
    except ImportError as error:
        raise UpstreamError(
            f"NeMo-RL cannot be imported ({error}); run inside its container, or put its source tree, version "
            f"{SUPPORTED[0]}.{SUPPORTED[1]}, on PYTHONPATH (the package of that name on PyPI is empty)"
        ) from error
    if (info.MAJOR, info.MINOR) != SUPPORTED:
        raise UpstreamError(
            f"NeMo-RL says it is version {info.__version__}; expected {SUPPORTED[0]}.{SUPPORTED[1]}.x, against which "
            "this back end was checked. Use that release"
        )
    return str(info.__version__)


#: An evaluation in the place of NeMo-RL's validation: metrics and timings of a generation object at a step.
Evaluate = Callable[[Any, int], tuple[dict[str, float], dict[str, float]]]


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
    native_cluster, native_timeout = grpo.RayVirtualCluster, grpo.TimeoutChecker

    def make_estimator(master_config: Any) -> Any:
        return estimator()

    def make_cluster(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("name") == POLICY_CLUSTER:
            kwargs["max_colocated_worker_groups"] = colocated_worker_groups
        return native_cluster(*args, **kwargs)

    def make_timeout(*args: Any, **kwargs: Any) -> Any:
        return also_asked(native_timeout(*args, **kwargs), stop)

    def validate(policy_generation: Any, *unused: Any, step: int, **also_unused: Any) -> Any:
        assert evaluation is not None  # noqa: S101  put in place only then
        return evaluation(policy_generation, step)

    replaced: dict[str, Any] = {
        "_create_advantage_estimator": make_estimator,
        "RayVirtualCluster": make_cluster,
        "TimeoutChecker": make_timeout,
    }
    replaced |= {} if evaluation is None else {"validate": validate}
    with replacing(grpo, replaced):
        yield


def register_worker() -> None:
    """Let the Megatron environment that NeMo-RL already has serve our worker as well.

    An interpreter path is used as it is; anything that starts with ``uv`` would build a second environment.
    """
    registry_module = importlib.import_module(_REGISTRY)
    environment = registry_module.get_actor_python_env(NATIVE_WORKER_FQN)
    if environment.startswith("uv"):
        venvs = importlib.import_module("nemo_rl.utils.venvs")
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
    return importlib.import_module("nemo_rl.environments.interfaces").EnvironmentReturn


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
    interfaces = importlib.import_module("nemo_rl.algorithms.loss.interfaces")
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


@dataclass(frozen=True)
class Groups:
    """Megatron's process groups of this rank; None where the group has one rank."""

    tensor: Any
    context: Any
    pipeline: Any
    tensor_rank: int
    last_stage: bool


def model_parallel_groups() -> Groups:
    """The groups that Megatron set up."""
    from megatron.core import parallel_state as state

    def group(size: int, found: Any) -> Any:
        return found if size > 1 else None

    return Groups(
        tensor=group(state.get_tensor_model_parallel_world_size(), state.get_tensor_model_parallel_group()),
        context=group(state.get_context_parallel_world_size(), state.get_context_parallel_group()),
        pipeline=group(state.get_pipeline_model_parallel_world_size(), state.get_pipeline_model_parallel_group()),
        tensor_rank=state.get_tensor_model_parallel_rank(),
        last_stage=state.is_pipeline_last_stage(ignore_virtual=True),
    )


def megatron_score_forward(worker: Any, data: Any, after_forward: Callable[..., dict[str, Any]]) -> list[Any]:
    """Run a worker's model over its micro-batches and call ``after_forward(columns, starts, logits)`` on each.

    The post-processor derives from NeMo-RL's own, because its forward dispatches on the class.
    """
    train = importlib.import_module("nemo_rl.models.megatron.train")
    data_module = importlib.import_module("nemo_rl.models.megatron.data")

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
    return found if model_parallel_groups().last_stage else []


def temperature_only(temperature: float) -> Any:
    """NeMo-RL's sampling parameters with this temperature and no filter."""
    module = importlib.import_module("nemo_rl.algorithms.logits_sampling_utils")
    return module.TrainingSamplingParams(top_k=None, top_p=1.0, temperature=temperature)


def is_wrapped(model: Any) -> bool:
    """Whether Megatron's data-parallel wrapper owns the model's parameters."""
    from megatron.core.distributed import DistributedDataParallel
    from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel

    return isinstance(model, DistributedDataParallel | FullyShardedDataParallel)


def worker_actor(methods: type) -> Any:
    """NeMo-RL's Megatron worker with our methods, as a Ray actor; actors cannot be subclassed, Impl classes can."""
    import ray

    workers = importlib.import_module("nemo_rl.models.policy.workers.megatron_policy_worker")
    environment = importlib.import_module("nemo_rl.models.policy.utils").get_runtime_env_for_policy_worker

    class UecrMegatronPolicyWorker(methods, workers.MegatronPolicyWorkerImpl):  # type: ignore[misc, name-defined]
        pass

    return ray.remote(runtime_env=environment("megatron_policy_worker"))(UecrMegatronPolicyWorker)


def raw_dataset_class() -> Any:
    """NeMo-RL's base class of datasets."""
    prepare_import()
    return importlib.import_module("nemo_rl.data.datasets.raw_dataset").RawDataset


@dataclass(frozen=True)
class Prepared:
    """What NeMo-RL needs before its set-up."""

    tokenizer: Any
    dataset: Any
    environments: Any


@dataclass(frozen=True)
class SetUp:
    """What NeMo-RL's set-up returned, as far as the loop takes it, and the steps that a checkpoint brought."""

    policy: Any
    generation: Any
    dataloader: Any
    logger: Any
    checkpointer: Any
    state: Any
    config: Any
    completed_steps: int


def start(config: Any) -> Any:
    """Start Ray, load the tokenizer and complete the configuration with it; returns the tokenizer."""
    importlib.import_module(_CLUSTER).init_ray()
    tokenizer = importlib.import_module("nemo_rl.algorithms.utils").get_tokenizer(config.policy["tokenizer"])
    generation = importlib.import_module("nemo_rl.models.generation")
    config.policy["generation"] = generation.configure_generation_config(config.policy["generation"], tokenizer)
    return tokenizer


def scoring_policy_config(config: Any) -> Any:
    """The policy's configuration with what the loop's set-up adds to it; a scorer makes no training step."""
    config.policy["megatron_cfg"]["train_iters"] = 1
    return config.policy


def prepare_run(config: Any) -> Prepared:
    """Start Ray, and load tokenizer, problems and environment, in NeMo-RL's own order."""
    tokenizer = start(config)
    data = importlib.import_module("nemo_rl.data.utils")
    dataset, _, environments, _ = data.setup_response_data(tokenizer, config.data, config.env)
    return Prepared(tokenizer, dataset, environments)


def set_up(config: Any, parts: Prepared, make_policy: Callable[..., Any]) -> SetUp:
    """NeMo-RL's own set-up with our policy."""
    made = grpo_module().setup(config, parts.tokenizer, parts.dataset, None, policy_factory=make_policy)
    policy, generation, _, _, dataloader, _, _, logger, checkpointer, state, final, *_ = made
    return SetUp(policy, generation, dataloader, logger, checkpointer, state, final, int(state["total_steps"]))


def schedule_evaluation(run: SetUp, *, every: int, at_start: bool) -> None:
    """Say when the loop validates; set-up would have asked for a data set of NeMo-RL's own."""
    # The loop takes the first step of any epoch for the start, also after a resume.
    first = at_start and run.completed_steps == 0
    run.config.grpo.update(val_period=every, val_at_start=first, val_at_end=True)


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
