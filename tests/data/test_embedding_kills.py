"""The embedding stage killed before every write it makes to disk, and begun again: the folder is as if undisturbed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.made import clean_rows, prepare_folder, save_sentence_model, write_benchmark, write_jsonl

pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[2]
#: Three shards of sixteen rows and a rest; the process imports once and forks for every attempt.
ROWS, SHARD = 40, 16
PROGRAM = """
import os, shutil, signal, sys
from pathlib import Path
import torch, transformers.models.bert.modeling_bert
from nemo_uecr.data import embedding

torch.set_num_threads(1)
model, prepared, hold_at = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
embedding.SHARD_ROWS = int(sys.argv[4])

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
        embedding.screen_by_embedding(folder, model=model, hold_at=hold_at)
        os._exit(0)
    finally:
        os._exit(1)

def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

def copy(name):
    return Path(shutil.copytree(prepared, prepared.with_name(name)))

whole = copy("whole")
assert attempt(whole, -1) == 0
last = 0
while True:
    folder = copy(f"killed-{last}")
    status = attempt(folder, last)
    if status == 0:
        break
    assert status == signal.SIGKILL, status
    assert attempt(folder, -1) == 0, last
    assert content(folder) == content(whole), last
    last += 1
assert content(folder) == content(whole)
print(last)
"""


@pytest.mark.slow
def test_a_kill_before_any_write_changes_nothing(tmp_path: Path) -> None:
    from nemo_uecr.data.embedding import load_encoder
    from nemo_uecr.data.manifest import TARGETS, faults, jsonl

    source, benchmark = write_jsonl(tmp_path / "s.jsonl", clean_rows(ROWS)), write_benchmark(tmp_path)
    prepared = prepare_folder(source, tmp_path / "prepared", benchmark)
    model = save_sentence_model(tmp_path / "model")
    encoder = load_encoder(model)
    texts = [encoder.encode([row["question"] for row in jsonl(prepared / name)]) for name in ("train.jsonl", TARGETS)]
    cosines = (texts[0] @ texts[1].T).max(dim=1).values
    threshold = cosines.sort().values[ROWS // 2].item()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, model, str(prepared), repr(threshold), str(SHARD)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # A shard is synced, renamed and its folder synced: 3 x 3. Then every file and folder, two renames, and the parent.
    assert int(done.stdout) > 9 + 2 + 5
    whole = tmp_path / "whole"
    assert faults(whole) == []
    kept, held = (len(list(jsonl(whole / name))) for name in ("train.jsonl", "screening/held.jsonl"))
    assert kept + held == ROWS
    assert kept > 0 < held
