"""The reference page and the shipped base stay true to the schema."""

from __future__ import annotations

from pathlib import Path

import yaml

from nemo_uecr.config.keys import known_keys, section_names
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.config.reference import nemo_reference_page, reference_page

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == reference_page(), "run: python -m nemo_uecr.config.reference > docs/configuration.md"


def test_the_page_names_every_key_and_section() -> None:
    page = reference_page()
    assert [name for name in known_keys() if f"| `{name}` |" not in page] == []
    assert [name for name in section_names() if f"## `{name}`" not in page] == []


def test_the_page_of_the_nemo_rl_back_end_is_current_and_complete() -> None:
    page = (ROOT / "docs" / "configuration-nemo-rl.md").read_text(encoding="utf-8")
    renew = "run: python -m nemo_uecr.config.reference nemo_rl > docs/configuration-nemo-rl.md"
    assert page == nemo_reference_page(), renew
    assert [name for name in known_keys(NemoConfig) if page.count(f"| `{name}` |") != 1] == []


def test_the_base_states_every_required_key() -> None:
    base = yaml.safe_load((ROOT / "examples" / "configs" / "local" / "base.yaml").read_text(encoding="utf-8"))
    stated = {
        f"{section}.{key}" if isinstance(value, dict) else section
        for section, value in base.items()
        for key in (value if isinstance(value, dict) else [None])
    }
    required = {key.name for key in known_keys().values() if key.required}
    assert required - stated == set()
