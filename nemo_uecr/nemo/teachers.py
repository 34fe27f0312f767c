"""The teacher over Ray workers: on the student's GPUs only while it scores, or on GPUs of its own."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.dispatch import call_all, score_on_workers
from nemo_uecr.nemo.request import ScoreRequest


@dataclass(frozen=True)
class TeacherPlan:
    """How a teacher is built from the student's configuration.

    Attributes:
        changes: values by dotted key that replace the student's.
        removed: dotted keys of the student's that a teacher must not inherit.
        timeout_s: longest wait for an answer.
        dedicated: whether it has GPUs of its own and stays on them.
        offload_limit_mebi: memory that may stay on the GPU after an offload.
    """

    changes: Mapping[str, Any]
    removed: tuple[str, ...]
    timeout_s: float
    dedicated: bool
    offload_limit_mebi: int

    def configuration(self, student: Mapping[str, Any]) -> dict[str, Any]:
        """The teacher's policy configuration: the student's with the changes."""
        config = copy.deepcopy(dict(student))
        for name in self.removed:
            *path, last = name.split(".")
            section = _section(config, path)
            section.pop(last, None)
        for name, value in self.changes.items():
            *path, last = name.split(".")
            _section(config, path)[last] = value
        return config


def _section(config: dict[str, Any], path: list[str]) -> dict[str, Any]:
    for part in path:
        config = config.setdefault(part, {})
    return config


class RayTeacher:
    """A frozen Megatron policy without optimizer, gradient buffers or reference model."""

    def __init__(self, plan: TeacherPlan, *, student_config: Mapping[str, Any], cluster: Any, tokenizer: Any) -> None:
        """Build the workers, and take a colocated teacher off the GPU at once.

        Raises:
            WorkerError: the offload does not give the memory back.
        """
        self._plan = plan
        #: Whether the next offload is measured: the one after the start, and the one after the first scoring.
        self._measure = True
        self._scored = False
        self._policy = upstream.policy_class()(
            cluster=cluster,
            config=plan.configuration(student_config),
            tokenizer=tokenizer,
            name_prefix="teacher",
            init_optimizer=False,
            init_reference_model=False,
            weights_path=None,
            optimizer_path=None,
            worker_extension_cls_fqn=upstream.WORKER_FQN,
        )
        self.offload()

    @property
    def data_parallel_size(self) -> int:
        """Into how many equal parts it cuts a batch."""
        return int(self._policy.data_parallel_size)

    def load(self) -> None:
        """Bring the weights to the GPU."""
        if not self._plan.dedicated:
            call_all(self._policy, "prepare_for_lp_inference", seconds=self._plan.timeout_s)

    def offload(self) -> None:
        """Give the GPU's memory back; a dedicated teacher stays.

        Raises:
            WorkerError: an offload that is measured does not give it back, or a worker is silent.
        """
        plan = self._plan
        if plan.dedicated:
            return
        call_all(self._policy, "offload_after_refit", seconds=plan.timeout_s)
        if self._measure:
            call_all(self._policy, "assert_offloaded", seconds=plan.timeout_s, limit_mebi=plan.offload_limit_mebi)
            self._measure = False

    def score_tokens(self, data: Any, request: ScoreRequest) -> Any:
        """Columns of the request."""
        self._measure, self._scored = self._measure or not self._scored, True
        return score_on_workers(self._policy, data, request, seconds=self._plan.timeout_s)

    def shutdown(self) -> bool:
        """End the workers."""
        return bool(self._policy.shutdown())


def teacher_cluster(gpus_of_nodes: list[int]) -> Any:
    """GPUs for a teacher alone: how many on each of its nodes, the same everywhere."""
    return upstream.cluster_class()(
        bundle_ct_per_node_list=gpus_of_nodes,
        use_gpus=True,
        max_colocated_worker_groups=1,
        num_gpus_per_node=gpus_of_nodes[0],
        name="uecr_teacher_cluster",
    )


def scoring_policy_class(*, timeout_s: float) -> Any:
    """NeMo-RL's policy with a ``score_tokens`` over its workers and a look at the GPU before vLLM wakes."""

    class ScoringPolicy(upstream.policy_class()):  # type: ignore[misc]
        def score_tokens(self, data: Any, request: ScoreRequest) -> Any:
            """Columns of the request."""
            return score_on_workers(self, data, request, seconds=timeout_s)

        def offload_before_refit(self) -> None:
            """NeMo-RL's own, the last thing before vLLM wakes; an error where the GPU has too little room for it."""
            super().offload_before_refit()
            share = self.cfg["generation"]["vllm_cfg"]["gpu_memory_utilization"]
            call_all(self, "assert_room", seconds=timeout_s, share=share)

    return ScoringPolicy
