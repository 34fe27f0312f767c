"""Imports, versions, and which apex it is, each made wrong for real."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_uecr.doctor import packages, run
from nemo_uecr.doctor.packages import Package
from nemo_uecr.nemo_adapter.upstream import VLLM_WORKER_FQN
from tests.conftest import ROOT


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that every new interpreter imports from."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), ROOT]))
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_no_apex_is_fine(site: Path) -> None:
    assert packages.apex_finding(sys.executable).status == "ok"


def test_another_apex_is_refused(site: Path) -> None:
    """The layout of PyPI's package: modules of a web toolkit, none of kernels."""
    write(site / "apex" / "__init__.py", "")
    write(site / "apex" / "lib" / "flash.py", "")
    found = packages.apex_finding(sys.executable)
    assert found.status == "fail"
    assert "not NVIDIA's" in found.message
    assert "pip uninstall apex" in found.remedy


NVIDIA = ("multi_tensor_apply", "normalization", "optimizers")


def test_nvidias_apex_is_known_by_its_folders(site: Path) -> None:
    write(site / "apex" / "__init__.py", "")
    for name in NVIDIA:
        write(site / "apex" / name / "__init__.py", "")
    found = packages.apex_finding(sys.executable)
    assert (found.status, found.message.partition(",")[0]) == ("ok", "NVIDIA's")


def test_an_apex_that_cannot_be_imported_is_not_ok(site: Path) -> None:
    """On a machine without CUDA it may be whole; a lone folder `contrib` is not enough to be NVIDIA's."""
    write(site / "apex" / "__init__.py", "raise ImportError('needs CUDA')")
    write(site / "apex" / "contrib" / "__init__.py", "")
    assert packages.apex_finding(sys.executable).status == "fail"
    for name in NVIDIA:
        write(site / "apex" / name / "__init__.py", "")
    found = packages.apex_finding(sys.executable)
    assert found.status == "warn"
    assert "needs CUDA" in found.message


def test_a_folder_of_a_packages_name_is_no_package(site: Path) -> None:
    (site / "vllm").mkdir()
    found = packages.import_finding(Package("vllm", "vllm", True, "install it"), sys.executable)
    assert found.status == "fail"
    assert "no package" in found.message


def test_a_package_that_says_strange_things_is_a_line(site: Path) -> None:
    write(site / "noisy" / "__init__.py", "import sys; sys.stderr.buffer.write(b'\\xff'); raise ValueError('broken')")
    write(site / "nameless" / "__init__.py", "__version__ = ''")
    assert packages.import_finding(Package("noisy", "noisy", True, "-"), sys.executable).status == "fail"
    assert packages.import_finding(Package("nameless", "nameless", True, "-"), sys.executable).message == "no version"


def test_a_missing_package_is_a_fail_with_its_extra() -> None:
    package = Package("no_such_module_here", "nothing", True, "pip install it")
    found = packages.import_finding(package, sys.executable)
    assert (found.status, found.remedy) == ("fail", "pip install it")
    assert "No module named 'no_such_module_here'" in found.message


def test_an_optional_package_is_a_warning() -> None:
    package = Package("no_such_module_here", "nothing", False, "pip install it")
    assert packages.import_finding(package, sys.executable).status == "warn"


@pytest.mark.parametrize(
    ("body", "reason"),
    [("raise OSError('libnccl.so.2: cannot open')", "libnccl"), ("import os; os.abort()", "ended with")],
)
def test_a_package_that_dies_on_import_is_a_line(body: str, reason: str, site: Path) -> None:
    write(site / "dying_package" / "__init__.py", body)
    found = packages.import_finding(Package("dying_package", "dying", True, "-"), sys.executable)
    assert found.status == "fail"
    assert reason in found.message


def test_a_version_is_shown() -> None:
    import pydantic

    found = packages.import_finding(Package("pydantic", "pydantic", True, "-"), sys.executable)
    assert (found.status, found.message) == ("ok", pydantic.VERSION)


def test_a_workers_own_environment_is_used(tmp_path: Path) -> None:
    assert packages.worker_python(VLLM_WORKER_FQN, root=tmp_path) == sys.executable
    prebuilt = tmp_path / VLLM_WORKER_FQN / "bin" / "python"
    write(prebuilt, "")
    assert packages.worker_python(VLLM_WORKER_FQN, root=tmp_path) == str(prebuilt)


def test_the_empty_nemo_rl_of_pypi_is_refused(site: Path) -> None:
    write(site / "nemo_rl" / "__init__.py", "__version__ = '0.0.0'")
    code = "from nemo_uecr.doctor.packages import nemo_rl_finding; f = nemo_rl_finding(); print(f.status, f.message)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("fail")
    assert "NeMo-RL" in done.stdout


def test_an_old_python_is_refused() -> None:
    assert packages.python_finding((3, 10, 4)).status == "fail"
    assert packages.python_finding((3, 11, 0)).status == "ok"


def test_an_interpreter_that_does_not_answer_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "SECONDS", 0.001)
    (found,) = run._guarded("apex", lambda: [packages.apex_finding(sys.executable)])
    assert (found.check, found.status) == ("apex", "fail")
    assert found.message.startswith("cannot be checked: TimeoutExpired: ")
