"""Files of JSON are read by nemo_uecr/data/json_text.py, so that each kind of damage has one answer."""

from __future__ import annotations

import ast
from pathlib import Path

import nemo_uecr

PACKAGE = Path(nemo_uecr.__file__).resolve().parent
#: Who decodes JSON without it, and why that is no damaged file of a user.
OTHERS = {
    "data/json_text.py": "the reader",
    "audit/output.py": "what it has just encoded",
    "audit/parts.py": "what it has just encoded",
    "evaluation/plan.py": "what it has just encoded",
    "local/provenance.py": "what it has just encoded",
    "local/verify.py": "what it has just encoded",
    "bench/scoring.py": "a line of its own process",
    "bench/scoring_worker.py": "an argument of its own process",
    "cli/bench_advantage.py": "a line of its own process",
    "cluster/members.py": "a line of its own process",
    "verifier/worker.py": "a line of its own process",
    "scoring/agreement.py": "what another rank sends",
    "cli/smoke_checks.py": "a run that the same command has just made",
    "cluster/replicas.py": "a run that the same command has just made",
    "data/embedding_stage.py": "a shard that is complete or absent",
    "data/manifest.py": "rows that the same command has just written",
    "demo/task.py": "problems that the demo has just made",
    "demo/recipe.py": "a text of the demo's own",
    "demo/judge.py": "a script that reads one file of our own",
}


def test_nobody_else_decodes_json() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in (("json", "loads"), ("json", "load"))
    }
    assert found == set(OTHERS)
