"""Results without runs, and the smallest study that really runs."""

from __future__ import annotations

from pathlib import Path

import yaml

from benchmarks.study.grid import GridCell
from benchmarks.study.results import RunResult

SMALL = Path(__file__).resolve().parents[3] / "examples" / "configs" / "study" / "small.yaml"


def made_results(finals: dict[str, dict[int, float]], variant: str = "one_update") -> list[RunResult]:
    """Results of one variant by arm and pair."""
    return [
        RunResult(
            GridCell(arm, variant, pair, 1e-4, (), Path(f"runs/{variant}/{arm}/pair-{pair:03d}"), False),
            initial=0.0,
            final=final,
            curve=((0, 0.0), (2, final)),
            initial_sets={"level1": 0.0},
            sets={"level1": final},
            degenerate_start=0.5,
            degenerate=0.5,
            rewards=(10.0, 20.0),
            samples=12,
        )
        for arm, by_pair in finals.items()
        for pair, final in by_pair.items()
    ]


def study_file(folder: Path, **changes: object) -> Path:
    """The small study, smaller: one variant, models taught for a few steps."""
    content = yaml.safe_load(SMALL.read_text())
    content |= {"config": str(SMALL.parent / "../local/demo.yaml"), "folder": str(folder / "study")}
    content["variants"] = {"one_update": []}
    content["arms"].pop("own_teacher")
    content["tables"]["main"]["arms"] = ["grpo", "uecr"]
    for model in ("student", "teacher"):
        content["task"][model]["course"] |= {"steps": 4, "tokens_per_batch": 200}
    content["overrides"] += ["rollout.max_response_tokens=6", "evaluation.max_tokens=6"]
    content |= changes
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(content))
    return path
