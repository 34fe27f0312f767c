"""What asynchronous training will need: UECR through NeMo-RL's own, unmodified SingleController.

It selects complete prompt groups as they come, so a method must give a group the same advantages alone as in its batch.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.core.functions import compute
from nemo_uecr.core.record import ScoredBatch
from tests.nemo.inside.loop import GROUP, PROMPTS, config_of

STEPS = 2
IN_THE_ACTOR = """
import sys, typing, typing_extensions, torch
if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict
torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *names: 0
"""


@pytest.fixture(scope="module")
def client(ray_cluster: None) -> Any:
    """NeMo-RL's data plane over TransferQueue, of which the package on PyPI is one."""
    if importlib.util.find_spec("nemo_rl.algorithms.single_controller") is None:
        pytest.skip("this NeMo-RL has no SingleController")
    pytest.importorskip("transfer_queue")
    import ray
    from nemo_rl.data_plane import build_data_plane_client
    from nemo_rl.data_plane.adapters import transfer_queue as adapter

    from tests.nemo.inside import loop, single_world, tiny_world

    for module in (loop, single_world, tiny_world):  # in the actor, `tests` is NeMo-RL's
        ray.cloudpickle.register_pickle_by_value(module)
    adapter._TQ_RUNTIME_ENV_PATCHED = True  # it would install the package again for each of its actors
    return build_data_plane_client(
        {
            "enabled": True, "impl": "transfer_queue", "backend": "simple", "storage_capacity": 4096,
            "num_storage_units": 1, "claim_meta_poll_interval_s": 0.01, "global_segment_size": 0,
            "local_buffer_size": 0,
        },
        bootstrap=True,
    )  # fmt: skip


def run_actor(method: str, client: Any, folder: Path) -> list[Any]:
    """Run the actor to its end; each step's chunks of groups with their advantages, and its loss."""
    import ray
    from nemo_rl.algorithms.metric_utils import SetupTimingMetrics
    from nemo_rl.algorithms.single_controller import SingleControllerActor
    from nemo_rl.data_plane.schema import DP_TRAIN_FIELDS

    from tests.nemo.inside.single_world import PARTITION, actor_arguments

    client.register_partition(
        partition_id=PARTITION, fields=[*DP_TRAIN_FIELDS, "prompt_ids_for_adv", "total_reward"], num_samples=256,
        consumer_tasks=["prev_lp", "ref_lp", "train"], grpo_group_size=GROUP,
    )  # fmt: skip
    (folder / "sitecustomize.py").write_text(IN_THE_ACTOR)
    paths = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    arguments = actor_arguments(config_of(method, "loss.reference_kl=0"), client, steps=STEPS, folder=str(folder))
    actor = SingleControllerActor.options(runtime_env={"env_vars": {"PYTHONPATH": paths}}).remote(
        *arguments, SetupTimingMetrics()
    )
    try:
        ray.get(actor.run.remote(), timeout=120)
    finally:
        ray.kill(actor)
    steps: list[Any] = torch.load(folder / "steps", weights_only=False)
    return steps


def joined(chunks: list[Any]) -> tuple[ScoredBatch, torch.Tensor]:
    """The chunks of a step as one batch, their groups numbered on, and the advantages that they got."""
    width = max(advantage.shape[1] for _, advantage in chunks)

    def rows(tensors: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([torch.nn.functional.pad(each, (0, width - each.shape[1])) for each in tensors])

    batches = [batch for batch, _ in chunks]
    return ScoredBatch(
        task_reward_B=torch.cat([batch.task_reward_B for batch in batches]),
        group_B=torch.cat([batch.group_B + 100 * place for place, batch in enumerate(batches)]),
        **{
            name: rows([getattr(batch, name) for batch in batches])
            for name in ("mask_BT", "old_logp_BT", "teacher_logp_BT", "teacher_entropy_BT")
        },
    ), rows([advantage for _, advantage in chunks])


def test_group_by_group_is_the_whole_batch(client: Any, tmp_path: Path) -> None:
    steps = run_actor("uecr", client, tmp_path)
    assert len(steps) == STEPS
    for chunks, _ in steps:
        batch, advantage_BT = joined(chunks)
        assert batch.responses == PROMPTS * GROUP
        assert torch.equal(compute(config_of("uecr").method, batch).advantage_BT, advantage_BT)
    # On policy the ratio is 1: the first loss is the token mean of -A.
    chunks, loss = steps[0]
    batch, advantage_BT = joined(chunks)
    assert loss == pytest.approx(-float(advantage_BT[batch.mask_BT].mean()), abs=1e-6)


def test_a_second_surrogate_is_refused_not_cut(client: Any, tmp_path: Path) -> None:
    """Its data plane hands a fixed list of columns on; without ours half of the objective would be gone."""
    with pytest.raises(Exception, match="without the column uecr_opd_advantages"):
        run_actor("grpo_plus_opd", client, tmp_path)
