"""Versions and imports: every package is really imported, in a process of its own, so that a crash is only a line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.doctor.findings import Finding, fail, ok, warn

__all__ = ["apex_finding", "import_finding", "nemo_rl_finding", "package_findings", "python_finding", "worker_python"]

SECONDS = 180
PYTHON = (3, 11)
RAY_VENVS = Path("/opt/ray_venvs")

_IMPORT = """
import importlib, importlib.metadata, sys
module = importlib.import_module(sys.argv[1])
if getattr(module, "__file__", None) is None:
    raise ImportError(f"{list(module.__path__)[0]} is a folder of that name and no package")
try:
    version = importlib.metadata.version(sys.argv[2])
except importlib.metadata.PackageNotFoundError:
    version = getattr(module, "__version__", "no version")
sys.stdout.write("\\n" + (str(version) or "no version"))
"""
_LOCATE = """
import importlib.util, sys
spec = importlib.util.find_spec("apex")
places = list(spec.submodule_search_locations or [spec.origin]) if spec else []
sys.stdout.write("\\n" + (places[0] if places else ""))
"""
#: Folders that only NVIDIA's apex has.
NVIDIA_APEX = ("optimizers", "multi_tensor_apply", "normalization")


@dataclass(frozen=True)
class Package:
    """A package that a back end needs."""

    module: str
    distribution: str
    required: bool
    remedy: str


PLAIN = (
    Package("torch", "torch", True, "pip install 'nemo-uecr'"),
    Package("pydantic", "pydantic", True, "pip install 'nemo-uecr'"),
    Package("omegaconf", "omegaconf", True, "pip install 'nemo-uecr'"),
    Package("safetensors", "safetensors", True, "pip install 'nemo-uecr'"),
    Package("transformers", "transformers", True, "pip install 'nemo-uecr[local]'"),
    Package("math_verify", "math-verify", True, "pip install 'nemo-uecr[verify]'"),
    Package("tensorboard", "tensorboard", False, "pip install 'nemo-uecr[tensorboard]'"),
)
_CONTAINER = "use the container nvcr.io/nvidia/nemo-rl:v0.7.0, which has it"


def python_finding(version: tuple[int, ...]) -> Finding:
    """The interpreter's version, first number first."""
    shown, least = ".".join(map(str, version)), ".".join(map(str, PYTHON))
    if version < PYTHON:
        return fail("python", f"{shown}, expected {least} or newer", "make a virtual environment with a newer Python")
    return ok("python", f"{shown} ({sys.executable})")


def package_findings(*, nemo: bool) -> list[Finding]:
    """Every package of the back end; those of NeMo-RL's workers are looked for in their own environments as well."""
    findings = [import_finding(package, sys.executable) for package in PLAIN]
    if nemo:
        from nemo_uecr.nemo_adapter.upstream import VLLM_WORKER_FQN

        findings.append(import_finding(Package("ray", "ray", True, _CONTAINER), sys.executable))
        megatron, vllm = megatron_python(), worker_python(VLLM_WORKER_FQN)
        for module, name, python in (
            ("megatron.core", "megatron-core", megatron),
            ("megatron.bridge", "megatron-bridge", megatron),
            ("transformer_engine.pytorch", "transformer-engine", megatron),
            ("vllm", "vllm", vllm),
        ):
            findings.append(import_finding(Package(module, name, True, _CONTAINER), python))
    return findings


def worker_python(worker: str, *, root: Path = RAY_VENVS) -> str:
    """The interpreter of a kind of NeMo-RL worker: the container's prebuilt one where it is, else this one."""
    prebuilt = root / worker / "bin" / "python"
    return str(prebuilt) if prebuilt.is_file() else sys.executable


def megatron_python() -> str:
    """The interpreter of the Megatron workers."""
    from nemo_uecr.nemo_adapter.upstream import NATIVE_WORKER_FQN

    return worker_python(NATIVE_WORKER_FQN)


def import_finding(package: Package, python: str) -> Finding:
    """Import a package with an interpreter."""
    try:
        done = _run(python, _IMPORT, package.module, package.distribution)
    except subprocess.TimeoutExpired:
        return fail(package.module, f"its import did not end within {SECONDS} s", package.remedy)
    if done.returncode == 0:
        return ok(package.module, (done.stdout.strip().splitlines() or ["no version"])[-1])
    said = done.stderr.strip().splitlines()
    reason = said[-1] if said else f"the interpreter ended with {done.returncode}"
    make = fail if package.required else warn
    return make(package.module, f"cannot be imported by {python}: {reason}", package.remedy)


def apex_finding(python: str) -> Finding:
    """Whether an installed `apex` is NVIDIA's; PyPI's package of that name is a toolkit for the Pyramid framework."""
    done = _run(python, _LOCATE)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return fail("apex", f"looking for it raises {reason}", "pip uninstall apex")
    place = done.stdout.strip()
    if not place:
        return ok("apex", "not installed; Megatron takes Transformer Engine's or torch's kernels")
    folder = Path(place)
    if all((folder / name).is_dir() for name in NVIDIA_APEX):
        loaded = import_finding(Package("apex", "apex", False, ""), python)
        if loaded.status == "ok":
            return ok("apex", f"NVIDIA's, {folder}")
        remedy = "look again on a compute node; if it says the same there: pip uninstall apex, it is not needed here"
        return warn("apex", f"{folder} has the folders of NVIDIA's, but it {loaded.message}", remedy)
    return fail(
        "apex",
        f"{folder} is not NVIDIA's apex (it lacks some of {', '.join(NVIDIA_APEX)}); PyPI's package of that name is an "
        "unrelated toolkit, and Megatron would import it",
        "pip uninstall apex; NVIDIA's is built from github.com/NVIDIA/apex and not needed here",
    )


def nemo_rl_finding() -> Finding:
    """NeMo-RL itself: its version and every signature that this project calls or replaces."""
    from nemo_uecr.nemo_adapter import upstream
    from nemo_uecr.nemo_adapter.errors import UpstreamError

    try:
        return ok("nemo_rl", f"{upstream.check()}, signatures as expected")
    except (UpstreamError, ImportError) as error:
        return fail("nemo_rl", str(error), "use NeMo-RL v0.7.0's container, or its source on PYTHONPATH")


def _run(python: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command: Sequence[str] = [python, "-c", code, *arguments]
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace", timeout=SECONDS, check=False
    )
