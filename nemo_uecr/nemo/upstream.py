"""The only file that names NeMo-RL's internals: what is expected of them, checked, and what is put in their place.

`native_signatures.yaml` lists every name that is used here with the parameters it must have. NeMo-RL 0.7 and its main
branch both fit; signatures decide, not a version number. NeMo-RL is imported inside functions, so that this module
loads without it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import yaml

from nemo_uecr.errors import DependencyError, UecrError, first_line
from nemo_uecr.nemo.worker_scoring import Columns, MicroBatch, ScoreRequest
from nemo_uecr.stopping import StopRequest

POLICY_CLUSTER = "grpo_policy_cluster"
WORKER_FQN = "nemo_uecr.nemo.ray_worker.UecrMegatronPolicyWorker"
NATIVE_WORKER_FQN = "nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker"
VLLM_WORKER_FQN = "nemo_rl.models.generation.vllm.vllm_worker.VllmGenerationWorker"

#: An evaluation in the place of NeMo-RL's validation: metrics and timings of a generation object at a step.
Evaluate = Callable[[Any, int], tuple[dict[str, float], dict[str, float]]]


class UpstreamError(DependencyError):
    """The installed NeMo-RL is not the one this back end was written for."""


class WorkerError(UecrError, RuntimeError):
    """A worker died or did not answer in time; the message names it."""


def check() -> str:
    """Refuse a NeMo-RL in which a name or signature is not what this back end was written for; returns its version."""
    version = str(_load("nemo_rl.package_info").__version__)
    check_signatures(expected_signatures("driver"), version)
    return version


@functools.cache
def expected_signatures(side: str) -> list[tuple[str, str, list[str] | None]]:
    """Module, qualified name and parameters of what a side, ``driver`` or ``worker``, takes from NeMo-RL."""
    table = yaml.safe_load(Path(__file__).with_name("native_signatures.yaml").read_text(encoding="utf-8"))
    return [
        (module, name, None if parameters is None else parameters.split())
        for module, names in table[side].items()
        for name, parameters in names.items()
    ]


def native(name: str) -> Any:
    """A class or function of NeMo-RL's, from the module in which the table has it."""
    table = [*expected_signatures("driver"), *expected_signatures("worker")]
    return getattr(_load(next(module for module, known, _ in table if known.split(".")[0] == name)), name)


def check_signatures(expected: list[tuple[str, str, list[str] | None]], version: str) -> None:
    """Compare names and parameters with what is installed; the first that differs is named."""
    for module, name, parameters in expected:
        target = _load(module)
        if parameters == ["absent"]:
            if hasattr(target, name):
                raise UpstreamError(f"NeMo-RL {version}: {module} has {name}; expected none, as in 0.7")
            continue
        try:
            target = attrgetter(name)(target)
        except AttributeError as error:
            raise UpstreamError(f"NeMo-RL {version}: {module} has no {name}; expected it there") from error
        if parameters is None:
            continue
        names = [one for one in inspect.signature(target).parameters if f"{one}?" not in parameters]
        wanted = [parameter for parameter in parameters if parameter != "..." and not parameter.endswith("?")]
        if wanted != (names[: len(wanted)] if "..." in parameters else names):
            raise UpstreamError(
                f"NeMo-RL {version}: {module}.{name} takes ({', '.join(names)}); expected ({', '.join(parameters)})"
            )


def _load(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("nemo_rl"):
            raise UpstreamError(
                f"NeMo-RL imports {error.name}, which is not installed for {sys.executable}; run inside NeMo-RL's "
                "container, or install it"
            ) from error
        raise UpstreamError(
            f"NeMo-RL cannot be imported ({error}); run inside its container, or put its source tree on PYTHONPATH "
            "(the package of that name on PyPI is empty)"
        ) from error


@contextlib.contextmanager
def substitutions(
    *, estimator: Callable[[], Any], colocated_worker_groups: int, evaluation: Evaluate | None, stop: StopRequest
) -> Iterator[None]:
    """Put our estimator, evaluation, stop and the wider cluster in NeMo-RL's places, and its own back on leaving.

    ``colocated_worker_groups`` share each GPU of the policy cluster. Without an evaluation, NeMo-RL's validation stays
    as it is. Once a stop is asked, the training loop believes that its time is up: it saves after the step and returns.
    """
    import nemo_rl.algorithms.grpo as grpo

    native_cluster, native_checker = grpo.RayVirtualCluster, grpo.TimeoutChecker

    def make_cluster(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("name") == POLICY_CLUSTER:
            kwargs["max_colocated_worker_groups"] = colocated_worker_groups
        return native_cluster(*args, **kwargs)

    class StoppingTimeoutChecker(native_checker):  # type: ignore[misc, valid-type]
        def check_save(self) -> bool:
            if super().check_save():
                stop.ask("the time limit")
            return stop.asked

    ours: dict[str, Any] = {
        "_create_advantage_estimator": lambda master_config: estimator(),
        "RayVirtualCluster": make_cluster,
        "TimeoutChecker": StoppingTimeoutChecker,
    }
    if evaluation is not None:
        ours["validate"] = lambda generation, *args, step, **kwargs: evaluation(generation, step)
    theirs = {name: getattr(grpo, name) for name in ours}
    vars(grpo).update(ours)
    try:
        yield
    finally:
        vars(grpo).update(theirs)


def register_worker() -> None:
    """Let the Megatron environment that NeMo-RL already has serve our worker as well.

    An interpreter path is used as it is; anything that starts with ``uv`` would build a second environment.
    """
    environment = native("get_actor_python_env")(NATIVE_WORKER_FQN)
    if environment.startswith("uv"):
        environment = native("create_local_venv_on_each_node")(environment, NATIVE_WORKER_FQN)
    native("ACTOR_ENVIRONMENT_REGISTRY")[WORKER_FQN] = environment


def register_environment(name: str, actor: str) -> None:
    """Make an environment known under a name, to be run by this Python."""
    if name not in native("ENV_REGISTRY"):
        native("register_env")(name, actor)
    native("ACTOR_ENVIRONMENT_REGISTRY")[actor] = sys.executable


def teacher_cluster(gpus_of_nodes: list[int]) -> Any:
    """GPUs for a teacher alone: how many on each of its nodes, the same everywhere."""
    return native("RayVirtualCluster")(
        bundle_ct_per_node_list=gpus_of_nodes,
        use_gpus=True,
        max_colocated_worker_groups=1,
        num_gpus_per_node=gpus_of_nodes[0],
        name="uecr_teacher_cluster",
    )


def conversions() -> Path:
    """Where NeMo-RL keeps the Megatron weights that it makes of models, as its `get_megatron_checkpoint_dir` has it."""
    above = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    return Path(os.environ.get("NRL_MEGATRON_CHECKPOINT_DIR") or f"{above}/nemo_rl")


def conversion_folder(model: str) -> Path:
    """Where NeMo-RL keeps the Megatron weights that it makes of a model: by its folder's or hub name alone."""
    name = f"model_{model.replace('/', '_')}" if Path(model).exists() else model
    return Path(native("get_megatron_checkpoint_dir")()) / name


def start(config: Any) -> Any:
    """Start Ray, load the tokenizer and complete the configuration with it; returns the tokenizer."""
    native("init_ray")()
    tokenizer = native("get_tokenizer")(config.policy["tokenizer"])
    config.policy["generation"] = native("configure_generation_config")(config.policy["generation"], tokenizer)
    return tokenizer


def prepare_run(config: Any) -> tuple[Any, Any, Any]:
    """Start Ray, and load tokenizer, problems and environments, in NeMo-RL's own order."""
    tokenizer = start(config)
    dataset, _, environments, _ = native("setup_response_data")(tokenizer, config.data, config.env)
    return tokenizer, dataset, environments


def components(environment: Any) -> dict[str, float]:
    """Metrics of the rewards that our environment has given since the last call; one of NeMo-RL's own has none."""
    if not hasattr(environment, "components"):
        return {}
    import ray

    return dict(ray.get(environment.components.remote()))


def run_loop(
    config: Any,
    parts: tuple[Any, Any, Any],
    loss: Any,
    *,
    make_policy: Callable[..., Any],
    before: Callable[[Any, int], None],
) -> int:
    """NeMo-RL's own set-up with our policy, and its own training loop, unmodified; returns the completed steps.

    ``parts`` are those of `prepare_run`; ``before`` is called between the two, with the configuration that the set-up
    returns and the completed steps.
    """
    tokenizer, dataset, environments = parts
    made = native("setup")(config, tokenizer, dataset, None, policy_factory=make_policy)
    policy, generation, _, _, dataloader, _, _, logger, checkpointer, state, config, *_ = made
    before(config, completed_steps(state))
    native("grpo_train")(
        policy, generation, dataloader, None, tokenizer, loss, environments, None, logger, checkpointer, state, config
    )
    return completed_steps(state)


def completed_steps(state: Any) -> int:
    """Training steps in the loop's state: a mapping in NeMo-RL 0.7, a dataclass since."""
    return int(state["total_steps"] if isinstance(state, Mapping) else state.total_steps)


def schedule_validation(config: Any, *, every: int, at_start: bool) -> None:
    """Set when the loop validates, after the set-up, which would have asked for a data set of NeMo-RL's own."""
    section = config.grpo  # a mapping in NeMo-RL 0.7, a pydantic model since
    for name, value in {"val_period": every, "val_at_start": at_start, "val_at_end": True}.items():
        if isinstance(section, dict):
            section[name] = value
        else:
            setattr(section, name, value)


def score_on_workers(policy: Any, data: Any, request: ScoreRequest, *, seconds: float) -> Any:
    """A policy's scores: rows cut over its data-parallel ranks as for its log-probabilities, and put back in order.

    One worker of each data-parallel rank answers; its replicas answer None.
    """
    shards, order = policy._shard_for_logprob(data)
    called = policy.worker_group.run_all_workers_sharded_data(
        "score_tokens",
        data=shards,
        in_sharded_axes=["data_parallel"],
        replicate_on_axes=["context_parallel", "tensor_parallel", "pipeline_parallel"],
        common_kwargs={"request": request},
    )
    answers = wait("score_tokens", called.futures, worker_names(policy), seconds=seconds)
    answer = type(data).from_batches([part for part in answers if part is not None])
    answer.reorder_data(order)
    return answer


def call_all(policy: Any, method: str, *, seconds: float, **arguments: Any) -> list[Any]:
    """The answers of every worker to the same call, in rank order."""
    futures = policy.worker_group.run_all_workers_single_data(method, **arguments)
    return wait(method, futures, worker_names(policy), seconds=seconds)


def worker_names(policy: Any) -> list[str]:
    """Names of a policy's workers in rank order."""
    return [str(worker["name"]) for worker in policy.worker_group.worker_metadata]


def generation_leaders(generation: Any) -> list[tuple[str, Any]]:
    """Name and Ray actor of the worker that drives each vLLM engine."""
    group = generation.worker_group
    leaders = [group.get_dp_leader_worker_idx(place) for place in range(group.dp_size)]
    return [(str(group.worker_metadata[leader]["name"]), group.workers[leader]) for leader in leaders]


def wait(method: str, futures: Sequence[Any], names: Sequence[str], *, seconds: float) -> list[Any]:
    """The answers of the named workers to a call of a method, in their order, each fetched once.

    The first worker that died, raised or did not answer in time is named: its partners only wait for it.
    """
    import ray

    waiting = dict(zip(futures, names, strict=True))
    answers = {}
    deadline = time.monotonic() + seconds
    while waiting:
        done, _ = ray.wait(list(waiting), num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
        if not done:
            silent = ", ".join(sorted(waiting.values()))
            raise WorkerError(
                f"{method}: no answer within {seconds:g} s from {silent}; expected all workers of the group. One "
                "hangs or waits for a partner: look at its log, or raise scoring.timeout_s"
            )
        name = waiting.pop(done[0])
        try:
            answers[done[0]] = ray.get(done[0])
        except ray.exceptions.RayTaskError as error:
            cause = f"{type(error.cause).__name__}: {first_line(error.cause)}"
            raise WorkerError(f"{method}: worker {name} raised {cause}") from error
        except ray.exceptions.RayError as error:  # RayActorError, and another where Ray ends a worker for memory
            reason = f"{type(error).__name__}: {first_line(error)}"  # on memory it lists every process of the node
            raise WorkerError(
                f"{method}: worker {name} died ({reason:.300}); expected an answer. Look at its log; the usual cause "
                "is memory"
            ) from error
    return [answers[future] for future in futures]


def worker_actor(methods: type) -> Any:
    """NeMo-RL's Megatron worker with our methods, as a Ray actor; actors cannot be subclassed, Impl classes can."""
    import ray

    check_signatures(expected_signatures("worker"), "in the worker's environment")

    class UecrMegatronPolicyWorker(methods, native("MegatronPolicyWorkerImpl")):  # type: ignore[misc]
        pass

    environment = native("get_runtime_env_for_policy_worker")("megatron_policy_worker")
    return ray.remote(runtime_env=environment)(UecrMegatronPolicyWorker)


def score_forward(worker: Any, data: Any, columns: Columns) -> list[Any]:
    """Run a worker's model over its micro-batches and hand each one's raw logits to ``columns``.

    Returns what ``columns`` answered, on the last pipeline stage alone. The post-processor derives from NeMo-RL's own,
    because its forward dispatches on the class. Without sampling parameters the forward neither divides nor filters.
    """

    class RawLogits(native("LogprobsPostProcessor")):  # type: ignore[misc]
        def __call__(
            self, data_dict: Any, input_ids: Any, cu_seqlens_padded: Any, original_seq_length: int | None = None,
            input_is_next_token_logprobs: bool = False,
        ) -> Any:  # fmt: skip
            if input_is_next_token_logprobs:
                raise UpstreamError("NeMo-RL's forward gives no logits: input_is_next_token_logprobs; expected False")

            def finish(logits: Any) -> Any:
                ids, lengths = (data_dict[name].to(logits.device) for name in ("input_ids", "input_lengths"))
                return logits.new_zeros(()), columns(logits, MicroBatch(ids, lengths, cu_seqlens_padded))

            return finish

    timer = worker.mcore_state.straggler_timer
    batches, count, size, _, padded = native("get_microbatch_iterator")(
        data,
        worker.cfg,
        worker.cfg["logprob_batch_size"],
        straggler_timer=timer,
        delegate_pack_to_model=worker.delegate_pack_to_model,
    )
    answers: list[Any] = native("megatron_forward_backward")(
        model=worker.model,
        data_iterator=batches,
        seq_length=padded,
        mbs=size,
        num_microbatches=count,
        post_processing_fn=RawLogits(worker.cfg, sampling_params=None),
        forward_only=True,
        defer_fp32_logits=worker.defer_fp32_logits,
        sampling_params=None,
        straggler_timer=timer,
    )
    return answers


def temperature_only(temperature: float) -> Any:
    """NeMo-RL's sampling parameters with this temperature and no filter."""
    return native("TrainingSamplingParams")(top_k=None, top_p=1.0, temperature=temperature)
