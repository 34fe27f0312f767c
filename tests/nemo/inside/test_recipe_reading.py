"""Our reading of recipes against NeMo-RL's own, for every recipe of the tree."""

from __future__ import annotations

import contextlib
import copy
import functools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.config.overrides import parsed
from nemo_uecr.config.recipes import load_recipe
from nemo_uecr.errors import ConfigError
from tests.nemo.inside.conftest import SOURCE

EXAMPLES = Path(SOURCE or ".") / "examples"
#: Variables that some recipes interpolate.
VARIABLES = {"HF_HOME": "/caches/hf", "PERSISTENT_CACHE": "/caches/all"}
OVERRIDES = [
    "grpo.num_prompts_per_step=6", "++policy.megatron_cfg.tensor_model_parallel_size=2",
    "+uecr.method={name: uecr, alpha: 1}", "~grpo.seed", "++policy.generation.stop_strings=['</s>','a, b']",
    "++logger.log_dir=${checkpointing.checkpoint_dir}/x",
    "++data.train={dataset_name: mine, data_path: a/b.jsonl}", '++policy.tokenizer.chat_template="{{ x }}"',
    "++uecr.teacher.model_name=Qwen/Qwen3-8B", "++policy.max_total_sequence_length=1_024",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _readable(nemo_rl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables, and each file read from disk once."""
    from omegaconf import OmegaConf

    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    read = functools.cache(OmegaConf.load)
    monkeypatch.setattr(OmegaConf, "load", lambda path: copy.deepcopy(read(str(Path(path).resolve()))))


def grpo_recipes() -> Iterator[Path]:
    """Every file below examples/ that has, or inherits, a section grpo."""
    from nemo_rl.utils.config import load_config

    for path in sorted(EXAMPLES.rglob("*.yaml")):
        with contextlib.suppress(AssertionError, FileNotFoundError):  # lists, and files for other loaders
            if "grpo" in load_config(path):
                yield path


def theirs(path: Path, overrides: list[str]) -> Any:
    from nemo_rl.utils.config import load_config, parse_hydra_overrides, register_omegaconf_resolvers
    from omegaconf import OmegaConf

    register_omegaconf_resolvers()
    config = load_config(path)
    return OmegaConf.to_container(parse_hydra_overrides(config, overrides) if overrides else config, resolve=True)


def test_every_recipe_resolves_as_nemo_rl_resolves_it() -> None:
    paths = list(grpo_recipes())
    assert len(paths) > 170
    wrong = [str(path) for path in paths if not _same(load_recipe(path, []).values, theirs(path, []))]
    assert wrong == []


def test_overrides_resolve_as_nemo_rl_resolves_them() -> None:
    for path in list(grpo_recipes())[::12]:
        assert _same(load_recipe(path, OVERRIDES).values, theirs(path, OVERRIDES)), path


def _same(ours: object, native: object) -> bool:
    return repr(_sorted(ours)) == repr(_sorted(native))  # tells 1 from 1.0 and from True


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value, key=str)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


#: Letters that mean something in a value, and what is read as one piece.
PIECES = [
    *"a1-+'\"\\,:[]{}=$/_@~%)#|* \té", "1e-6", ".5", "1.", "true", "null", "NaN", "inf", "\\'", '\\"', "${a.b}", "${",
    "x.y", "\\,", "\\:", "007", "1_000", "a-b",
]  # fmt: skip


def test_any_text_is_read_as_hydra_reads_it() -> None:
    """Pieces of values at random: the same kind, key and value, or refused by both."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, draw, read = OverridesParser.create(), random.Random(7), 0
    kinds = {"CHANGE": "change", "ADD": "add", "FORCE_ADD": "set", "DEL": "delete"}
    for _ in range(3000):
        value = "".join(draw.choice(PIECES) for _ in range(draw.randint(0, 6)))
        form = draw.choice(["{}", "{}", "'{}'", "{{a: {}, b: [1,{}]}}"])
        key = draw.choice(["a.b", "a", "policy.megatron_cfg.x-y", "a.0", "a..b", "$x", "a.01", "1a"])
        text = f"{draw.choice(['', '+', '++', '~'])}{key}={form.format(value, value)}"
        try:
            native = parser.parse_override(text)
            expected = None if native.is_sweep_override() or native.package is not None else native
        except HydraException:
            expected = None
        try:
            ours = parsed(text)
        except ConfigError:
            assert expected is None, text
            continue
        assert expected is not None, text
        assert (ours.kind, ours.key, repr(ours.value)) == (
            kinds[expected.type.name], expected.key_or_group, repr(expected.value()),
        ), text  # fmt: skip
        read += 1
    assert read > 600
