"""What is written comes back, from several row groups, from parts and from other hands; damage is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from pyarrow import parquet

from nemo_uecr.core.methods.baselines import Grpo
from nemo_uecr.errors import DataError, ScoreError
from nemo_uecr.responses import table
from nemo_uecr.responses.replay import scored_batch
from nemo_uecr.responses.table import ROWS, TOKENS, column_of, join_responses, read_responses, write_responses
from tests.responses.tables import write_step

#: Two prompt tokens; sampled, observed, sampled; then padding.
HOLES = torch.tensor([[False, False, True, False, True, False], [False, False, True, True, False, False]])


def columns(*, seed: int = 0) -> dict[str, Any]:
    """Two responses of one prompt in a layout that begins with it."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 90, HOLES.shape, generator=generator)
    return {
        "reward": torch.tensor([1.0, 0.0]), "group": [7, 7], "prompt_ids": ids[:, :2], "token_ids": ids,
        "sampled": HOLES, "old_logp": -torch.rand(HOLES.shape, generator=generator), "turn": HOLES.long(),
    }  # fmt: skip


def test_the_layout_comes_back_and_what_was_observed_has_no_score(tmp_path: Path) -> None:
    written = columns()
    saved = read_responses(write_step(tmp_path / "t.parquet", written, Grpo()))
    assert torch.equal(saved.padded("sampled"), HOLES)
    span = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]])  # with the observed token's id
    assert torch.equal(saved.padded("token_ids"), written["token_ids"] * span)
    assert torch.equal(saved.padded("old_logp"), written["old_logp"].masked_fill(~HOLES, 0))
    assert torch.equal(saved.tokens("token_ids"), written["token_ids"][HOLES])
    assert torch.equal(saved.tokens("old_logp"), written["old_logp"][HOLES])
    assert saved.count_B.tolist() == [2, 2]
    assert saved.column("old_logp")[0][1] is None
    assert saved.column("sampled") == [[True, False, True], [True, True]]


def test_row_groups_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    sampled_BT = torch.arange(9) < torch.randint(1, 10, (40, 1), generator=generator)
    tokens = {"sampled": sampled_BT, "old_logp": torch.randn(40, 9, generator=generator)}
    rows = {"id": [f"r{row}" for row in range(40)]}
    write_responses(tmp_path / "one.parquet", rows, tokens, about={})
    monkeypatch.setattr(table, "GROUP_TOKENS", 20)
    write_responses(tmp_path / "many.parquet", rows, tokens, about={})
    assert parquet.ParquetFile(tmp_path / "many.parquet").num_row_groups > 5
    one, many = (read_responses(tmp_path / f"{name}.parquet") for name in ("one", "many"))
    assert one.column("id") == many.column("id")
    assert torch.equal(one.padded("old_logp"), many.padded("old_logp"))
    assert torch.equal(one.padded("old_logp"), tokens["old_logp"].masked_fill(~sampled_BT, 0))


def test_parts_become_one_table(tmp_path: Path) -> None:
    parts = []
    for part in range(3):
        path = tmp_path / f"part-{part}.parquet"
        write_responses(path, {"id": [f"{part}"]}, {"sampled": torch.ones(1, part + 1) > 0}, about={"step": 4})
        parts.append(path)
    join_responses(parts, tmp_path / "whole.parquet")
    whole = read_responses(tmp_path / "whole.parquet")
    assert (whole.column("id"), whole.count_B.tolist(), whole.about["step"]) == (["0", "1", "2"], [1, 2, 3], 4)
    assert whole.padded("sampled").sum(dim=1).tolist() == [1, 2, 3]  # wider than the first part


def test_words_are_those_of_sampled_tokens(tmp_path: Path) -> None:
    tokens = {"sampled": HOLES[:, 2:], "token_ids": torch.tensor([[5, 6, 7, 0], [5, 5, 0, 0]])}
    write_responses(tmp_path / "t.parquet", {"id": ["a", "b"]}, tokens, about={}, word=lambda token: f"<{token}>")
    saved = read_responses(tmp_path / "t.parquet")
    assert saved.column("tokens") == [["<5>", "<6>", "<7>"], ["<5>", "<5>"]]
    assert saved.words([0, 1]) == [["<5>", "<7>"], ["<5>", "<5>"]]


def test_a_table_that_pandas_wrote_is_replayed(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "reward": [1.0, 0.0], "group": [3, 3], "sampled": [[True, True], [True]],
            "old_logp": [[-0.5, -1.0], [-2.0]],
        }
    )  # fmt: skip
    frame.to_parquet(tmp_path / "t.parquet")
    batch = scored_batch(read_responses(tmp_path / "t.parquet"))
    assert torch.equal(batch.mask_BT, torch.tensor([[True, True], [True, False]]))
    assert torch.equal(batch.old_logp_BT, torch.tensor([[-0.5, -1.0], [-2.0, 0.0]], dtype=torch.float64))


def test_a_mask_of_numbers_is_a_mask_and_one_of_floats_is_not(tmp_path: Path) -> None:
    rows = {"reward": [1.0, 0.0], "group": [0, 0], "old_logp": [[-1.0], [-1.0]]}
    for sampled in ([[1], [1]], [[1.0], [1.0]]):
        parquet.write_table(pyarrow.table(rows | {"sampled": sampled}), tmp_path / "t.parquet")
        if isinstance(sampled[0][0], float):
            with pytest.raises(ScoreError, match=r"t\.parquet: mask has dtype"):
                scored_batch(read_responses(tmp_path / "t.parquet"))
        else:
            assert bool(scored_batch(read_responses(tmp_path / "t.parquet")).mask_BT.all())


@pytest.mark.parametrize("damage", ["short", "bit", "text"])
def test_damage_is_one_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "t.parquet"
    tokens = {"sampled": torch.ones(2, 900) > 0, "old_logp": -torch.rand(2, 900)}
    write_responses(path, {"id": ["a", "b"]}, tokens, about={})
    good, group = path.read_bytes(), parquet.ParquetFile(path).metadata.row_group(0)
    column = next(each for each in map(group.column, range(group.num_columns)) if "old_logp" in each.path_in_schema)
    place = column.data_page_offset + column.total_compressed_size // 2
    path.write_bytes({
        "short": good[:-9], "bit": good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :], "text": b"{}",
    }[damage])  # fmt: skip
    with pytest.raises(DataError, match=r"t\.parquet: cannot be read as a table of responses") as error:
        read_responses(path).padded("old_logp")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["step-000001.safetensors", "samples.jsonl"])
def test_a_file_of_an_earlier_version_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=r"has a format of version 0\.3\.0 or earlier; expected a table of responses"):
        read_responses(tmp_path / name)


def test_what_is_no_column_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="sample_mask"):
        write_responses(
            tmp_path / "t.parquet", {"id": ["a"]}, {"sampled": HOLES[:1], "sample_mask": HOLES[:1]}, about={}
        )
    assert not list(tmp_path.iterdir())
    assert not ROWS.keys() & TOKENS.keys()
    assert column_of("anchor_base").unit == "nats"
    write_responses(tmp_path / "t.parquet", {"id": ["a"]}, {"sampled": HOLES[:1]}, about={})
    saved = read_responses(tmp_path / "t.parquet")
    with pytest.raises(DataError, match="has no column 'old_logp'; it has id, sampled"):
        saved.padded("old_logp")
