"""What the scoring benchmark's cases say together: ratios, largest errors, traffic, and what they were measured on."""

from __future__ import annotations

from typing import Any

from nemo_uecr.bench.surroundings import surroundings


def report(results: dict[str, dict[str, Any]], sizes: dict[str, int]) -> dict[str, Any]:
    """The ratios, theirs over ours in processor time of one thread a process, and what they rest on.

    Args:
        results: figures of every case by its name.
        sizes: how large the problems were, by the names of `bench.scoring.Sizes`.
    """
    ours = results["dense/ours/float32"]
    sharded = results["sharded/ours/float32"]
    near_8 = results["dense/ours_log_z_8/float32"]
    return {
        "ratios": ratios(results, "float32"),
        "ratios_bfloat16": ratios(results, "bfloat16"),
        "ratios_fused": fused_ratios(results),
        "two_temperatures": {
            dtype: quotient(results[f"dense/ours_two/{dtype}"], results[f"dense/ours/{dtype}"])
            for dtype in ("float32", "bfloat16")
        },
        "two_threads_wall": results["dense/plain_2_threads/float32"]["wall_s"]
        / results["dense/ours_2_threads/float32"]["wall_s"],
        "collectives": sharded["collectives"],
        "bytes_per_token": sharded["collective_bytes"] / sizes["sharded_tokens"],
        "peak_extra_mb": max_of(ours["peak_extra_mb"], results["dense/ours/bfloat16"]["peak_extra_mb"]),
        "peak_extra_mb_fused": results["fused/ours@/bfloat16"]["peak_extra_mb"],
        "max_error": {
            "logp_log_z_25": ours["error_logp"],
            "entropy_log_z_25": ours["error_entropy"],
            "logp_log_z_8": near_8["error_logp"],
            "entropy_log_z_8": near_8["error_entropy"],
        },
        "sizes": sizes,
        "cases": results,
        "versions": surroundings(),
    }


def ratios(results: dict[str, dict[str, Any]], dtype: str) -> dict[str, float | None]:
    """How many times slower each rival is on logits of one dtype; null where a rival is absent."""
    ours, sharded = results[f"dense/ours/{dtype}"], results[f"sharded/ours/{dtype}"]
    return {
        "naive_fp32": quotient(results[f"dense/plain/{dtype}"], ours),
        "trl": quotient(best(results, "dense/trl@", dtype), ours),
        "verl": quotient(best(results, "dense/verl@", dtype), ours),
        "ours_without_native": quotient(results[f"dense/ours_torch/{dtype}"], ours),
        "nemo_rl_tp2_chunk1024": quotient(results[f"sharded/nemo_rl@1024/{dtype}"], sharded),
        "nemo_rl_tp2_best": quotient(best(results, "sharded/nemo_rl@", dtype), sharded),
        "areal_tp2_chunk1024": quotient(results[f"sharded/areal@1024/{dtype}"], sharded),
        "areal_tp2_best": quotient(best(results, "sharded/areal@", dtype), sharded),
    }


def fused_ratios(results: dict[str, dict[str, Any]]) -> dict[str, float | None]:
    """The fused head over the bare product, and how many times slower each rival head is."""
    ours = results["fused/ours@/bfloat16"]
    return {
        "ours_over_bare_product": quotient(ours, best(results, "fused/product@", "bfloat16")),
        "ours_over_product_in_our_tiles": quotient(ours, results["fused/product@tiled/bfloat16"]),
        "naive": quotient(results["fused/plain@/bfloat16"], ours),
        "trl": quotient(best(results, "fused/trl@", "bfloat16"), ours),
        "liger": quotient(best(results, "fused/liger@", "bfloat16"), ours),
        "verl": quotient(best(results, "fused/verl@", "bfloat16"), ours),
    }


def best(results: dict[str, dict[str, Any]], prefix: str, dtype: str) -> dict[str, Any]:
    """The fastest setting of a rival, or an absent one."""
    found = [result for name, result in results.items() if name.startswith(prefix) and name.endswith(dtype)]
    return min(found, key=lambda result: result.get("cpu_s", float("inf")))


def quotient(theirs: dict[str, Any], ours: dict[str, Any]) -> float | None:
    """Processor time of one over the other; None where one is absent."""
    if "absent" in theirs or "absent" in ours:
        return None
    return float(theirs["cpu_s"] / ours["cpu_s"])


def max_of(*values: float | None) -> float | None:
    """The largest, or None where one is unknown."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None
