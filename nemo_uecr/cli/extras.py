"""Optional dependencies: which extra brings which module."""

from __future__ import annotations

from importlib.util import find_spec

from nemo_uecr.errors import DependencyError

__all__ = ["as_dependency_error", "require_extra"]

EXTRA_MODULES: dict[str, tuple[str, ...]] = {
    "local": ("transformers", "tokenizers", "jinja2"),
    "verify": ("math_verify",),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "plots": ("matplotlib",),
    "data": ("pyarrow", "huggingface_hub"),
    "study": ("matplotlib", "scipy"),
    "ray": ("ray",),
    "convert": ("transformers", "megatron", "accelerate", "einops", "psutil", "six", "triton"),
}
"""Extra of the package -> the modules that it brings."""


def require_extra(extra: str) -> None:
    """Refuse to start what an extra is needed for when one of its modules is missing."""
    missing = [module for module in EXTRA_MODULES[extra] if find_spec(module) is None]
    if missing:
        raise _missing(missing[0], extra)


def as_dependency_error(error: ModuleNotFoundError) -> DependencyError | None:
    """The same failure as a message that names the extra; None for a module that no extra brings."""
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRA_MODULES.items() if module in modules), None)
    return _missing(module, extra) if extra is not None else None


def _missing(module: str, extra: str) -> DependencyError:
    return DependencyError(f"{module} is not installed; run: pip install 'nemo-uecr[{extra}]'")
