"""The verifier beside what NeMo-RL installs: hydra-core pins antlr 4.9.3, and with it an older grammar."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from nemo_uecr.verifier.extract import Verdict
from nemo_uecr.verifier.pool import judge
from tests.verifier.test_compare import VERDICTS

pytestmark = pytest.mark.usefixtures("nemo_rl")

PERCENTAGES = [line for line in VERDICTS.splitlines() if " ::: " in line and ("%" in line or "percent" in line)]


def test_percentages_with_the_antlr_of_hydra() -> None:
    assert version("antlr4-python3-runtime").startswith("4.9")
    for line in PERCENTAGES:
        answer, reference = line[2:].split(" ::: ")
        assert judge(answer, reference) is (Verdict.CORRECT if line[0] == "+" else Verdict.WRONG), line
    assert PERCENTAGES
