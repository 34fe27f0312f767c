"""Write docs/metrics.md from `nemo_uecr/telemetry/metric_table.py`; a test holds the page current.

python tools/metrics_page.py > docs/metrics.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from nemo_uecr.telemetry.metric_table import METRICS, Metric

_OPENING = """\
# Metrics

Every metric of a training step, by its name in `metrics.jsonl`, TensorBoard, Weights & Biases and MLflow; NeMo-RL's
own logger puts `train/` before it. `python tools/metrics_page.py` writes this page from
`nemo_uecr/telemetry/metric_table.py`: edit the table, not the page.

A metric that a run does not have is absent, never zero: `grpo` has no line under `teacher/` or `ecr/`, a step without
mixed groups has no `advantage/sign_flip_share`, and a part of a split without tokens has no mean. In the local back
end a value that is not finite stops the run.

`telemetry.tensorboard`, `telemetry.wandb` and `telemetry.mlflow` choose further clients
([configuration.md](configuration.md)). With `offline` nothing leaves the machine: W&B writes
`RUN/wandb/offline-run-*`, which `wandb sync` uploads later; MLflow writes `RUN/mlflow.db`, which
`mlflow ui --backend-store-uri sqlite:///RUN/mlflow.db` shows.
"""

#: Prefix -> when its metrics are there.
_PRESENCE = {
    "reward": "The verifier's reward always; the teacher's and the unified one where the method has them.",
    "group": "Prompt groups, each counted once.",
    "advantage": "The final token advantage, and PUU's components where the method has them.",
    "policy": "The actor update. `policy/ref_kl` where the reference KL has a weight.",
    "response": "Lengths and truncation.",
    "count": "Batch facts; `nemo-uecr audit batch` checks that they agree.",
    "teacher": "Only for methods that read the teacher; `teacher/entropy_*` where the method reads its entropy.",
    "ecr": "Only for methods with token credit.",
    "identity": "Residuals of the identities that the method declares; a violation stops the run.",
    "evaluation": "Told to the clients only; the file has `evaluation.jsonl`, with every set by itself.",
    "memory": "Memory; `memory/peak_gpu_mb` on a GPU.",
    "time": "Seconds of each phase; a phase that did not run is absent.",
    "throughput": "Tokens by time.",
    "outcome": "The tokens of rewarded responses apart from the others.",
    "position": "The quarters of a response apart: token i of L (from 0) lies in quarter floor(4 i / L).",
    "entropy_bin": "Where the teacher is sure and where it is not; only where the method reads the teacher's entropy.",
}


def metrics_page() -> str:
    """The page as Markdown."""
    return _OPENING + "".join(line + "\n" for line in _lines())


def _lines() -> Iterator[str]:
    for prefix in dict.fromkeys(name.partition("/")[0] for name in METRICS):
        yield from ("", f"## `{prefix}/`", "", _PRESENCE[prefix], "")
        yield from ("| metric | unit | reduction | meaning |", "|---|---|---|---|")
        yield from (_row(metric) for name, metric in METRICS.items() if name.startswith(f"{prefix}/"))


def _row(metric: Metric) -> str:
    cells = (f"`{metric.name}`", metric.unit, metric.reduction, metric.meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(metrics_page())
