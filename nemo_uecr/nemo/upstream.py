"""The only file that names NeMo-RL's internals: how they are called, checked, and what is put in their place.

`native_calls.yaml` lists every name that is used here with the call that is made. NeMo-RL 0.7, 0.8 and its main branch
fit; calls decide, not a version number. NeMo-RL is imported inside functions, so that this module loads without it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_uecr.errors import UecrError, first_line
from nemo_uecr.nemo.native_calls import UpstreamError as UpstreamError
from nemo_uecr.nemo.native_calls import check_side, load
from nemo_uecr.nemo.native_calls import native as native
from nemo_uecr.nemo.worker_scoring import Columns, MicroBatch, ScoreRequest
from nemo_uecr.stopping import StopRequest

POLICY_CLUSTER = "grpo_policy_cluster"
WORKER_FQN = "nemo_uecr.nemo.ray_worker.UecrMegatronPolicyWorker"
NATIVE_WORKER_FQN = "nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker"
VLLM_WORKER_FQN = "nemo_rl.models.generation.vllm.vllm_worker.VllmGenerationWorker"

#: An evaluation in the place of NeMo-RL's validation: metrics and timings of a generation object at a step.
Evaluate = Callable[[Any, int], tuple[dict[str, float], dict[str, float]]]


class WorkerError(UecrError, RuntimeError):
    """A worker died or did not answer in time; the message names it."""


def check() -> str:
    """Refuse a NeMo-RL that does not fit the calls of `native_calls.yaml`; returns its version."""
    version = str(load("nemo_rl.package_info").__version__)
    check_side("driver", version)
    return version


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
        "_create_advantage_estimator": lambda *args, **kwargs: answering_estimator(estimator()),
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


class ResultEstimator:
    """An estimator that answers as trees after 0.8 propose: its advantages are one field of a result."""

    def __init__(self, estimator: Any, result: Callable[..., Any]) -> None:
        self._estimator, self._result = estimator, result

    def compute_advantage(self, **given: Any) -> Any:
        """The estimator's advantages as NeMo-RL's ``AdvantageResult``."""
        return self._result(advantages=self._estimator.compute_advantage(**given))


def answering_estimator(estimator: Any) -> Any:
    """The estimator, answering in the form that the installed NeMo-RL reads: a tensor, or its ``AdvantageResult``."""
    result = getattr(load("nemo_rl.algorithms.advantage_estimator"), "AdvantageResult", None)
    return estimator if result is None else ResultEstimator(estimator, result)


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
    made = native("setup")(
        master_config=config, tokenizer=tokenizer, dataset=dataset, val_dataset=None, policy_factory=make_policy
    )
    policy, generation, _, _, dataloader, _, _, logger, checkpointer, state, config, *_ = made
    before(config, completed_steps(state))
    native("grpo_train")(
        policy=policy, policy_generation=generation, wrapped_dataloader=dataloader, val_dataloader=None,
        tokenizer=tokenizer, loss_fn=loss, task_to_env=environments, val_task_to_env=None, logger=logger,
        checkpointer=checkpointer, grpo_save_state=state, master_config=config,
    )  # fmt: skip
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
    if order is not None:  # as where nothing is packed
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
            raise WorkerError(f"{method}: worker {name} {_death(error)}") from error
    return [answers[future] for future in futures]


def _death(error: Exception) -> str:
    """How a worker died, in one line.

    Of an actor whose constructor raised, Ray's message is a sentence about a creation task and a traceback, which the
    error ends. On memory the message lists every process of the node.
    """
    message = str(error)
    if "creation task" in message:
        after_frames = message.rpartition('\n  File "')[2].splitlines()[1:]
        cause = next((line for line in after_frames if line and not line.startswith(" ")), first_line(error))
        return f"could not be made: {cause:.300}"
    reason = f"{type(error).__name__}: {first_line(error)}"
    return f"died ({reason:.300}); expected an answer. Look at its log; the usual cause is memory"


def worker_actor(methods: type) -> Any:
    """NeMo-RL's Megatron worker with our methods, as a Ray actor; actors cannot be subclassed, Impl classes can."""
    import ray

    check_side("worker", "in the worker's environment")

    class UecrMegatronPolicyWorker(methods, native("MegatronPolicyWorkerImpl")):  # type: ignore[misc]
        pass

    environment = native("get_runtime_env_for_policy_worker")("megatron_policy_worker")
    return ray.remote(runtime_env=environment)(UecrMegatronPolicyWorker)


class RawLogits:
    """Hands each micro-batch's raw logits to a function; mixed in before NeMo-RL's `LogprobsPostProcessor`."""

    columns: Columns

    def __call__(
        self, data_dict: Any, input_ids: Any, cu_seqlens_padded: Any, original_seq_length: int | None = None,
        input_is_next_token_logprobs: bool = False,
    ) -> Any:  # fmt: skip
        """What NeMo-RL's forward calls with the logits of a micro-batch."""
        if input_is_next_token_logprobs:
            raise UpstreamError("NeMo-RL's forward gives no logits: input_is_next_token_logprobs; expected False")

        def finish(logits: Any) -> Any:
            ids, lengths = (data_dict[name].to(logits.device) for name in ("input_ids", "input_lengths"))
            return logits.new_zeros(()), self.columns(logits, MicroBatch(ids, lengths, cu_seqlens_padded))

        return finish


def score_forward(worker: Any, data: Any, columns: Columns) -> list[Any]:
    """Run a worker's model over its micro-batches and hand each one's raw logits to ``columns``.

    Returns what ``columns`` answered, on the last pipeline stage alone. The post-processor derives from NeMo-RL's own,
    because its forward dispatches on the class. Without sampling parameters the forward neither divides nor filters.
    """
    kind = type("RawLogits", (RawLogits, native("LogprobsPostProcessor")), {})
    process = kind(worker.cfg, sampling_params=None)
    process.columns = columns
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
        post_processing_fn=process,
        forward_only=True,
        defer_fp32_logits=worker.defer_fp32_logits,
        sampling_params=None,
        straggler_timer=timer,
    )
    return answers


def temperature_only(temperature: float) -> Any:
    """NeMo-RL's sampling parameters with this temperature and no filter."""
    return native("TrainingSamplingParams")(top_k=None, top_p=1.0, temperature=temperature)
