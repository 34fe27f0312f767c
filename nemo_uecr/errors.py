"""The errors a user can meet. Each message is one line: what was got, what was expected, what to do.

Only a reward function's traceback follows on lines of its own. The command line prints the message of a `UecrError` on
standard error and exits with code 2.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

#: What the command line itself needs.
PLAIN = (
    "cyclopts", "filelock", "jinja2", "numpy", "omegaconf", "psutil", "pydantic", "yaml", "rich", "safetensors",
    "scipy",
)  # fmt: skip
#: Each extra of the package and the modules that it brings.
EXTRAS: dict[str, tuple[str, ...]] = {
    "cli": PLAIN,
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
    "data": ("pyarrow", "huggingface_hub"),
    "study": ("matplotlib",),
    "ray": ("ray",),
    "convert": ("transformers", "megatron", "accelerate", "einops", "six", "triton"),
}


class UecrError(Exception):
    """Base of every error that is the input's or the environment's fault rather than a defect here."""


class ConfigError(UecrError, ValueError):
    """A configuration key or value cannot be used."""


class DataError(UecrError, ValueError):
    """A problem file, a model folder or a saved batch cannot be used."""


class ScoreError(UecrError, ValueError):
    """A score (log-probability, entropy) is missing, misshapen or not finite."""


class InvariantError(UecrError, RuntimeError):
    """An identity that the method declares does not hold within its tolerance."""


class RewardError(UecrError, RuntimeError):
    """A reward function fails too often, or returns something that is not a reward."""


class CheckpointError(UecrError, RuntimeError):
    """A checkpoint is missing, incomplete, corrupt or belongs to another configuration."""


class RunFolderError(UecrError, RuntimeError):
    """The output folder is in use, holds another run, or cannot be written."""


class DependencyError(UecrError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


def require_extra(*extras: str) -> None:
    """Refuse to start when a module of these extras is missing; the message names every extra to install."""
    absent = {extra: " and ".join(each for each in EXTRAS[extra] if not _installed(each)) for extra in extras}
    if missing := {extra: modules for extra, modules in absent.items() if modules}:
        raise _missing(" and ".join(missing.values()), ",".join(missing))


def _installed(module: str) -> bool:
    """Whether a module can be found outside the working directory, where a data folder ray/ looks like one."""
    spec = find_spec(module)
    places = [] if spec is None else [spec.origin or each for each in spec.submodule_search_locations or [""]]
    return not all(Path(place).parent == Path.cwd() for place in places)


def as_dependency_error(error: ModuleNotFoundError) -> DependencyError | None:
    """The same failure as a message that names the extra; None for a module that no extra brings."""
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    return None if extra is None else _missing(module, extra)


def _missing(module: str, extra: str) -> DependencyError:
    verb = "are" if " and " in module else "is"
    return DependencyError(f"{module} {verb} not installed; run: pip install 'nemo-uecr[{extra}]'")


def first_line(error: BaseException) -> str:
    """The first line of another library's message, without the advice that follows; the error's type if it is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
