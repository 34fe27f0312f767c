"""The import contract of docs/architecture.md, read from the source."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "nemo_uecr"


@dataclass(frozen=True)
class Rule:
    """What one layer may import."""

    layers: frozenset[str]
    """Layers of the package, at module level and inside functions."""

    packages: frozenset[str] = frozenset()
    """Third-party packages at module level."""

    lazy_packages: frozenset[str] | None = None
    """Third-party packages inside functions; None: any."""


def rule(*layers: str, packages: str = "", lazy: str | None = None) -> Rule:
    return Rule(frozenset(layers), frozenset(packages.split()), None if lazy is None else frozenset(lazy.split()))


CONTRACT: dict[str, Rule] = {
    "core": rule(packages="torch", lazy=""),
    "scoring": rule(packages="torch", lazy=""),
    "config": rule(packages="pydantic omegaconf yaml", lazy=""),
    "data": rule("core"),
    "verifier": rule(),
    "evaluation": rule("config", "data", "verifier", packages="numpy"),
    "telemetry": rule("core", "data", packages="torch"),
    "demo": rule("data"),
    "plan": rule("config", "data", packages="pydantic"),
    "doctor": rule("checkpoint", "config", "data", "nemo_adapter", "plan"),
    "report": rule("config", "core", "telemetry", "data"),
    "bench": rule("core", "data", "scoring", packages="torch"),
    "local": rule(
        "config", "core", "data", "evaluation", "scoring", "telemetry", "verifier",
        packages="torch transformers safetensors",
    ),
    "audit": rule(
        "checkpoint", "config", "core", "data", "evaluation", "local", "scoring", "verifier", packages="numpy torch"
    ),
    "megatron_worker": rule("scoring", packages="torch", lazy="megatron"),
    "checkpoint": rule("data", "scoring"),
    "nemo_adapter": rule(
        "config", "core", "data", "evaluation", "megatron_worker", "plan", "telemetry", "verifier",
        packages="torch ray",
    ),
    "study": rule("config", "data", "demo", "evaluation", "report", packages="numpy omegaconf pydantic pydantic_core"),
    "cluster": rule("config", "data"),
    "cli": rule(
        "config", "core", "data", "demo", "evaluation", "local", "report", "telemetry", "verifier",
        "bench", "nemo_adapter", "study", "plan", "doctor", "checkpoint", "audit", "cluster",
    ),
}  # fmt: skip
"""Layer -> rule. Everyone may import `nemo_uecr` itself and its modules in `SHARED`."""

MODULE_PACKAGES: dict[str, frozenset[str]] = {"scoring/triton_kernels.py": frozenset({"triton"})}
"""Packages that one module imports at module level beyond its layer's rule. Such a module may itself be imported
inside functions only."""

MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE)
SHARED = {"errors", "method_registry", "stopping", "__version__"}


@dataclass(frozen=True)
class Import:
    """One imported name."""

    line: int
    name: str
    lazy: bool
    """Inside a function, so that it costs nothing when the module is loaded."""


def imports_of(source: str) -> list[Import]:
    """Every import that runs; those under `if TYPE_CHECKING` do not."""
    return list(_imports(ast.parse(source).body, lazy=False))


def _imports(body: list[ast.stmt], *, lazy: bool) -> Iterator[Import]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (Import(node.lineno, f"{module}.{alias.name}", lazy) for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _imports(node.orelse, lazy=lazy)
        else:
            inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for field in ("body", "orelse", "finalbody"):
                yield from _imports(getattr(node, field, []), lazy=inside)
            for part in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
                yield from _imports(part.body, lazy=inside)


def faults_of(layer: str, source: str, more: frozenset[str] = frozenset()) -> list[str]:
    """What a module of a layer imports against the contract; `more` are packages that this module alone may have."""
    allowed = CONTRACT[layer]
    faults = []
    late = {"nemo_uecr." + name.removesuffix(".py").replace("/", ".") for name in MODULE_PACKAGES}
    for found in imports_of(source):
        root, *rest = found.name.split(".")
        if root == "":
            faults.append(f"line {found.line}: relative import; write the absolute path")
        elif root == "nemo_uecr":
            if rest and rest[0] not in allowed.layers | SHARED | {layer}:
                faults.append(f"line {found.line}: {layer} may not import the layer {rest[0]}")
            if not found.lazy and any(f"{found.name}.".startswith(f"{name}.") for name in late):
                faults.append(f"line {found.line}: {found.name} may only be imported inside a function")
        elif root not in sys.stdlib_module_names | allowed.packages | more:
            lazy_allowed = allowed.lazy_packages is None or root in allowed.lazy_packages
            if not (found.lazy and lazy_allowed):
                where = "inside a function" if found.lazy else "at module level"
                faults.append(f"line {found.line}: {layer} may not import {root} {where}")
    return faults


def test_every_layer_has_a_rule() -> None:
    layers = {path.relative_to(PACKAGE).parts[0] for path in MODULES}
    assert layers <= set(CONTRACT), f"name the rule of {sorted(layers - set(CONTRACT))} in CONTRACT"


@pytest.mark.parametrize("layer", sorted(set(CONTRACT)))
def test_the_contract_allows_nothing_that_nobody_imports(layer: str) -> None:
    """A newcomer reads the table of docs/architecture.md as what there is, not as what there might be."""
    names = [
        found.name.split(".")
        for path in MODULES
        if path.relative_to(PACKAGE).parts[0] == layer
        for found in imports_of(path.read_text(encoding="utf-8"))
    ]
    allowed = CONTRACT[layer]
    assert allowed.layers <= {name[1] for name in names if name[0] == "nemo_uecr" and len(name) > 1}
    assert allowed.packages <= {name[0] for name in names}


def test_the_contract_has_no_cycle() -> None:
    """An order exists in which every layer imports only earlier ones."""
    placed: set[str] = set()
    while len(placed) < len(CONTRACT):
        ready = {layer for layer, allowed in CONTRACT.items() if allowed.layers <= placed} - placed
        assert ready, f"layers in a cycle: {sorted(set(CONTRACT) - placed)}"
        placed |= ready


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_contract(path: Path) -> None:
    name = path.relative_to(PACKAGE)
    faults = faults_of(name.parts[0], path.read_text(encoding="utf-8"), MODULE_PACKAGES.get(str(name), frozenset()))
    assert not faults, f"{path.relative_to(PACKAGE)}: " + "; ".join(faults)


@pytest.mark.parametrize(
    ("layer", "source", "fault"),
    [
        ("core", "def f():\n    import numpy", "may not import numpy inside a function"),
        ("config", "import torch", "may not import torch at module level"),
        ("config", "def f():\n    import torch", "may not import torch inside a function"),
        ("data", "try:\n    import torch\nexcept ImportError:\n    pass", "may not import torch at module level"),
        ("scoring", "from nemo_uecr.local.run import train", "may not import the layer local"),
        ("local", "def f():\n    from nemo_uecr.report.page import p", "may not import the layer report"),
        ("cli", "from . import main", "relative import"),
        ("scoring", "import triton", "may not import triton at module level"),
        ("scoring", "from nemo_uecr.scoring.triton_kernels import reduce_with_triton", "only be imported inside"),
        ("scoring", "from nemo_uecr.scoring import triton_kernels", "only be imported inside"),
    ],
)  # fmt: skip
def test_a_fault_is_found(layer: str, source: str, fault: str) -> None:
    assert any(fault in found for found in faults_of(layer, source))


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("data", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import Tensor"),
        ("data", "def f():\n    import torch"),
        ("core", "import torch.nn.functional as F\nfrom nemo_uecr.errors import ScoreError"),
        ("cli", "from nemo_uecr import __version__\nimport nemo_uecr"),
    ],
)
def test_what_is_allowed_is_no_fault(layer: str, source: str) -> None:
    assert faults_of(layer, source) == []


def test_the_document_states_the_contract() -> None:
    """docs/architecture.md says of every layer what CONTRACT says."""
    rows = {
        cells[1].strip().strip("`"): cells
        for cells in (
            line.split("|") for line in (PACKAGE.parent / "docs" / "architecture.md").read_text().splitlines()
        )
        if len(cells) == 6
    }
    for layer, allowed in CONTRACT.items():
        named = set(rows[layer][3].replace("`", "").replace(",", " ").split())
        assert named == ({"all"} if layer == "cli" else allowed.layers or {"none"}), layer
        packages = set(rows[layer][4].replace(",", " ").split())
        assert packages == (allowed.packages - {"pydantic_core"} or {"none"}), layer  # it comes with pydantic
