"""NeMo-RL is named in one file, and what is used of it is in the table of what is checked at the start of a run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from nemo_uecr.nemo.native_calls import native_calls

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


CALLED = [*native_calls("driver").called, *native_calls("worker").called]


def test_everything_that_is_used_is_checked() -> None:
    found = used((PACKAGE / "nemo" / "upstream.py").read_text(encoding="utf-8"))
    assert found <= {(each.module, each.name.split(".")[0]) for each in CALLED}, found
    looked_up = set(re.findall(r'native\("(\w+)"\)', "".join(file.read_text() for file in PACKAGE.rglob("*.py"))))
    assert looked_up <= {each.name.split(".")[0] for each in CALLED}, looked_up


def test_the_table_has_the_calls_that_are_made() -> None:
    """Each ``native("name")(...)`` of the package: as many positions, and keywords that the row has."""
    made = 0
    for node in (node for file in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(file.read_text()))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Call)):
            continue
        name = re.fullmatch(r"(?:upstream\.)?native\('(\w+)'\)", ast.unparse(node.func))
        if name is None:
            continue
        made += 1
        words = next(each.arguments or "" for each in CALLED if each.name == name[1]).split()
        given = {keyword.arg for keyword in node.keywords if keyword.arg}
        assert given <= {word[:-1] for word in words if word.endswith("=")}, name[1]
        assert len(node.args) == sum(not word.endswith("=") for word in words), name[1]
    assert made > 12
