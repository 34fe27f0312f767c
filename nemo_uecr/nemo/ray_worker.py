"""The Ray actor that Megatron workers run as; loaded only inside the workers' own environment."""

from __future__ import annotations

from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.megatron_worker import WorkerMethods

UecrMegatronPolicyWorker = upstream.worker_actor(WorkerMethods)
