from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_uecr.demo import assets
from nemo_uecr.demo.recipe import (
    Course,
    ModelRecipe,
    ModelShape,
    Recipe,
    recipe_to_json,
)
from nemo_uecr.errors import DataError

pytest.importorskip("transformers")

pytestmark = pytest.mark.slow  # models are taught in processes of their own

SHAPE = ModelShape(hidden_size=16, intermediate_size=32, layers=1, heads=2, key_value_heads=1, head_dim=8)


def tiny(steps: int) -> Recipe:
    course = Course(steps, adam_learning_rate=1e-2, muon_learning_rate=2e-2, skip_rate=0.5, tokens_per_batch=100)
    model = ModelRecipe(SHAPE, course)
    return Recipe(student=model, teacher=model, train_problems=30, bench_problems=4)


ENSURE = """
import sys
from pathlib import Path
from nemo_uecr.demo.assets import ensure_assets
from nemo_uecr.demo.recipe import recipe_from_json
print(ensure_assets(Path(sys.argv[1]), seed=3, recipe=recipe_from_json(sys.argv[2])).root)
"""


def start(root: Path, recipe: Recipe) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ENSURE, str(root), recipe_to_json(recipe)]
    package_parent = str(Path(assets.__file__).parents[2])
    env = os.environ | {"PYTHONPATH": package_parent}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> assets.DemoAssets:
    return assets.ensure_assets(tmp_path_factory.mktemp("cache"), seed=3, recipe=tiny(2))


def test_two_processes_prepare_once(tmp_path: Path) -> None:
    both = [start(tmp_path, tiny(2)) for _ in range(2)]
    answers = {process.communicate(timeout=120)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert answers == {str(assets.ensure_assets(tmp_path, seed=3, recipe=tiny(2)).root)}
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def test_the_sets_are_disjoint_and_of_rising_difficulty(prepared: assets.DemoAssets) -> None:
    rows = {
        name: [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for name, path in {"train": prepared.train, **prepared.benchmarks}.items()
    }
    assert {name: len(part) for name, part in rows.items()} == {"train": 30} | {f"level{k}": 4 for k in range(1, 6)}
    questions = [row["question"] for part in rows.values() for row in part]
    assert len(set(questions)) == len(questions)
    assert len({row["id"] for part in rows.values() for row in part}) == len(questions)
    for level in range(1, 6):
        for row in rows[f"level{level}"]:
            assert sum(row["question"].count(sign) for sign in "+-*") == level + 1
            assert isinstance(row["answer"], str)


def test_the_models_load_and_share_the_tokenizer(prepared: assets.DemoAssets) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    vocabularies = []
    for path in (prepared.student, prepared.teacher):
        model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
        assert model.config.model_type == "qwen3"
        assert model.config.vocab_size == len(tokenizer)
        assert model.config.eos_token_id == tokenizer.eos_token_id
        vocabularies.append(tokenizer.get_vocab())
    assert vocabularies[0] == vocabularies[1]


def test_names(monkeypatch: pytest.MonkeyPatch, prepared: assets.DemoAssets) -> None:
    monkeypatch.setattr(assets, "ensure_assets", lambda root, *, seed: prepared)
    assert assets.resolve("Qwen/Qwen3-1.7B") == "Qwen/Qwen3-1.7B"
    assert assets.resolve("demo:student") == str(prepared.student)
    assert assets.resolve("demo:teacher") == str(prepared.teacher)
    assert assets.resolve("demo:train") == str(prepared.train)
    assert assets.resolve("demo:bench/level5") == str(prepared.benchmarks["level5"])
    with pytest.raises(DataError, match="demo:bench/level5"):
        assets.resolve("demo:bench/level6")
