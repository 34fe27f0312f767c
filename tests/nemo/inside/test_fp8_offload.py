"""NeMo-RL's own offload of a worker, told by our configuration to forget the FP8 copies of the weights.

Transformer Engine does not run without a GPU: a stand-in keeps an FP8 copy of its weight as its modules do, in the
dictionary `_fp8_workspaces`. NeMo-RL's worker does not import without Transformer Engine either, so the methods that
offload are taken out of its source.
"""

from __future__ import annotations

import ast
import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.nemo.recipe import section_of, teacher_policy
from tests.nemo.made_recipe import made
from tests.nemo.source import SOURCE

METHODS = ("offload_after_refit", "offload_before_refit", "_clear_fp8_caches")


class Cached(torch.nn.Linear):
    """Keeps what its forward made of the weight, as Transformer Engine does when it is told of micro-batches."""

    def __init__(self) -> None:
        super().__init__(4, 4, bias=False)
        self._fp8_workspaces: dict[str, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        narrow = self._fp8_workspaces.setdefault("weight", self.weight.detach().to(torch.float8_e4m3fn))
        return x @ narrow.to(x.dtype).T


def offloading_methods() -> dict[str, Any]:
    """NeMo-RL's own, by name."""
    file = Path(str(SOURCE), "nemo_rl/models/policy/workers/megatron_policy_worker.py")
    found: Any = [node for node in ast.walk(ast.parse(file.read_text())) if getattr(node, "name", None) in METHODS]
    for node in found:
        node.decorator_list = []  # timing
    names: dict[str, Any] = {"torch": torch, "gc": gc}
    exec(compile(ast.Module(found, []), str(file), "exec"), names)
    return {name: names[name] for name in METHODS}


@pytest.mark.parametrize("fp8", [True, False])
def test_no_fp8_copy_outlives_the_offload(fp8: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given = made(uecr__teacher__megatron_cfg={"fp8_cfg": {"enabled": fp8}})
    teacher = teacher_policy(section_of(given).active_teachers["teacher"], given["policy"], 8)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    kind = type("Worker", (), offloading_methods() | {"finalize_async_save": lambda self: None, "rank": 0})
    worker: Any = kind()
    worker.cfg, worker.fp8_cfg = teacher, teacher["megatron_cfg"]["fp8_cfg"]
    worker.model, worker.move_model = Cached(), lambda model, *given, **named: model
    worker.model(torch.ones(1, 4))
    assert worker.model._fp8_workspaces
    worker.offload_after_refit()
    assert bool(worker.model._fp8_workspaces) is not fp8
