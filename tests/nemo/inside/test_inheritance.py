"""Inheritance gives the same values as NeMo-RL's own loader, on random chains of files."""

from __future__ import annotations

import importlib
import random
from pathlib import Path

import yaml
from omegaconf import OmegaConf

from nemo_uecr.config.load import read_chain
from nemo_uecr.config.recipes import load_recipe

CHAINS, FILES = 100, 4
VALUES = (1, 2.5, "x", None)  # NeMo-RL refuses a list in the place of a mapping; here it replaces it


def random_tree(rng: random.Random, depth: int) -> dict[str, object]:
    return {
        key: random_tree(rng, depth - 1) if depth and rng.random() < 0.5 else rng.choice(VALUES)
        for key in "abcd"
        if rng.random() < 0.6
    }


def write_chain(folder: Path, rng: random.Random) -> str:
    """Files that inherit from earlier ones; the last always does, because only then are all markers used up."""
    names: list[str] = []
    for number in range(FILES):
        tree = random_tree(rng, 2)
        for section in tree.values():
            if isinstance(section, dict) and rng.random() < 0.3:
                section["_override_"] = True
        if names and (number == FILES - 1 or rng.random() < 0.7):
            parents = rng.sample(names, rng.randint(1, min(2, len(names))))
            tree["defaults"] = parents[0] if len(parents) == 1 else parents
        names.append(f"{number}.yaml")
        (folder / names[-1]).write_text(yaml.safe_dump(tree), encoding="utf-8")
    return str(folder / names[-1])


def test_chains_merge_alike(nemo_rl: str, tmp_path: Path) -> None:
    load = importlib.import_module("nemo_rl.utils.config").load_config
    rng = random.Random(0)
    for number in range(CHAINS):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = write_chain(folder, rng)
        native = OmegaConf.to_container(load(path), resolve=False)
        assert load_recipe(path, []).values == native
        if not any("{}" in file.read_text(encoding="utf-8") for file in folder.iterdir()):
            assert read_chain(path).values == native  # for which an empty mapping empties the inherited one
