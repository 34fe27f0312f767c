"""Recipes of NeMo-RL's as it reads them: inheritance, overrides in its spelling, interpolations, origins."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.config.load import OVERRIDE
from nemo_uecr.config.overrides import parsed
from nemo_uecr.config.recipes import is_recipe, load_recipe
from nemo_uecr.errors import ConfigError

BASE = """
grpo:
  num_prompts_per_step: 8
  shaping: {enabled: true, length: "${policy.length}"}
  lists: [1, 2, 3]
policy:
  model_name: ???
  length: 512
  packed: "${mul:${policy.length}, 4}"
  optimizer: {lr: 1.0e-6, betas: [0.9, 0.999]}
  scheduler: [{name: a}, {name: b}]
"""
CHILD = """
defaults: base.yaml
grpo:
  _override_: true
  num_prompts_per_step: 16
policy:
  length: 1024
  optimizer: null
"""


@pytest.fixture
def child(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "recipes").mkdir()
    path = tmp_path / "recipes" / "child.yaml"
    path.write_text(CHILD.replace("base.yaml", "../base.yaml"))
    return path


def test_a_file_inherits_relative_to_itself_and_interpolates_at_the_end(child: Path) -> None:
    recipe = load_recipe(child, ["policy.model_name=m"])
    assert recipe.values["grpo"] == {"num_prompts_per_step": 16}
    assert recipe.values["policy"] == {
        "model_name": "m", "length": 1024, "packed": 4096, "optimizer": None,
        "scheduler": [{"name": "a"}, {"name": "b"}],
    }  # fmt: skip
    assert recipe.origins["policy.length"] == str(child)
    assert recipe.origins["policy.packed"] == str(child.parent.parent / "base.yaml")
    assert recipe.origins["policy.model_name"] == OVERRIDE


@pytest.mark.parametrize(
    ("written", "overrides", "doubted"),
    [
        ("policy: {lenght: 2048}", [], ["policy.lenght", "length"]),
        ("polcy: {length: 2048}", [], ["polcy", "policy"]),
        ("grpo: {num_prompt_per_step: 4}", [], ["grpo.num_prompt_per_step", "num_prompts_per_step"]),
        ("policy: {length: 2048}", ["++policy.optimizer={}", "++policy.optimiser.lr=1.0"], []),
        ("policy: {length: 2048}", ["+policy.model_nam=m"], ["policy.model_nam", "model_name"]),
        ("grpo: {num_val_prompts_per_step: 4}", ["++policy.packed_rows=1", "++uecr.folde=x"], []),
        ("data: {train: {dataset: x}}", [], []),
    ],
)
def test_a_new_key_that_almost_is_an_inherited_one_is_doubted(
    child: Path, written: str, overrides: list[str], doubted: list[str]
) -> None:
    """NeMo-RL takes it, and reads the other; with `key=` it would refuse it."""
    path = child.with_name("mine.yaml")
    path.write_text(f"defaults: ../base.yaml\n{written}\n")
    doubts = load_recipe(path, ["policy.model_name=m", *overrides]).doubts
    if not doubted:
        assert doubts == ()
        return
    key, other = doubted
    where = f"override {overrides[0]}" if overrides else str(path)
    assert doubts == (
        f"{key} ({where}) is new beside the inherited {other}, which keeps its value; NeMo-RL reads no misspelt key",
    )


def test_of_several_parents_the_last_wins(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("grpo: {x: 1, y: {z: 1}}\n")
    (tmp_path / "b.yaml").write_text("grpo: {x: 2, w: [1]}\n")
    (tmp_path / "c.yaml").write_text("defaults: [a.yaml, b.yaml]\ngrpo: {w: [5, 6]}\n")
    assert load_recipe(tmp_path / "c.yaml", []).values == {"grpo": {"x": 2, "y": {"z": 1}, "w": [5, 6]}}


def test_an_empty_mapping_that_would_leave_the_inherited_one_says_so(tmp_path: Path) -> None:
    """NeMo-RL merges files so; of its own sections it may be meant."""
    (tmp_path / "a.yaml").write_text("grpo: {x: {y: 1}}\nuecr: {evaluation: {benchmarks: {b: c, d: e}}}\n")
    (tmp_path / "b.yaml").write_text("defaults: a.yaml\nuecr: {evaluation: {benchmarks: {}}}\n")
    with pytest.raises(
        ConfigError, match=r"benchmarks: \{\} would leave the inherited b, d, .*: ~uecr\.evaluation\.benchm"
    ):
        load_recipe(tmp_path / "b.yaml", [])
    (tmp_path / "b.yaml").write_text("defaults: a.yaml\ngrpo: {x: {}}\n")
    values = load_recipe(tmp_path / "b.yaml", ["~uecr.evaluation.benchmarks.b", "~uecr.evaluation.benchmarks.d"]).values
    assert (values["grpo"], values["uecr"]["evaluation"]["benchmarks"]) == ({"x": {"y": 1}}, {})


def test_what_a_parent_leaves_open_a_child_gives(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("policy: ???\ngrpo:\n  x: ???\n  y: 1\n")
    (tmp_path / "b.yaml").write_text("defaults: a.yaml\npolicy: {z: 1}\ngrpo: {x: 2}\n")
    assert load_recipe(tmp_path / "b.yaml", []).values == {"policy": {"z": 1}, "grpo": {"x": 2, "y": 1}}
    assert load_recipe(tmp_path / "a.yaml", []).values == {"policy": "???", "grpo": {"x": "???", "y": 1}}


@pytest.mark.parametrize(
    ("overrides", "key", "value"),
    [
        (["policy.length=64"], "packed", 256),
        (["policy.model_name=Qwen/Qwen3-4B"], "model_name", "Qwen/Qwen3-4B"),
        (["policy.model_name='a: b, c'"], "model_name", "a: b, c"),
        (['policy.model_name="say \\"yes\\""'], "model_name", 'say "yes"'),
        (["policy.model_name="], "model_name", ""),
        (["policy.optimizer={lr: 1e-5, betas: [0.8, 0.9]}"], "optimizer", {"lr": 1e-5, "betas": [0.8, 0.9]}),
        (["++policy.optimizer.lr=3e-6"], "optimizer", {"lr": 3e-6}),
        (["+policy.new.deeper=[a,null,TRUE,'1',1_000]"], "new", {"deeper": ["a", None, True, "1", 1000]}),
        (["++policy.length=7", "~policy.packed"], "packed", None),
        (["~policy.length=1024", "+policy.length=2"], "length", 2),
        (["policy.model_name=${policy.length}"], "model_name", 1024),
        (["policy.scheduler=[]"], "scheduler", []),
        (["policy.packed='${div:${policy.length}, 2}'"], "packed", 512),
    ],
)
def test_overrides_are_spelled_as_in_nemo_rl(child: Path, overrides: list[str], key: str, value: object) -> None:
    given = overrides if any("policy.model_name" in text for text in overrides) else ["policy.model_name=m", *overrides]
    assert load_recipe(child, given).values["policy"].get(key) == value


def test_a_mapping_is_merged_where_the_recipe_has_one(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("grpo: {x: {y: 1, z: 2}}\n")
    assert load_recipe(tmp_path / "a.yaml", ["grpo.x={y: 5}"]).values["grpo"]["x"] == {"y": 5, "z": 2}
    assert load_recipe(tmp_path / "a.yaml", ["+grpo.x={w: 5}"]).values["grpo"]["x"] == {"y": 1, "z": 2, "w": 5}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("policy.lenght=64", "has no key policy.lenght, the nearest is policy.length; write ++policy.lenght="),
        ("+policy.length=64", "the recipe has the key policy.length; write policy.length= or ++policy.length="),
        ("~policy.lenght", "has no value at policy.lenght"),
        ("~policy.length=7", "the value is 1024"),
        ("policy.length", "expected key=value"),
        ("policy.length =64", "expected key=value"),
        ("policy.length=1,2", "a run has one value; write [a,b] for a list"),
        ("policy.length=int(3)", "functions are not read here"),
        ("policy.optimizer={lr: 1", "unexpected 'its end'"),
        ("policy.model_name=a:[b", "unexpected '["),
        ("policy.model_name=#1", "'#1' is not readable; put the value in quotes"),
        ("policy.length=${polcy.length}", "policy.length: Interpolation key 'polcy.length' not found"),
    ],
)
def test_a_wrong_override_is_one_line_that_says_what_to_write(child: Path, override: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_recipe(child, ["policy.model_name=m", override])
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "kind", "key", "value"),
    [
        ("a.b=1", "change", "a.b", 1), ("+a=b c", "add", "a", "b c"), ("++a=.5", "set", "a", 0.5),
        ("~a.b", "delete", "a.b", None),
        ("a=", "change", "a", ""), ("a=null", "change", "a", None), ("a=1e-6", "change", "a", 1e-6),
        ("a=0x1", "change", "a", "0x1"),
        ("a= x ", "change", "a", "x"), ("a=007", "change", "a", "007"), ("a=true-ish", "change", "a", "true-ish"),
        ("a=C:/x", "change", "a", "C:/x"), (r"a=x\,y", "change", "a", "x,y"),
        ("a=[[1,2],{b: c}]", "change", "a", [[1, 2], {"b": "c"}]),
        ("a={1: x, null: y}", "change", "a", {1: "x", None: "y"}), (r"a='\\'", "change", "a", "\\"),
    ],
)  # fmt: skip
def test_values_are_what_hydra_reads(text: str, kind: str, key: str, value: object) -> None:
    override = parsed(text)
    assert (override.kind, override.key, override.value) == (kind, key, value)


def test_a_missing_parent_and_a_circle_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("defaults: b.yaml\n")
    with pytest.raises(ConfigError, match=r"b\.yaml \(.*a\.yaml inherits it\): cannot be read"):
        load_recipe(tmp_path / "a.yaml", [])
    (tmp_path / "b.yaml").write_text("defaults: a.yaml\n")
    with pytest.raises(ConfigError, match="a file cannot inherit itself"):
        load_recipe(tmp_path / "a.yaml", [])


def test_a_recipe_is_told_by_its_sections(child: Path, tmp_path: Path) -> None:
    assert is_recipe(child)
    (tmp_path / "ours.yaml").write_text("backend: local\n")
    assert not is_recipe(tmp_path / "ours.yaml")
    (tmp_path / "old.yaml").write_text("backend: nemo_rl\n")
    with pytest.raises(ConfigError, match=r"old\.yaml has backend: nemo_rl, .*docs/nemo-rl\.md"):
        is_recipe(tmp_path / "old.yaml")
