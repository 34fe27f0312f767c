"""Models and problems on disk for a run inside NeMo-RL that fits."""

from __future__ import annotations

import json
from pathlib import Path

from nemo_uecr.config.recipes import load_recipe
from nemo_uecr.nemo.layout import Job
from nemo_uecr.start.recipe_form import accepted
from tests.config.shipped import CONFIGS
from tests.data.made import write_jsonl

BASE = CONFIGS / "uecr_qwen3_1p7b.yaml"


#: A dense Qwen3 with 4 layers, 4 heads and 4096 positions.
SIZES = {
    "model_type": "qwen3", "vocab_size": 98, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 64, "tie_word_embeddings": True,
    "max_position_embeddings": 4096, "architectures": ["Qwen3ForCausalLM"],
}  # fmt: skip


FITS = [
    "policy.max_total_sequence_length=4096", "policy.generation.max_new_tokens=2048", "uecr.evaluation.max_tokens=2048",
]  # fmt: skip


def job(folder: Path, *changes: str) -> Job:
    """The run of that world."""
    return accepted(load_recipe(BASE, [*world(folder), *changes]))


def world(folder: Path) -> list[str]:
    """Two models, a problem file and the keys that name them."""
    for role in ("student", "teacher"):
        (folder / role).mkdir(exist_ok=True)
        (folder / role / "config.json").write_text(json.dumps(SIZES))
    rows = [{"question": f"{n}+1", "final_answer": str(n + 1), "difficulty": 6} for n in range(200)]
    write_jsonl(folder / "p.jsonl", rows)
    write_jsonl(folder / "keys.jsonl", [{"problem": "1+1", "final_answer": "2", "difficulty": 6}] * 200)
    return [
        f"policy.model_name={folder}/student", f"uecr.teacher.model_name={folder}/teacher",
        f"uecr.data.train={folder}/p.jsonl", f"uecr.folder={folder}/run", *FITS,
    ]  # fmt: skip
