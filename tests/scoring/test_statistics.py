from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_uecr.scoring.records import StatisticsLayout
from nemo_uecr.scoring.reduce import reduce_logits
from nemo_uecr.scoring.statistics import merge_shards
from tests.scoring.made import peaked_logits


def test_a_shard_without_columns_changes_no_bit() -> None:
    logits, target = peaked_logits(5, 300, 9.0, seed=1)
    layout = StatisticsLayout((1.0, 0.7), True)
    one, empty = reduce_logits(logits, target, layout, 0), reduce_logits(logits[:, :0], target, layout, 300)
    alone = merge_shards(one.unsqueeze(0), layout)
    for pair in ([one, empty], [empty, one]):
        assert torch.equal(merge_shards(torch.stack(pair), layout), alone)


@given(cuts=st.lists(st.integers(0, 97), max_size=5), log_z=st.sampled_from([0.0, 8.0, 25.0]))
@settings(max_examples=50, deadline=None)
def test_any_cut_of_the_vocabulary_merges_to_the_whole(cuts: list[int], log_z: float) -> None:
    logits, target = peaked_logits(4, 97, log_z, seed=2)
    layout = StatisticsLayout((1.0, 0.7), True)
    edges = [0, *sorted(cuts), 97]
    shards = torch.stack([reduce_logits(logits[:, a:b], target, layout, a) for a, b in pairwise(edges)])
    shifted = logits.double() - logits.double().amax(1, keepdim=True)
    merged = merge_shards(shards, layout)
    for row, expected in (
        (0, logits.double().amax(1)),
        (1, logits.double().gather(1, target.unsqueeze(1)).squeeze(1)),
        (2, shifted.exp().sum(1)),
        (3, (shifted / 0.7).exp().sum(1)),
        (4, (shifted * shifted.exp()).sum(1)),
    ):
        torch.testing.assert_close(merged[row], expected, rtol=1e-6, atol=1e-6)
