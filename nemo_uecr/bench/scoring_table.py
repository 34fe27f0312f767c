"""The scoring benchmark's results as a table for people."""

from __future__ import annotations

from typing import Any


def table(results: dict[str, Any]) -> str:
    """Markdown: one row a case, then the ratios."""
    lines = ["| case | CPU s | wall s | extra MiB | error logp | error H | collectives |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name, case in results["cases"].items():
        if "absent" in case:
            lines.append(f"| {name} | absent: {case['absent']} | | | | | |")
            continue
        cells = [_number(case[key]) for key in ("cpu_s", "wall_s", "peak_extra_mb", "error_logp", "error_entropy")]
        lines.append(f"| {name} | {' | '.join(cells)} | {case['collectives'] or ''} |")
    lines += ["", "| ratio | value |", "|---|---|"]
    for group in ("ratios", "ratios_bfloat16", "ratios_fused", "two_temperatures", "max_error"):
        lines += [f"| {group}: {name} | {_number(value)} |" for name, value in results[group].items()]
    for name in ("two_threads_wall", "collectives", "bytes_per_token", "peak_extra_mb", "peak_extra_mb_fused"):
        lines.append(f"| {name} | {_number(results[name])} |")
    lines += ["", ", ".join(f"{name} {value or 'absent'}" for name, value in results["versions"].items()), ""]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
