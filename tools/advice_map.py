"""The map that `nemo-uecr advise` reads, from a study whose file has a `map`; and how often its advice hits.

    python tools/advice_map.py runs/study-map           # writes nemo_uecr/audit/map.json
    python tools/advice_map.py runs/study-map --hits    # advice for each cell from the cells of the other variants

Facts of a cell are what `advise` measures on the students of its first pairs; they are kept in STUDY/advice.json. A hit
is a method that the study does not tell apart from the cell's best; the points are how far it ended below the best.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from nemo_uecr.audit.advice import Cell, method_for
from nemo_uecr.stats import Share

PAIRS, PROBLEMS = 2, 32
MAP = Path(__file__).resolve().parents[1] / "nemo_uecr" / "audit" / "map.json"
#: The places of a cell on the map's axes, one a pair.
Places = Sequence[Mapping[str, Share]]


def measured(study: Path, results: Mapping[str, Any]) -> dict[str, Places]:
    """Facts of every cell by its name; those that are not kept yet are measured."""
    from nemo_uecr.audit.advise import facts_of_config
    from nemo_uecr.config.load import load_config

    kept = study / "advice.json"
    found: dict[str, Places] = json.loads(kept.read_text()) if kept.is_file() else {}
    folders = {
        (run["cell"]["variant"], run["cell"]["arm"], run["cell"]["pair"]): run["folder"] for run in results["runs"]
    }
    for cell in results["map"]:
        if (name := name_of(cell)) not in found:
            arm = results["study"]["tables"][cell["table"]]["reference"]
            files = [Path(folders[cell["variant"], arm, pair]) / "config.yaml" for pair in range(PAIRS)]
            configs = [load_config(file, ()).config for file in files]
            facts = [facts_of_config(config, problems=PROBLEMS, noise_stated=False) for config in configs]
            found[name] = [dict(each.where) for each in facts]
            kept.write_text(json.dumps(found, indent=1) + "\n")
    return found


def name_of(cell: Mapping[str, Any]) -> str:
    """Teacher, student, verifier and groups of a cell of a study's map."""
    return f"{cell['column']}, {cell['row']}, {cell['panel']}"


def cell_of(cell: Mapping[str, Any], places: Places) -> Cell:
    """A cell of a study's map where its facts put it."""
    where = {axis: round(statistics.fmean(place[axis]["value"] for place in places), 3) for axis in places[0]}
    means = {method: round(score["mean"], 1) for method, score in cell["scores"].items()}
    pairs = min(score["pairs"] for score in cell["scores"].values())
    return Cell(name_of(cell), pairs, where, means)


def hits(cells: Sequence[Mapping[str, Any]], places: Mapping[str, Places]) -> dict[str, tuple[float, float, float]]:
    """Share of hits over the cells' students, and points lost on average and at most: the advice, and each method."""
    found: dict[str, list[tuple[bool, float]]] = {"advice": []}
    mapped = [cell_of(cell, places[name_of(cell)]) for cell in cells]
    for cell, here in zip(cells, mapped, strict=True):
        others = [other for other, each in zip(mapped, cells, strict=True) if each["variant"] != cell["variant"]]
        means = {method: score["mean"] for method, score in cell["scores"].items()}
        for place in places[here.name]:
            advised = method_for(place, others)
            for name, method in [("advice", advised), *((f"always {each}", each) for each in means)]:
                found.setdefault(name, []).append((method in cell["level"], max(means.values()) - means[method]))
    columns = {name: tuple(zip(*each, strict=True)) for name, each in found.items()}
    return {name: (statistics.fmean(hit), statistics.fmean(lost), max(lost)) for name, (hit, lost) in columns.items()}


def main(study: Path, *, count: bool) -> None:
    """Write the map, or print the share of hits."""
    results = json.loads((study / "results.json").read_text(encoding="utf-8"))
    places = measured(study, results)
    if count:
        for name, (share, lost, most) in hits(results["map"], places).items():
            sys.stdout.write(f"{name:24} hits {100 * share:3.0f} %, points lost {lost:4.1f}, at most {most:4.1f}\n")
        return
    lines = [json.dumps(vars(cell_of(cell, places[name_of(cell)]))) for cell in results["map"]]
    MAP.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), count="--hits" in sys.argv)
