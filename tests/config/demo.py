"""The demo's configuration, and what is refused on top of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.config.load import load_config
from nemo_uecr.errors import ConfigError

CONFIGS = Path(__file__).resolve().parents[2] / "examples" / "configs"
DEMO = CONFIGS / "local" / "demo.yaml"


def refusal(*overrides: str, path: Path = DEMO) -> str:
    """The one line that a configuration is refused with."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message
