"""At the start of every Python of these tests, Ray's workers included; on `PYTHONPATH`."""

import importlib.abc
import importlib.machinery
import os
import sys
import types
import typing
from pathlib import Path

import typing_extensions

# NeMo-RL asks for Python 3.13 and megatron-core 0.19 for 3.12; on 3.11 both need what the backport has.
if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict
    typing.override = typing_extensions.override

#: Our worker's module, the first that a worker's process imports; and NeMo-RL's vLLM worker.
MEGATRON, VLLM = "nemo_uecr.nemo.megatron_worker", "nemo_rl.models.generation.vllm.vllm_worker"


class Hook(importlib.abc.MetaPathFinder):
    """Stands in for a GPU in the process that imports a worker's module, before or after that import."""

    def __init__(self):
        self.expected = {MEGATRON, VLLM}

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in self.expected:
            return None
        self.expected.remove(fullname)
        from tests.nemo.inside.workers import stand_ins

        if fullname == MEGATRON:
            stand_ins.megatron()
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            stand_ins.vllm_worker(module)

        spec.loader.exec_module = exec_module
        return spec


if "WORKERS_ON_CPU" in os.environ:
    # NeMo-RL's tree and some wheels have a package `tests`, which comes before a folder of that name.
    ours = types.ModuleType("tests")
    ours.__path__ = [str(Path(__file__).parents[3])]
    sys.modules["tests"] = ours
    sys.meta_path.insert(0, Hook())
if "FORKED_WORKERS" in os.environ and any(word.endswith("/setup_worker.py") for word in sys.orig_argv):
    import forked_workers

    forked_workers.hand_over()
