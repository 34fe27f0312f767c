"""What stands in NeMo-RL's places, and that its own comes back."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

from nemo_uecr.nemo import substitutes
from nemo_uecr.nemo.replacing import replacing, restoring
from nemo_uecr.stopping import StopRequest


#: The names of the training loop's module that can be replaced.
class Checker:
    """NeMo-RL's time keeper; the time is never over."""

    def check_save(self) -> bool:
        return False


def test_only_the_policys_cluster_is_shared_by_more() -> None:
    def native(**given: Any) -> Any:
        return given

    make = substitutes.shared_cluster(native, name="policy", worker_groups=3)
    assert make(name="policy", max_colocated_worker_groups=2) == {"name": "policy", "max_colocated_worker_groups": 3}
    assert make(name="other", max_colocated_worker_groups=1) == {"name": "other", "max_colocated_worker_groups": 1}


def test_the_time_is_over_once_the_run_is_asked_to_stop() -> None:
    stop = StopRequest()
    checker = substitutes.stopping_timeout(Checker, stop)()
    assert not checker.check_save()
    stop.ask("SIGTERM")
    assert checker.check_save()


def test_our_evaluation_hears_generation_and_step() -> None:
    heard: list[Any] = []
    validate = substitutes.validation(lambda generation, step: (heard.append((generation, step)) or {"a": 1.0}, {}))
    assert validate("engines", "data", "tokenizer", step=4, logger=None) == ({"a": 1.0}, {})
    assert heard == [("engines", 4)]


def test_registries_and_names_come_back_after_an_error() -> None:
    registry, module = {"theirs": 1}, SimpleNamespace(name="theirs")
    with contextlib.suppress(KeyError), restoring(registry), replacing(module, {"name": "ours"}):  # type: ignore[arg-type]
        registry["ours"] = 2
        raise KeyError
    assert (registry, module.name) == ({"theirs": 1}, "theirs")
