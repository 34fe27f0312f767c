"""What `tools/cluster_quarter.sh` puts in the place of what does not fit into a call; in each of its Python processes.

Packages that NeMo-RL and Megatron-Bridge import at their top and no part uses: loggers, quantisation by ModelOpt, the
data sets of Energon. Each is a module whose every name is a class that makes None when called, which serves as a
function, a base class and an annotation; it is found only where the package itself is not. And the function of a newer
cuBLAS that Transformer Engine's library asks for when it is loaded (CUBLASLT_SHIM).
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import os
import runpy
import sys
import types
from pathlib import Path
from typing import Any

ABSENT = ("modelopt.", "mlflow.", "swanlab.", "wandb.", "megatron.energon.")


class Empty(types.ModuleType):
    """A package with every name in it."""

    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = type(name, (), {"__new__": lambda cls, *given, **named: None})
        setattr(self, name, found)
        return found


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last on the path, so that an installed package is found first."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """Of a package that may be absent."""
        absent = f"{fullname}.".startswith(ABSENT)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if absent else None

    def create_module(self, spec: Any) -> Any:
        """An empty one."""
        return Empty(spec.name)

    def exec_module(self, module: Any) -> None:
        """Nothing."""


sys.meta_path.append(Finder())
shim = os.environ.get("CUBLASLT_SHIM", "")
if Path(shim).is_file():
    ctypes.CDLL(shim, mode=ctypes.RTLD_GLOBAL)
here = Path(__file__).resolve().parent
for folder in sys.path:  # the machine's own module of this name, which this one hides
    own = Path(folder or ".", "sitecustomize.py").resolve()
    if own.parent != here and own.is_file():
        runpy.run_path(str(own))
        break
