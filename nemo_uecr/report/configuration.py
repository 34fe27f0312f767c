"""Configuration with the origin of each value, and provenance; both folded away."""

from __future__ import annotations

import json
from collections.abc import Mapping

from nemo_uecr.config.dotted import flattened
from nemo_uecr.report.markup import DASH, text
from nemo_uecr.report.section import Section, run_key
from nemo_uecr.telemetry.run_folder import RunFolder


def configuration_section(runs: list[RunFolder]) -> Section:
    """Folded tables, one column a run; keys whose values differ come first."""
    configs = [_texts(run.config) for run in runs]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    differing = [key for key in keys if len({config.get(key, DASH) for config in configs}) > 1]
    whole = _table(runs, configs, keys, origins=True)
    fold = f"<details><summary>Configuration ({len(keys)} keys)</summary>{whole}</details>"
    if differing:
        fold = f"<h3>What differs</h3>{_table(runs, configs, differing, origins=True)}{fold}"
    facts = [_texts(run.provenance) for run in runs]
    names = list(dict.fromkeys(name for fact in facts for name in fact))
    fold += f"<details><summary>Provenance</summary>{_table(runs, facts, names, origins=False)}</details>"
    return Section("configuration", "Configuration and provenance", fold)


def _texts(content: Mapping[str, object]) -> dict[str, str]:
    """Nested content as dotted keys with JSON values; lists stay whole."""
    flat = flattened(content)
    return {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for key, value in flat.items()
    }


def origin_of(run: RunFolder, key: str) -> str:
    """Where a key's value came from; a section given as a whole answers for the keys below it."""
    parts = key.split(".")
    for depth in range(len(parts), 0, -1):
        origin = run.origins.get(".".join(parts[:depth]))
        if origin is not None:
            return str(origin)
    return ""


def _table(runs: list[RunFolder], values: list[dict[str, str]], keys: list[str], *, origins: bool) -> str:
    head = "".join(
        f'<th scope="col">{run_key(run.label, index) if len(runs) > 1 else "Value"}</th>'
        for index, run in enumerate(runs)
    )
    single = origins and len(runs) == 1
    if single:
        head += '<th scope="col">Origin</th>'
    rows = []
    for key in keys:
        cells = []
        for run, flat in zip(runs, values, strict=True):
            origin = text(origin_of(run, key)) if origins else ""
            shown = text(flat.get(key, DASH))
            if single:
                cells.append(f"<td><code>{shown}</code></td><td>{origin}</td>")
            else:
                cells.append(f"<td><code>{shown}</code>{f'<small>{origin}</small>' if origin else ''}</td>")
        rows.append(f'<tr><th scope="row"><code>{text(key)}</code></th>{"".join(cells)}</tr>')
    return (
        f'<div class="scroll"><table class="configuration"><thead><tr><th scope="col">Key</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
