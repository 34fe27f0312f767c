"""NeMo-RL is named in one file, and everything that this file uses is in its table of what is checked at start."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.signatures import expected_signatures

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
    """Module and first attribute of everything that is taken from an imported NeMo-RL module."""
    found: set[tuple[str, str]] = set()
    for scope in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)):
        bound: dict[str, str] = {}
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign):
                targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                for target, value in zip(targets, values, strict=False):
                    module = _module(value)
                    if isinstance(target, ast.Name) and module is not None:
                        bound[target.id] = module
        for node in ast.walk(scope):
            if isinstance(node, ast.Attribute):
                module = bound.get(node.value.id) if isinstance(node.value, ast.Name) else _module(node.value)
                if module is not None:
                    found.add((module, node.attr))
    return found


def _module(value: ast.expr) -> str | None:
    """The module that an expression imports: `importlib.import_module(_X)`, `load_module(_X, ...)`, `grpo_module()`."""
    if not isinstance(value, ast.Call):
        return None
    called = ast.unparse(value.func)
    if called == "grpo_module":
        return str(upstream._GRPO)
    if called in ("importlib.import_module", "load_module"):
        return str(eval(ast.unparse(value.args[0]), vars(upstream)))
    return None


def test_everything_that_is_used_is_checked() -> None:
    found = used((PACKAGE / "nemo" / "upstream.py").read_text(encoding="utf-8"))
    assert len(found) > 20
    table = [*expected_signatures(upstream.TABLE), *expected_signatures(upstream.WORKER_TABLE)]
    checked = {(line.module, line.name.split(".")[0]) for line in table}
    assert found <= checked, found - checked
