"""Errors for users. Each message is one line: what was got, what was expected, what to do.

Only a reward function's traceback takes more lines. The command line prints the message of a `UecrError` on standard
error and exits with code 2.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

#: The modules of each extra; those of `cli` are what the command line itself needs.
EXTRAS: dict[str, tuple[str, ...]] = {
    "cli": (
        "cyclopts", "filelock", "jinja2", "numpy", "omegaconf", "psutil", "pyarrow", "pydantic", "yaml", "rich",
        "safetensors", "scipy",
    ),
    "local": ("transformers", "tokenizers"),
    "lora": ("peft",),
    "lowbit": ("bitsandbytes", "torchao"),
    "verify": ("math_verify",),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "trackio": ("trackio",),
    "swanlab": ("swanlab",),
    "plots": ("matplotlib",),
    "data": ("datasets", "huggingface_hub"),
    "ray": ("ray",),
    "convert": ("transformers", "megatron", "accelerate", "einops", "six", "triton"),
}  # fmt: skip


class UecrError(Exception):
    """Base of all errors caused by the input or the environment rather than a defect in this package."""


class ConfigError(UecrError, ValueError):
    """A configuration key or value cannot be used."""


class DataError(UecrError, ValueError):
    """A problem file, a model folder or a saved batch cannot be used."""


class ScoreError(UecrError, ValueError):
    """A score (log-probability, entropy) is missing, misshapen or not finite."""


class InvariantError(UecrError, RuntimeError):
    """An identity of the method is violated."""


class RewardError(UecrError, RuntimeError):
    """A reward function fails too often, or does not return rewards."""


class CheckpointError(UecrError, RuntimeError):
    """A checkpoint is missing, incomplete, corrupt or belongs to another configuration."""


class RunFolderError(UecrError, RuntimeError):
    """The output folder is in use, holds another run, or cannot be written."""


class DependencyError(UecrError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""


def require_extra(*extras: str) -> None:
    """Raise DependencyError if modules of these extras are missing; the message names them and their extras."""
    if absent := {module: extra for extra in extras for module in EXTRAS[extra] if not _installed(module)}:
        raise _missing(list(absent), *dict.fromkeys(absent.values()))


def _installed(module: str) -> bool:
    """Whether a module can be found outside the working directory, where a data folder ray/ looks like a module."""
    spec = find_spec(module)
    places = [] if spec is None else [spec.origin or each for each in spec.submodule_search_locations or [""]]
    return not all(Path(place).parent == Path.cwd() for place in places)


def as_dependency_error(error: ModuleNotFoundError) -> DependencyError | None:
    """The error with a message that names the extra; None for a module of no extra."""
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    return None if extra is None else _missing([module], extra)


def _missing(modules: list[str], *extras: str) -> DependencyError:
    absent = " and ".join(modules) + (" is" if len(modules) == 1 else " are")
    return DependencyError(f"{absent} not installed; run: pip install 'nemo-uecr[{','.join(extras)}]'")


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its type if there is no message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
