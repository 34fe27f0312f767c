"""The teacher over Ray workers: on the student's GPUs only while it scores, or on GPUs of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.dispatch import call_all, score_on_workers
from nemo_uecr.nemo.request import ScoreRequest
from nemo_uecr.nemo.translate import teacher_policy


class RayTeacher:
    """A frozen Megatron policy without optimizer, gradient buffers or reference model."""

    def __init__(
        self, config: NemoConfig, *, student: Mapping[str, Any], cluster: Any, tokenizer: Any, stays: bool
    ) -> None:
        """Build the workers, and take a colocated teacher off the GPU at once.

        Args:
            config: the run's.
            student: NeMo-RL's configuration of the student's policy.
            cluster: the GPUs.
            tokenizer: the student's.
            stays: whether the GPUs are its own.

        Raises:
            WorkerError: the offload does not give the memory back.
        """
        self._stays, self._timeout_s = stays, config.scoring.timeout_s
        self._limit_mebi = config.teacher.offload_limit_mebi
        #: Whether the next offload is measured: the one after the start, and the one after the first scoring.
        self._measure = True
        self._scored = False
        self._policy = upstream.policy_class()(
            cluster=cluster,
            config=teacher_policy(config, student),
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
        if not self._stays:
            call_all(self._policy, "prepare_for_lp_inference", seconds=self._timeout_s)

    def offload(self) -> None:
        """Give the GPU's memory back; a dedicated teacher stays.

        Raises:
            WorkerError: an offload that is measured does not give it back, or a worker is silent.
        """
        if self._stays:
            return
        call_all(self._policy, "offload_after_refit", seconds=self._timeout_s)
        if self._measure:
            call_all(self._policy, "assert_offloaded", seconds=self._timeout_s, limit_mebi=self._limit_mebi)
            self._measure = False

    def score_tokens(self, data: Any, request: ScoreRequest) -> Any:
        """Columns of the request."""
        self._measure, self._scored = self._measure or not self._scored, True
        return score_on_workers(self._policy, data, request, seconds=self._timeout_s)

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
