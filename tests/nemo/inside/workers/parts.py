"""What runs in processes of its own: NeMo-RL's real Megatron worker with our methods, alone and in its loop."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import torch

from tests.nemo.inside.workers import world

#: What every worker of a run must have of its driver's environment.
WORKERS_VARIABLES = (
    "WORKERS_ON_CPU", "NRL_MEGATRON_CHECKPOINT_DIR", "TORCHDYNAMO_DISABLE", "HF_HUB_OFFLINE", "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_NO_USAGE_STATS",
)  # fmt: skip


def make_worker(section: dict[str, Any], *, teacher: bool, reference: bool) -> Any:
    """The class that Ray would make an actor of, on the only rank of this process."""
    import numpy as np
    import ray

    from nemo_uecr.nemo import ray_worker  # isort: skip - before Megatron, for which it puts the stand-ins in place
    from megatron.core.num_microbatches_calculator import destroy_num_microbatches_calculator
    from megatron.core.rerun_state_machine import destroy_rerun_state_machine
    from nemo_rl.distributed.named_sharding import NamedSharding
    from transformers import AutoTokenizer

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    ray.get_gpu_ids = lambda: [0]
    destroy_num_microbatches_calculator()  # of another worker in this process
    destroy_rerun_state_machine()
    axes = ["pipeline_parallel", "data_parallel", "context_parallel", "tensor_parallel"]
    return ray_worker.UecrMegatronPolicyWorker.__ray_metadata__.modified_class(
        section, tokenizer=AutoTokenizer.from_pretrained(section["model_name"]), init_optimizer=not teacher,
        init_reference_model=reference,
        worker_sharding_annotations=NamedSharding(layout=np.arange(1).reshape(1, 1, 1, 1), names=axes),
    )  # fmt: skip


def packed(data: Any, section: dict[str, Any], *, tokens: str) -> tuple[Any, list[int]]:
    """A batch as NeMo-RL's policy packs it for its only worker, and the order of its rows."""
    packing = section["sequence_packing"]
    rows = data.size if tokens == "train_mb_tokens" else None
    arguments = {
        "algorithm": packing["algorithm"], "input_key": "input_ids", "input_lengths_key": "input_lengths",
        "sequence_length_pad_multiple": section["make_sequence_length_divisible_by"],
        "max_tokens_per_microbatch": packing[tokens],
    }  # fmt: skip
    shards, order = data.shard_by_batch_size(1, batch_size=rows, sequence_packing_args=arguments)
    return shards[0], order


def scores(worker: Any, data: Any, section: dict[str, Any], request: Any) -> dict[str, Any]:
    from nemo_uecr.nemo.score_checks import verified

    shard, order = packed(data, section, tokens="logprob_mb_tokens")
    answer = type(data).from_batches([worker.score_tokens(data=shard, request=request)])
    answer.reorder_data(order)
    return dict(verified(answer, request, data, scorer="worker"))


def natively(method: Any, column: str, data: Any, section: dict[str, Any]) -> Any:
    """A column of NeMo-RL's own scoring of the batch."""
    shard, order = packed(data, section, tokens="logprob_mb_tokens")
    answer = type(data).from_batches([method(data=shard)])
    answer.reorder_data(order)
    return answer[column].float()


def cycle(worker: Any) -> None:
    """Off the GPU, as before vLLM wakes, and back, as for scoring."""
    worker.offload_before_refit()
    worker.offload_after_refit()
    worker.prepare_for_lp_inference()


def student(folder: Path, *, mixture: bool) -> dict[str, Any]:
    """Converted and loaded, exported, scored, trained for two steps, offloaded and scored again."""
    vocabulary = world.make_models(folder, mixture=mixture)
    config = world.run_config(folder, vocabulary)
    section, request = world.policy_section(config, teacher=False), world.request(config, teacher=False)
    worker = make_worker(section, teacher=False, reference=True)
    found: dict[str, Any] = {"wrapper": type(worker.model).__name__, "optimizer": type(worker.optimizer).__name__}
    worker.prepare_refit_info()
    found["export"] = {name: value.clone() for name, value in worker._iter_params_with_optional_kv_scales()}
    data = world.drawn(vocabulary)
    cycle(worker)
    found["first"] = first = scores(worker, data, section, request)
    found["native"] = natively(worker.get_logprobs, "logprobs", data, section)
    found["reference"] = natively(worker.get_reference_policy_logprobs, "reference_logprobs", data, section)
    found["errors"] = world.mean_errors(first, data, folder / "student", request.columns, world.scored_tokens(data))
    worker.prepare_for_training()
    batch = world.training_batch(data, first["rollout_logp"], world.drawn_advantages(data))
    shard, _ = packed(batch, section, tokens="train_mb_tokens")
    loss, found["updates"] = world.loss(config), []
    for _ in range(2):
        result = worker.train(shard, loss, gbs=data.size, mbs=1)
        found["updates"].append({**result["all_mb_metrics"], "grad_norm": float(result["grad_norm"].reshape(-1)[0])})
    cycle(worker)
    found["moved"] = {
        name: not torch.equal(value, found["export"][name])
        for name, value in worker._iter_params_with_optional_kv_scales()
    }
    found["trained"] = scores(worker, data, section, request)
    cycle(worker)
    found["again"] = scores(worker, data, section, request)
    worker.assert_room(share=0.5, waking=True)
    return found | {"data": dict(data)}


def adapted(folder: Path) -> dict[str, int]:
    """Of a student with NeMo-RL's LoRA: trained parameters, and bytes of the buffers of their gradients."""
    layers = "policy.megatron_cfg"
    changes = [
        f"{layers}.peft.enabled=true", f"{layers}.peft.dim=4", f"{layers}.peft.alpha=8",
        f"{layers}.distributed_data_parallel_config.grad_reduce_in_fp32=false",
    ]  # fmt: skip
    config = world.run_config(folder, world.make_models(folder), *changes)
    worker = make_worker(world.policy_section(config, teacher=False), teacher=False, reference=False)
    trained = [parameter.numel() for parameter in worker.model.parameters() if parameter.requires_grad]
    return {"trained": sum(trained), "gradients": sum(buffer.grad_data.nbytes for buffer in worker.model.buffers)}


def replayed(folder: Path) -> dict[str, Any]:
    """A student that takes other experts than its router would: scored, trained from a ratio of 1, and without them."""
    vocabulary = world.make_models(folder, mixture=True)
    config = world.run_config(folder, vocabulary, "++policy.router_replay={enabled: true}")
    section, request = world.policy_section(config, teacher=False), world.request(config, teacher=False)
    worker = make_worker(section, teacher=False, reference=False)
    data = world.drawn(vocabulary)
    routed = type(data)({**data, "routed_experts": world.drawn_routes(data)})
    cycle(worker)
    found = {"scores": scores(worker, routed, section, request)}
    found["native"] = natively(worker.get_logprobs, "logprobs", routed, section)
    worker.cfg["router_replay"]["enabled"] = False
    found["own choice"] = scores(worker, data, section, request)
    worker.cfg["router_replay"]["enabled"] = True
    worker.prepare_for_training()
    batch = world.training_batch(routed, found["scores"]["rollout_logp"], world.drawn_advantages(data))
    shard, _ = packed(batch, section, tokens="train_mb_tokens")
    result = worker.train(shard, world.loss(config), gbs=data.size, mbs=1)
    return found | {"update": result["all_mb_metrics"], "data": dict(data)}


def teacher(folder: Path, *, mixture: bool) -> dict[str, Any]:
    """Frozen and offloaded, brought back and scored, twice."""
    from nemo_uecr.nemo.megatron_worker import is_wrapped

    vocabulary = world.make_models(folder, mixture=mixture)
    config = world.run_config(folder, vocabulary)
    section, request = world.policy_section(config, teacher=True), world.request(config, teacher=True)
    worker = make_worker(section, teacher=True, reference=False)
    found: dict[str, Any] = {"wrapped": is_wrapped(worker.model), "optimizer": worker.optimizer, "rounds": []}
    worker.offload_after_refit()
    worker.assert_offloaded(limit_mebi=64)
    data = world.drawn(vocabulary)
    for _ in range(2):
        worker.prepare_for_lp_inference()
        found["rounds"].append(scores(worker, data, section, request))
        worker.offload_after_refit()
    chosen = world.scored_tokens(data)
    found["errors"] = world.mean_errors(found["rounds"][0], data, folder / "teacher", request.columns, chosen)
    return found


def both(folder: Path, mixture: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The teacher, then the student, in one process: imports take longer than either."""
    made = folder / "t", folder / "s"
    for each in made:
        each.mkdir()
    return teacher(made[0], mixture=mixture), student(made[1], mixture=mixture)


def run(folder: Path, gpus: int, changes: list[str], vllm_python: str = "", mixture: bool = False) -> dict[str, Any]:
    """A whole run over Ray: NeMo-RL's set-up, cluster, worker groups, refit and loop, with a colocated teacher.

    With ``vllm_python``, of an environment with vLLM, NeMo-RL's own workers generate. Returns the numbers that the loop
    logged, the saved batches, and how often the generator was refitted; what it had at the end is saved beside the run.
    """
    import ray

    from tests.nemo.inside.workers.generation import CpuGeneration
    from tests.nemo.local_ray import local_ray

    attempt = len(list(folder.glob("generator-*"))) + 1  # a second one continues the first
    vocabulary = world.make_models(folder, mixture=mixture) if attempt == 1 else world.VOCABULARY
    config = world.run_config(folder, vocabulary, f"cluster.gpus_per_node={gpus}", *changes)
    os.environ["PYTHONPATH"] = os.environ["WORKERS_PATH"]
    variables = {name: os.environ[name] for name in WORKERS_VARIABLES}
    with local_ray(variables, num_cpus=3 * gpus + 2, num_gpus=gpus):
        # Another Ray may run on this machine; parts of NeMo-RL look for "the" cluster.
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
        world.train(config, generation=None if vllm_python else CpuGeneration, vllm_python=vllm_python)
        made: Any = CpuGeneration.made
        if made is not None:
            ray.get(made.engine.save.remote(folder / f"generator-{attempt}"))
    return {"refits": made.refits if made else None, **world.left_behind(folder / "run")}


def converted(step: Path, out: Path) -> None:
    """`nemo-uecr convert` of a step that a run saved, by the workers' megatron-core and Megatron-Bridge."""
    import sys

    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401 - before a stand-in, which they would ask

    from nemo_uecr.__main__ import main
    from tests.nemo.inside.workers import stand_ins

    sys.meta_path.append(stand_ins.Empty(("triton",)))  # kernels that a conversion does not run
    sys.argv = ["nemo-uecr", "convert", str(step), "--to", str(out)]
    main()


def taught(folder: Path, step: Path, model: Path) -> dict[str, tuple[float, float]]:
    """A teacher that is a step which a run saved of its student: its errors by ``model``, the same in transformers."""
    teacher = [f"uecr.teacher.model_name={folder / 'student'}", f"++uecr.teacher.megatron_checkpoint={step}"]
    config = world.run_config(folder, world.VOCABULARY, *teacher)
    section, request = world.policy_section(config, teacher=True), world.request(config, teacher=True)
    worker = make_worker(section, teacher=True, reference=False)
    cycle(worker)
    data = world.drawn(world.VOCABULARY)
    answer = scores(worker, data, section, request)
    return world.mean_errors(answer, data, model, request.columns, world.scored_tokens(data))


def scored_again(folder: Path, batch: Path, out: Path) -> None:
    """A saved batch by the run's teacher, alone on two GPUs: what `nemo-uecr teacher score` does."""
    import ray

    from nemo_uecr.nemo import plug_in
    from nemo_uecr.responses.table import read_responses
    from tests.nemo.inside.workers import stand_ins
    from tests.nemo.local_ray import local_ray

    values = world.run_config(folder, world.VOCABULARY, "cluster.gpus_per_node=2").values
    stand_ins.without_fusions(values["policy"])
    os.environ["PYTHONPATH"] = os.environ["WORKERS_PATH"]
    with local_ray({name: os.environ[name] for name in WORKERS_VARIABLES}, num_cpus=8, num_gpus=2):
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
        world.use_this_ray()
        plug_in.score_saved_batch(values, read_responses(batch), out)


def restarted(folder: Path) -> dict[str, Any]:
    """A student that begins with what another saved after a step: its scores, those of the other, and an update."""
    vocabulary = world.make_models(folder)
    config = world.run_config(folder, vocabulary)
    section, request = world.policy_section(config, teacher=False), world.request(config, teacher=False)
    data = world.drawn(vocabulary)
    found: dict[str, Any] = {"data": dict(data)}
    for name in ("saved", "begun"):
        worker = make_worker(section, teacher=False, reference=False)
        if name == "saved":
            found["updates"] = [_update(worker, data, section, config, request)]
            worker.save_checkpoint(str(folder / "weights"))
            section["pretrained_checkpoint"] = {"path": str(folder / "weights"), "format": "megatron_bridge"}
        cycle(worker)
        found[name] = scores(worker, data, section, request)
    found["updates"].append(_update(worker, data, section, config, request))
    return found


def _update(worker: Any, data: Any, section: dict[str, Any], config: Any, request: Any) -> dict[str, Any]:
    """A worker's metrics of an optimizer step on the batch, which it has scored before."""
    cycle(worker)
    logp = scores(worker, data, section, request)["rollout_logp"]
    worker.prepare_for_training()
    shard, _ = packed(world.training_batch(data, logp, world.drawn_advantages(data)), section, tokens="train_mb_tokens")
    found: dict[str, Any] = worker.train(shard, world.loss(config), gbs=data.size, mbs=1)["all_mb_metrics"]
    return found
