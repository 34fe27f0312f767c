"""The verifier's Ray actor; imported only where Ray is."""

from __future__ import annotations

from typing import Any

import ray

from nemo_uecr.nemo.verifier_environment import VerifierEnvironmentImpl

VerifierEnvironment: Any = ray.remote(max_restarts=-1, max_task_retries=-1)(VerifierEnvironmentImpl)
