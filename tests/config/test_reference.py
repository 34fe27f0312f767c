"""The reference page and the shipped base stay true to the schema."""

from __future__ import annotations

from pathlib import Path

import yaml

from nemo_uecr.config.load import known_keys, section_of
from nemo_uecr.config.reference import nemo_reference_page, reference_page
from nemo_uecr.config.schema import Config

ROOT = Path(__file__).resolve().parents[2]


def test_the_pages_are_current() -> None:
    pages = {"configuration.md": reference_page(), "configuration-nemo-rl.md": nemo_reference_page()}
    for name, page in pages.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == page, f"{name}: run make pages"


def test_the_base_states_every_required_key() -> None:
    base = yaml.safe_load((ROOT / "examples" / "configs" / "local" / "base.yaml").read_text(encoding="utf-8"))
    stated = {
        f"{section}.{key}" if isinstance(value, dict) else section
        for section, value in base.items()
        for key in (value if isinstance(value, dict) else [None])
    }
    required = {name for name, field in known_keys(Config).items() if field.is_required() and not section_of(field)}
    assert required - stated == set()
