"""The Ray actor that Megatron workers run as; loaded only inside the workers' own environment."""

from __future__ import annotations

from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.worker_methods import WorkerMethods

UecrMegatronPolicyWorker = upstream.worker_actor(WorkerMethods)
