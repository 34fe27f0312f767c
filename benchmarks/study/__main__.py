"""The command of a study.

python -m benchmarks.study examples/configs/study/small.yaml
"""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from benchmarks.study.grid import check_overrides
from benchmarks.study.runner import forecast, other_code, run_study, summarise
from benchmarks.study.schema import load_study
from nemo_uecr.cli.common import family, say
from nemo_uecr.cli.main import entry_point
from nemo_uecr.errors import require_extra
from nemo_uecr.files import locked
from nemo_uecr.stopping import listening

logger = logging.getLogger(__name__)

app = family("python -m benchmarks.study")


@app.default
def study(
    config: Annotated[str, Parameter(help="Study file.")], /, *, budget: bool = False, tables_only: bool = False
) -> None:
    """Run a grid of methods on several students, with tables and figures.

    Prints the budget first. Run it again after an interruption: finished runs are kept, unfinished ones continue from
    their checkpoints.

    Args:
        budget: Print the budget and stop.
        tables_only: Rebuild tables and figures from the finished runs; train nothing.
    """
    require_extra("local", "plots")
    loaded = load_study(config)
    if tables_only:
        with locked(Path(loaded.folder)):
            say(*other_code(loaded), f"summary: {summarise(loaded)}")
        return
    check_overrides(loaded)  # a misspelt override must not wait for its turn
    with contextlib.nullcontext() if budget else locked(Path(loaded.folder)):
        say(*forecast(loaded))
        if not budget:
            with listening() as stop:
                say(f"summary: {run_study(loaded, stop=stop, report=logger.info)}")


if __name__ == "__main__":
    sys.exit(entry_point(commands=app))
