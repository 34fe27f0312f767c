"""The only file that names NeMo-RL's internals: how they are called, checked, and what is put in their place.

`native_calls.yaml` lists every name that is used here with the call that is made. NeMo-RL 0.7, 0.8 and its main branch
fit; calls decide, not a version number. NeMo-RL is imported inside functions, so that this module loads without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nemo_uecr.errors import UecrError, first_line
from nemo_uecr.files import read_object
from nemo_uecr.nemo.native_calls import UpstreamError as UpstreamError
from nemo_uecr.nemo.native_calls import check_side, load
from nemo_uecr.nemo.native_calls import native as native
from nemo_uecr.nemo.recipe import set_at
from nemo_uecr.stopping import StopRequest, seconds_left

if TYPE_CHECKING:  # it imports torch
    from nemo_uecr.nemo.worker_scoring import Columns, ScoreRequest

#: Clusters that hold the student: with vLLM on the same GPUs, and without.
STUDENT_CLUSTERS = "grpo_policy_cluster", "grpo_train_cluster"
WORKER_FQN = "nemo_uecr.nemo.ray_worker.UecrMegatronPolicyWorker"
NATIVE_WORKER_FQN = "nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker"
VLLM_WORKER_FQN = "nemo_rl.models.generation.vllm.vllm_worker.VllmGenerationWorker"

#: The name of our environment's actor.
ENVIRONMENT_ACTOR = "uecr_rewards"
#: The key of what a method carries over, in the loop's state.
METHOD_STATE = "uecr_method_state"
#: Places in what NeMo-RL's `setup` returns.
LOADER, LOSS, LOGGER, STATE, CONFIG = 4, 6, 7, 9, 10
#: Seconds before the end of the job by which the checkpoint must have begun.
SAVING_S = 300


#: Seconds between two looks at the asynchronous loop and its collector, and looks after which a loop that waits is
#: over: for a collector that stands still, and for one that has not begun.
WATCH_S, QUIET_LOOKS, FIRST_LOOKS = 10.0, 3, 30

log = logging.getLogger(__name__)


class WorkerError(UecrError, RuntimeError):
    """A worker died or did not answer in time; the message names it."""


def check() -> str:
    """Refuse a NeMo-RL that does not fit the calls of `native_calls.yaml`; returns its version."""
    version = str(load("nemo_rl.package_info").__version__)
    check_side("driver", version)
    return version


def importers(function: Any) -> list[str]:
    """Modules outside NeMo-RL that hold a function of it by any name."""
    held = ((name, module) for name, module in [*sys.modules.items()] if name.partition(".")[0] != "nemo_rl")
    return [name for name, module in held if any(value is function for value in [*vars(module).values()])]


@contextlib.contextmanager
def substituted(ours: Mapping[str, Any]) -> Iterator[None]:
    """Put ours in the places of these names of NeMo-RL's GRPO module, and its own back on leaving."""
    grpo = load("nemo_rl.algorithms.grpo")
    theirs = {name: getattr(grpo, name) for name in ours}
    vars(grpo).update(ours)
    try:
        yield
    finally:
        vars(grpo).update(theirs)


def substitutions(
    *,
    estimator: Callable[[], Any],
    more_worker_groups: int,
    stop: StopRequest,
    timeouts: list[Any],
) -> contextlib.AbstractContextManager[None]:
    """Our estimator in the place of NeMo-RL's, a wider cluster, and a time-out that a stop sets.

    ``more_worker_groups`` share each GPU of the student's cluster beside NeMo-RL's own. The time-out of the loop is
    appended to ``timeouts``: it says whether it has ended the loop.
    """
    grpo = load("nemo_rl.algorithms.grpo")
    native_cluster, native_checker = grpo.RayVirtualCluster, grpo.TimeoutChecker

    def make_cluster(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("name") in STUDENT_CLUSTERS:
            kwargs["max_colocated_worker_groups"] += more_worker_groups
        return native_cluster(*args, **kwargs)

    def make_checker(*args: Any, **kwargs: Any) -> Any:
        """NeMo-RL's time-out, in seconds of a clock that begins now; a stop brings it forward to now."""
        checker = native_checker(*args, **kwargs)
        left = seconds_left()
        if left is not None and left - SAVING_S < checker.last_save_time:
            checker.last_save_time = max(0.0, left - SAVING_S)
            log.info("the job ends in %.0f s; the run saves and ends within %.0f s", left, checker.last_save_time)
        stop.then(lambda: setattr(checker, "last_save_time", 0.0))
        timeouts.append(checker)
        return checker

    return substituted(
        {
            "_create_advantage_estimator": lambda *args, **kwargs: answering_estimator(estimator()),
            "RayVirtualCluster": make_cluster,
            "TimeoutChecker": make_checker,
        }
    )


class Observed(str):
    """The text of an observation with its token ids, which NeMo-RL would make of the text alone."""

    ids: Sequence[int] = ()


class ObservingTokenizer:
    """NeMo-RL's tokenizer, which takes the ids that an observation has."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: Any, **given: Any) -> Any:
        """Token ids of a text."""
        if not isinstance(text, Observed):
            return self._tokenizer(text, **given)
        import torch

        return SimpleNamespace(input_ids=torch.tensor([list(text.ids)], dtype=torch.long))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


#: The key of a turn's facts in what our environment is told, and of the rows that a limit cut off in a turn's batch.
TURN, CUT = "uecr_turn", "uecr_cut"


@contextlib.contextmanager
def taking_turns(*, room: int, ours: bool) -> Iterator[None]:
    """A turn that is cut off ends its episode; our environment is told of turns what NeMo-RL keeps to itself.

    ``room`` are the tokens that prompt and response have together. Where the environment is ``ours``, its observations
    have their token ids.
    """
    rollouts = load("nemo_rl.experience.rollouts")
    generate, rewards, rollout = (
        rollouts.generate_responses, rollouts.calculate_rewards, load("nemo_rl.algorithms.grpo").run_multi_turn_rollout
    )  # fmt: skip

    def generate_responses(*args: Any, **given: Any) -> Any:
        batch, ids, metrics = generate(*args, **given)
        batch[CUT] = metrics.get("_response_truncated")
        return batch, ids, metrics

    def calculate_rewards(batch: Any, task_to_env: Any) -> Any:
        cut_B = batch.pop(CUT, None)
        if ours:
            batch["extra_env_info"] = [
                about | {TURN: _turn(log, room) | {"cut": cut_B is not None and bool(cut_B[row])}}
                for row, (about, log) in enumerate(zip(batch["extra_env_info"], batch["message_log"], strict=True))
            ]
        found = rewards(batch, task_to_env)
        if ours:
            found = found._replace(observations=[_observed(each) for each in found.observations])
        if cut_B is None:
            return found
        return found._replace(terminateds=found.terminateds.bool() | cut_B.to(found.terminateds.device).bool())

    def run_multi_turn_rollout(*args: Any, **given: Any) -> Any:
        """Training passes names, validation places."""
        bound = inspect.signature(rollout).bind(*args, **given)
        bound.arguments["tokenizer"] = ObservingTokenizer(bound.arguments["tokenizer"])
        return rollout(*bound.args, **bound.kwargs)

    theirs = {"generate_responses": generate, "calculate_rewards": rewards}
    vars(rollouts).update(generate_responses=generate_responses, calculate_rewards=calculate_rewards)
    try:
        with substituted({"run_multi_turn_rollout": run_multi_turn_rollout} if ours else {}):
            yield
    finally:
        vars(rollouts).update(theirs)


def _turn(log: Sequence[Mapping[str, Any]], room: int) -> dict[str, Any]:
    """The last token of a conversation's last turn, and how many tokens there is room for."""
    return {"last": int(log[-1]["token_ids"][-1]), "left": room - sum(len(turn["token_ids"]) for turn in log)}


def _observed(observation: Mapping[str, Any]) -> Mapping[str, Any]:
    if "token_ids" not in observation:
        return observation
    text = Observed(observation["content"])
    text.ids = observation["token_ids"]
    return {"role": observation["role"], "content": text}


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


def conversion_folder(model: str, overrides: Mapping[str, Any]) -> Path:
    """Where NeMo-RL keeps the Megatron weights that it makes of a model: by its name and ``hf_config_overrides``."""
    name = f"model_{model.replace('/', '_')}" if Path(model).exists() else model
    if overrides:  # as its `_get_hf_config_overrides_hash`, which the workers' environment alone can import
        text = json.dumps(dict(overrides), sort_keys=True, separators=(",", ":"))
        name = f"{name}__hfovr_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return Path(native("get_megatron_checkpoint_dir")()) / name


def start(config: Any) -> Any:
    """Start Ray, load the tokenizer and complete the configuration with it; returns the tokenizer."""
    native("init_ray")()
    tokenizer = native("get_tokenizer")(config.policy["tokenizer"])
    config.policy["generation"] = native("configure_generation_config")(config.policy["generation"], tokenizer)
    return tokenizer


def launch_script() -> Path:
    """NeMo-RL's own launch script of GRPO, in the tree that this Python imports."""
    script = Path(load("nemo_rl").__file__).parents[1] / "examples" / "run_grpo.py"
    if not script.is_file():
        raise UpstreamError(
            f"NeMo-RL's launch script is not at {script}; expected it beside the package, as in its container and its "
            "source tree. Run a script of yours: python -m nemo_uecr.nemo.plug_in SCRIPT --config RECIPE"
        )
    return script


def components() -> dict[str, float]:
    """Metrics of the rewards that our environment, an actor of its own name, has given since the last call."""
    import ray

    return dict(ray.get(ray.get_actor(ENVIRONMENT_ACTOR).components.remote()))


def readers_of_the_step() -> list[str]:
    """Rewards of our environment that ask for the step's number."""
    import ray

    return list(ray.get(ray.get_actor(ENVIRONMENT_ACTOR).readers_of_the_step.remote()))


@contextlib.contextmanager
def printed_errors(context: Any) -> Iterator[list[tuple[int, BaseException]]]:
    """The errors whose traceback is printed within the block, each after so many completed steps.

    0.7's asynchronous loop prints its own and returns; after that of a validation before the first step it goes on.
    """
    found: list[tuple[int, BaseException]] = []
    native = traceback.print_exc

    def print_exc(*args: Any, **given: Any) -> None:
        if error := sys.exc_info()[1]:
            found.append((context.completed_steps, error))
        native(*args, **given)

    traceback.print_exc = print_exc
    try:
        yield found
    finally:
        traceback.print_exc = native


class Recorded:
    """A class of Ray actors, of whose actors the latest is kept."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._given: dict[str, Any] = {}
        self.actor: Any = None

    def options(self, **given: Any) -> Recorded:
        """The class with these options, for the next actor."""
        self._given = given
        return self

    def remote(self, *args: Any, **given: Any) -> Any:
        """A new actor."""
        self.actor = self._kind.options(**self._given).remote(*args, **given)
        return self.actor


@contextlib.contextmanager
def collecting(loop: Any, context: Any) -> Iterator[list[BaseException]]:
    """Watch the actor that fills the buffer of the asynchronous ``loop``: without it 0.7's waits for ever.

    Where it is dead, or stands still with too few responses for the step that the loop waits for, the buffer is ended
    as well, which the loop notices; the list then has the reason.
    """
    utils = load("nemo_rl.algorithms.async_utils")
    names = {"AsyncTrajectoryCollector": Recorded, "ReplayBuffer": Recorded}
    theirs = {name: getattr(utils, name) for name in names}
    ours = {name: kind(theirs[name]) for name, kind in names.items()}
    ended: list[BaseException] = []
    over, own = threading.Event(), threading.get_ident()

    def waits() -> bool:
        """Between two looks at its buffer the loop sleeps; else a function that it calls is at work, on a step, say."""
        return sys._current_frames()[own].f_code is loop.__code__

    watch = threading.Thread(target=_watch_collection, args=(ours, context, waits, ended, over), daemon=True)
    vars(utils).update(ours)
    watch.start()
    try:
        yield ended
    finally:
        over.set()
        watch.join()
        vars(utils).update(theirs)


def _watch_collection(
    actors: Mapping[str, Recorded], context: Any, waits: Callable[[], bool], ended: list[BaseException],
    over: threading.Event,
) -> None:  # fmt: skip
    import ray

    def state(collector: Any) -> tuple[bool, bool]:  # goes to the actor by value, which may have nothing of ours
        """Whether it has begun, and whether it is at work."""
        begun = getattr(collector, "dataloader", None) is not None
        return begun, collector.running or bool(collector._inflight_threads)

    quiet = 0
    while not over.wait(WATCH_S):
        collector, buffer = (actors[name].actor for name in ("AsyncTrajectoryCollector", "ReplayBuffer"))
        if collector is None:
            continue
        try:
            begun, running = ray.get(collector.__ray_call__.remote(state))
            groups = ray.get(buffer.size.remote())
        except ray.exceptions.RayActorError as error:
            if over.is_set() or "ray.kill" in str(error):  # the loop ends them itself, with or without an error
                return
            ended.append(WorkerError(f"the collector of responses {_death(error)}"))
            ray.kill(buffer)
            return
        quiet = quiet + 1 if not running and groups < context.settings.prompts_per_step and waits() else 0
        if quiet >= (QUIET_LOOKS if begun else FIRST_LOOKS):
            of = f"{groups} of the {context.settings.prompts_per_step} groups of step {context.step}"
            why = "the data is exhausted (grpo.max_num_epochs), or its error is in its log"
            how = f"has stopped with {of}: {why}" if begun else "has not begun: its error is in its log"
            ended.append(WorkerError(f"the collector of responses {how}"))
            ray.kill(buffer)
            return


def latest_checkpoint(config: Any) -> Path | None:
    """The checkpoint from which NeMo-RL's set-up continues."""
    found = native("CheckpointManager")(config.checkpointing).get_latest_checkpoint_path()
    return None if found is None else Path(found)


def completed_steps(state: Any, *, asynchronous: bool) -> int:
    """Training steps in the loop's state: a mapping in NeMo-RL 0.7, a dataclass since.

    The asynchronous loop has no epochs, and counts in the synchronous one's steps of the epoch.
    """
    name = "current_step" if asynchronous else "total_steps"
    return int(state[name] if isinstance(state, Mapping) else getattr(state, name))


def without_batches(logger: Any) -> None:
    """Let NeMo-RL's logger write no step's batch as text; what validation writes stays."""
    write = logger.log_batched_dict_as_jsonl

    def log_batched_dict_as_jsonl(to_log: Any, filename: str) -> None:
        if not filename.startswith("train_data_step"):
            write(to_log, filename)

    logger.log_batched_dict_as_jsonl = log_batched_dict_as_jsonl


def keep_method_state(state: Any, values: Mapping[str, float]) -> None:
    """Put what a method carries over into the loop's state, which NeMo-RL writes into each checkpoint as it is."""
    if values:
        set_at(state, METHOD_STATE, dict(values))


def method_state(checkpoint: Path | None) -> dict[str, float]:
    """What the method carried over into a checkpoint."""
    return {} if checkpoint is None else dict(read_object(checkpoint / "training_info.json").get(METHOD_STATE, {}))


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
    if order is not None:  # without packing and dynamic batches, rows keep their order
        answer.reorder_data(order)
    return answer


def row_multiple(policy: Any) -> int:
    """A scoring pass takes rows in this multiple: equal shares of its ranks, and full micro-batches of padded rows."""
    fitted = policy.use_sequence_packing or policy.use_dynamic_batches
    return int(policy.data_parallel_size) * (1 if fitted else int(policy.cfg["logprob_batch_size"]))


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
                "hangs or waits for a partner: look at its log, or raise uecr.timeout_s"
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
        from nemo_uecr.nemo.worker_scoring import MicroBatch

        def finish(logits: Any) -> Any:
            ids, lengths = (data_dict[name].to(logits.device) for name in ("input_ids", "input_lengths"))
            starts = cu_seqlens_padded
            if starts is None:  # without packing, each row begins a whole width after the one before it
                starts = lengths.new_tensor(range(len(ids) + 1)) * ids.shape[1]
            return logits.new_zeros(()), self.columns(logits, MicroBatch(ids, lengths, starts))

        return finish


#: The column of a batch with the experts that generation chose for each token, where the recipe replays them.
ROUTES = "routed_experts"


def score_forward(worker: Any, data: Any, columns: Columns) -> list[Any]:
    """Run a worker's model over its micro-batches and hand each one's raw logits to ``columns``.

    A student whose recipe replays routes takes generation's experts, as NeMo-RL's own scoring and training do.

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
        use_router_replay=bool((worker.cfg.get("router_replay") or {}).get("enabled")),
        router_replay_train=False,
    )
    return answers


def temperature_only(temperature: float) -> Any:
    """NeMo-RL's sampling parameters with this temperature and no filter."""
    return native("TrainingSamplingParams")(top_k=None, top_p=1.0, temperature=temperature)
