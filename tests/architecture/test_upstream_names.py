"""NeMo-RL is named in one file, and everything that this file uses is in its table of what is checked at start."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_uecr.nemo.upstream import expected_signatures

PACKAGE = Path(__file__).resolve().parents[2] / "nemo_uecr"
#: The file that names NeMo-RL's internals, and a benchmark that measures a rival's two functions from its own package.
NAMING = {"nemo/upstream.py"}
#: Attributes of NeMo-RL's objects that only its own classes have.
INTERNALS = {
    "_shard_for_logprob", "worker_group", "worker_metadata", "run_all_workers_single_data",
    "run_all_workers_sharded_data", "get_dp_leader_worker_idx", "mcore_state",
}  # fmt: skip


def names_in(source: str) -> Iterator[str]:
    """What a module names of NeMo-RL: imports, dotted strings, attributes; not its docstrings."""
    tree = ast.parse(source)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "nemo_rl")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "nemo_rl":
            yield str(node.module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            if "nemo_rl." in node.value:
                yield node.value
        elif isinstance(node, ast.Attribute) and node.attr in INTERNALS:
            yield node.attr


def test_nemo_rl_is_named_in_one_file() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        if str(path.relative_to(PACKAGE)) not in NAMING:
            assert list(names_in(path.read_text(encoding="utf-8"))) == [], path


@pytest.mark.parametrize(
    "source",
    ["import nemo_rl.algorithms", "from nemo_rl.models import policy", "x = 'nemo_rl.models.Policy'",
     "policy.worker_group.shutdown()"],
)  # fmt: skip
def test_a_name_elsewhere_is_found(source: str) -> None:
    assert list(names_in(source))


def used(source: str) -> set[tuple[str, str]]:
    """Module and name of everything that is imported from NeMo-RL, or taken from a module of it."""
    tree = ast.parse(source)
    modules = {
        alias.asname: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.startswith("nemo_rl")
    }
    found = {
        (str(node.module), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("nemo_rl")
        for alias in node.names
    }
    return found | {
        (modules[node.value.id], node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
    }


def test_everything_that_is_used_is_checked() -> None:
    found = used((PACKAGE / "nemo" / "upstream.py").read_text(encoding="utf-8"))
    assert len(found) > 20
    checked = {
        (module, name.split(".")[0]) for side in ("driver", "worker") for module, name, _ in expected_signatures(side)
    }
    assert found <= checked, found - checked
