"""NeMo-RL is named in one file, and everything that this file uses is in its table of what is checked at start."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from nemo_uecr.nemo.upstream import expected_signatures

PACKAGE = Path(__file__).resolve().parents[2] / "nemo_uecr"
#: Imports, dotted names in strings, and attributes of objects that only NeMo-RL's own classes have.
NAMED = re.compile(
    r"^\s*(?:import|from) nemo_rl\b|[\"']nemo_rl\.|\.(?:_shard_for_logprob|worker_group|worker_metadata"
    r"|run_all_workers_s\w+|get_dp_leader_worker_idx|mcore_state)\b",
    re.M,
)


def test_nemo_rl_is_named_in_one_file() -> None:
    naming = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if NAMED.search(path.read_text())}
    assert naming == {"nemo/upstream.py"}


def used(source: str) -> set[tuple[str, str]]:
    """Module and name of everything that is imported from NeMo-RL, or taken from a module of it."""
    nodes = list(ast.walk(ast.parse(source)))
    modules = {alias.asname: alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found |= {(str(node.module), alias.name) for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add((modules.get(node.value.id, ""), node.attr))
    return {(module, name) for module, name in found if module.startswith("nemo_rl")}


def test_everything_that_is_used_is_checked() -> None:
    found = used((PACKAGE / "nemo" / "upstream.py").read_text(encoding="utf-8"))
    table = [*expected_signatures("driver"), *expected_signatures("worker")]
    assert found <= {(module, name.split(".")[0]) for module, name, _ in table}, found
    looked_up = set(re.findall(r'native\("(\w+)"\)', "".join(file.read_text() for file in PACKAGE.rglob("*.py"))))
    assert looked_up <= {name.split(".")[0] for _, name, _ in table}, looked_up
