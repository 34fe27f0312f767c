"""Our reading of recipes against NeMo-RL's own, for every recipe of the tree."""

from __future__ import annotations

import contextlib
import functools
import random
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.config import recipes
from nemo_uecr.config.overrides import parsed
from nemo_uecr.config.recipes import Recipe, load_recipe
from nemo_uecr.errors import ConfigError
from nemo_uecr.nemo.layout import job_of, layout_faults
from nemo_uecr.nemo.recipe import section_of
from nemo_uecr.nemo.rules import adjusted, faults_of, notes
from nemo_uecr.start.checks import CONFIG, require
from nemo_uecr.start.recipe_form import accepted, family_faults, native_schema, of_recipe
from tests.config.shipped import CONFIGS, GIVEN
from tests.conftest import ROOT
from tests.nemo.inside.conftest import SOURCE
from tests.nemo.made_recipe import METHOD

EXAMPLES = Path(SOURCE or ".") / "examples"
#: Variables that some recipes interpolate.
VARIABLES = {"HF_HOME": "/caches/hf", "PERSISTENT_CACHE": "/caches/all"}
OVERRIDES = [
    "grpo.num_prompts_per_step=6", "++policy.megatron_cfg.tensor_model_parallel_size=2",
    "+uecr.method={name: uecr, alpha: 1}", "~grpo.max_rollout_turns",
    "++policy.generation.stop_strings=['</s>','a, b']",
    "++logger.log_dir=${checkpointing.checkpoint_dir}/x",
    "++data.train={dataset_name: mine, data_path: a/b.jsonl}", '++policy.tokenizer.chat_template="{{ x }}"',
    "++uecr.teacher.model_name=Qwen/Qwen3-8B", "++policy.max_total_sequence_length=1_024",
]  # fmt: skip


#: Of so many files one is read where all of them would take a minute.
FEW = 6
#: Files that others inherit, by who composed them and path.
COMPOSED: dict[tuple[Any, Path], Any] = {}


@pytest.fixture(autouse=True)
def _readable(nemo_rl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables; each file that others inherit is composed once by NeMo-RL and once here."""
    from nemo_rl.utils import config

    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    for module, name in ((recipes, "_composed"), (config, "load_config_with_inheritance")):
        monkeypatch.setattr(module, name, functools.partial(_composed_once, getattr(module, name)))


def _composed_once(composed: Any, path: str | Path, *above: Any) -> Any:
    """Without its markers, which a merge uses up, a file is the same wherever it is inherited: with others above it."""
    if not any(above) or re.search(r"\b_override_\b", Path(path).read_text("utf-8")):
        return composed(path, *above)
    key = composed, Path(path).resolve()
    if key not in COMPOSED:
        COMPOSED[key] = composed(path, *above)
    return COMPOSED[key]


@functools.cache
def grpo_recipes(every: int = 1) -> dict[Path, Any]:
    """The files below examples/ that have, or inherit, a section grpo, with their values as NeMo-RL resolves them.

    One file in ``every`` is looked at.
    """
    found = {}
    for path in sorted(EXAMPLES.rglob("*.yaml"))[::every]:
        with contextlib.suppress(AssertionError, FileNotFoundError):  # lists, and files for other loaders
            config = native_config(path)
            if "grpo" in config:
                found[path] = resolved(config)
    return found


@functools.cache
def ours(path: Path) -> Recipe:
    return load_recipe(path, [])


def native_config(path: Path) -> Any:
    from nemo_rl.utils.config import load_config, register_omegaconf_resolvers

    register_omegaconf_resolvers()
    return load_config(path)


def resolved(config: Any) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(config, resolve=True)


def theirs(path: Path, overrides: list[str]) -> Any:
    from nemo_rl.utils.config import parse_hydra_overrides

    return resolved(parse_hydra_overrides(native_config(path), overrides))


@pytest.mark.parametrize("every", [FEW, pytest.param(1, marks=pytest.mark.slow)])
def test_every_recipe_resolves_as_nemo_rl_resolves_it(every: int) -> None:
    assert len(grpo_recipes(every)) > 170 / every
    wrong = [str(path) for path, native in grpo_recipes(every).items() if not _same(ours(path).values, native)]
    assert wrong == []


@pytest.mark.slow
def test_of_the_shipped_recipes_one_key_is_doubted_and_nothing_reads_it(nemo_rl: str) -> None:
    """Main's loop reads `val_num_generations_per_prompt` since it is there."""
    doubted = [doubt.partition(" ")[0] for path in grpo_recipes() for doubt in ours(path).doubts]
    assert doubted == ([] if nemo_rl == "0.7.0" else ["grpo.num_val_generations_per_prompt"])
    code = "".join(path.read_text("utf-8") for path in (Path(SOURCE or ".") / "nemo_rl").rglob("*.py"))
    assert [key for key in doubted if re.search(rf"\b{key.partition('.')[2]}\b", code)] == []


def test_overrides_resolve_as_nemo_rl_resolves_them() -> None:
    for path in [*grpo_recipes(FEW)][::2]:
        assert _same(load_recipe(path, OVERRIDES).values, theirs(path, OVERRIDES)), path


@pytest.mark.parametrize("name", ["uecr_qwen3_1p7b", "uecr_qwen3_4b", "grpo_teacher_qwen3_4b", "grpo_teacher_qwen3_8b"])
def test_nemo_rls_schema_accepts_the_shipped_recipes(name: str, nemo_rl: str) -> None:
    given = [] if name.startswith("grpo") else GIVEN["4b" if "4b" in name else "1p7b"]
    recipe = load_recipe(CONFIGS / f"{name}.yaml", given)
    assert _same(recipe.values, theirs(CONFIGS / f"{name}.yaml", given))
    section = section_of(recipe.values)
    assert (faults_of(recipe.values, section), adjusted(recipe.values, section), notes(recipe.values)) == ([], [], [])
    assert native_schema(recipe, nemo_rl) == f"NeMo-RL {nemo_rl}: its schema accepts the recipe"
    wrong = load_recipe(CONFIGS / f"{name}.yaml", [*given, "loss_fn.ratio_clip_min=low"])
    with pytest.raises(ConfigError, match=r"refuses loss_fn\.ratio_clip_min: .* \(got 'low'\)"):
        native_schema(wrong, nemo_rl)


def test_the_pages_recipe_of_own_problems_is_accepted(nemo_rl: str, tmp_path: Path) -> None:
    """The block of docs/nemo-rl.md, beside NeMo-RL's file, with the files that it names."""
    text = re.search(r"```yaml\n(# own_problems\.yaml\n.*?)```", PAGE, re.S)
    assert text is not None
    shutil.copytree(EXAMPLES / "configs", tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("recipes"))
    (tmp_path / "own_problems.yaml").write_text(text[1])
    (tmp_path / "rewards.py").write_text("def short(solution_str, extra_info): return 1.0\n")
    (tmp_path / "problems.jsonl").write_text('{"question": "1+2", "answer": "3"}\n' * 64)
    recipe = load_recipe(
        tmp_path / "own_problems.yaml", [f"uecr.data.train={tmp_path}/problems.jsonl", SHORT.format(tmp_path)]
    )
    require(of_recipe(accepted(recipe), ray_port=0, resources=None), CONFIG)
    assert native_schema(recipe, nemo_rl) == f"NeMo-RL {nemo_rl}: its schema accepts the recipe"


#: The page's rewards, with a file that is there.
SHORT = "uecr.reward=[math,{{call: '{}/rewards.py:short', weight: 0.2}}]"
PAGE = (Path(ROOT) / "docs" / "nemo-rl.md").read_text("utf-8")
TABLE = re.findall(r"^\| .* \| `([\w.]+)` \| (\d+) \| (\d+) \|$", PAGE, re.M)


@pytest.mark.slow
def test_the_table_of_the_page_is_what_the_check_says(nemo_rl: str) -> None:
    """Every recipe with a method and a teacher is accepted, or refused with a key, its value and a reason."""
    counted, accepted = Counter[str](), 0
    for path in grpo_recipes():
        found = refusals({**ours(path).values, "uecr": {"method": METHOD, "teacher": {"model_name": "teacher"}}})
        assert all(re.match(r"[\w.]+: (got .*|missing.*); .+", fault) for fault in found), found
        counted.update({fault.partition(":")[0] for fault in found})
        accepted += not found
    column = 1 if nemo_rl == "0.7.0" else 2
    numbers = {row[0]: int(row[column]) for row in TABLE}
    assert {key: counted[key] for key in numbers} == numbers
    said = re.search(r"^\| \*\*accepted\*\*, of (\d+) and (\d+) \| \| (\d+) \| (\d+) \|$", PAGE, re.M)
    assert said is not None
    assert (len(grpo_recipes()), accepted) == (int(said[column]), int(said[2 + column]))


def refusals(values: dict[str, Any]) -> list[str]:
    """Why a recipe is refused: keys first, then what its policies say when they are built."""
    section = section_of(values)
    if faults := faults_of(values, section):
        return faults
    job = job_of(values, section)
    return layout_faults(job) + family_faults(job)


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
            read_here = parsed(text)
        except ConfigError:
            assert expected is None, text
            continue
        assert expected is not None, text
        assert (read_here.kind, read_here.key, repr(read_here.value)) == (
            kinds[expected.type.name], expected.key_or_group, repr(expected.value()),
        ), text  # fmt: skip
        read += 1
    assert read > 600
