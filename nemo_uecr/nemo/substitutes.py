"""What is put in NeMo-RL's places: callables with its parameters and our behaviour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nemo_uecr.nemo.early_end import also_asked
from nemo_uecr.nemo.parts import Evaluate
from nemo_uecr.stopping import StopRequest


def estimator_factory(estimator: Callable[[], Any]) -> Callable[[Any], Any]:
    """Makes our estimator, whichever one the configuration names."""

    def make_estimator(master_config: Any) -> Any:
        return estimator()

    return make_estimator


def shared_cluster(native: Callable[..., Any], *, name: str, worker_groups: int) -> Callable[..., Any]:
    """Makes clusters as before, but the named one with room for that many worker groups on each GPU."""

    def make_cluster(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("name") == name:
            kwargs["max_colocated_worker_groups"] = worker_groups
        return native(*args, **kwargs)

    return make_cluster


def stopping_timeout(native: Callable[..., Any], stop: StopRequest) -> Callable[..., Any]:
    """Makes time keepers whose time is also over once ``stop`` is asked."""

    def make_timeout(*args: Any, **kwargs: Any) -> Any:
        return also_asked(native(*args, **kwargs), stop)

    return make_timeout


def validation(evaluation: Evaluate) -> Callable[..., Any]:
    """Our evaluation, called as the training loop calls its validation."""

    def validate(policy_generation: Any, *unused: Any, step: int, **also_unused: Any) -> Any:
        return evaluation(policy_generation, step)

    return validate
