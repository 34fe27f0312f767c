"""What keeps the ranks of a group together: groups that follow each other on one store, late and bad callers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from nemo_uecr.errors import ScoreError
from nemo_uecr.scoring.agreement import Meeting, ShardCall
from nemo_uecr.scoring.dense import score_logits
from nemo_uecr.scoring.fused_linear import score_hidden_vocab_parallel
from nemo_uecr.scoring.generation import Generation
from nemo_uecr.scoring.shards import target_digest
from nemo_uecr.scoring.vocab_parallel import score_vocab_parallel, token_logp_vocab_parallel

from .conftest import GLOO_TIMEOUT_S, peaked_logits

OnRanks = Callable[..., list[Any]]
TIMEOUT = timedelta(seconds=GLOO_TIMEOUT_S)


def entropies(rank: int, tokens: int) -> Tensor:
    """A correct call of this many tokens over two ranks."""
    logits, target = peaked_logits(tokens, 100, 9.0, seed=tokens)
    shard = logits[:, 50 * rank : 50 * rank + 50]
    scores = score_vocab_parallel(shard, target, first_column=50 * rank, group=None, temperatures=(1.0,), entropy=True)
    assert scores.entropy_N is not None
    return scores.entropy_N


def forget_torch(store: Any, rank: int, life: str) -> None:
    """Remove torch's own keys, over whose stale addresses gloo itself would stumble, and nothing else."""
    if rank == 1:
        store.set(f"done {life}", "1")
        store.wait([f"clean {life}"])
        return
    store.wait([f"done {life}"])
    for key in store.list_keys():
        if "nemo_uecr" not in key and not key.startswith("clean"):
            store.delete_key(key)
    store.set(f"clean {life}", "1")


def lives(rank: int, size: int) -> list[Tensor]:
    """Groups that follow each other on one store, the second of which dies with its ranks out of step."""
    world = dist.group.WORLD.get_group_store()
    if rank == 0:
        hosted = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        world.set("port of the store", str(hosted.port))
    port = int(world.get("port of the store"))
    store = hosted if rank == 0 else dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    dist.barrier()
    dist.destroy_process_group()
    found = []
    for life in range(4):
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        time.sleep(0.3 * rank)  # rank 0 has long read whatever an earlier rank 1 left, if it reads that
        found.append(entropies(rank, 3 + life))
        if life == 1 and rank == 0:
            with contextlib.suppress(ScoreError):
                entropies(rank, 0)
        dist.barrier()
        if life < 3:
            dist.destroy_process_group()
            forget_torch(store, rank, str(life))
    return found


@pytest.mark.skipif(not hasattr(dist.TCPStore, "list_keys"), reason="needs a store that lists its keys")
def test_a_group_on_the_store_of_an_earlier_one_reads_nothing_of_it(on_ranks: OnRanks) -> None:
    for result in on_ranks(2, lives):
        assert result.error is None, result.message
        for life, found in enumerate(result.value):
            logits, target = peaked_logits(3 + life, 100, 9.0, seed=3 + life)
            exact = score_logits(logits, target, temperatures=(1.0,), entropy=True).entropy_N
            torch.testing.assert_close(found, exact, rtol=0, atol=2e-6)


def left_in_the_store(rank: int, size: int) -> list[str]:
    for _ in range(5):
        entropies(rank, 4)
    dist.barrier()
    store = dist.group.WORLD.get_group_store()
    return [key for key in store.list_keys() if "nemo_uecr" in key]


@pytest.mark.skipif(not hasattr(dist.TCPStore, "list_keys"), reason="needs a store that lists its keys")
def test_the_store_does_not_grow_with_the_calls(on_ranks: OnRanks) -> None:
    for result in on_ranks(2, left_in_the_store):
        assert result.error is None, result.message
        # Each of two ranks keeps its last two lines; nothing is left of how the group got its name.
        assert len(result.value) == 4, result.value
        assert all("/call/" in key for key in result.value)


def late_partner(rank: int, size: int) -> tuple[str, float, Tensor]:
    """Rank 0 gives up after a second; rank 1 comes later, with a correct call."""
    entropies(rank, 3)
    store = dist.group.WORLD.get_group_store()
    if rank == 0:
        store.set_timeout(timedelta(seconds=1))
    else:
        store.wait(["given up"])
    started, said = time.monotonic(), ""
    try:
        entropies(rank, 4)
    except ScoreError as error:
        said = str(error)
    took = time.monotonic() - started
    store.set_timeout(TIMEOUT)
    if rank == 0:
        store.set("given up", "1")
    return said, took, entropies(rank, 5)


def test_who_comes_too_late_is_told_so_and_the_next_call_is_in_step(on_ranks: OnRanks) -> None:
    results = on_ranks(2, late_partner)
    assert [result.error for result in results] == [None, None], results[0].message + results[1].message
    assert "not every rank" in results[0].value[0]
    assert "waited in vain" in results[1].value[0]
    assert results[1].value[1] < GLOO_TIMEOUT_S / 2, "the late rank went to a collective that nobody joins"
    assert torch.equal(results[0].value[2], results[1].value[2])


def good_logits_call(rank: int) -> dict[str, Any]:
    logits, target = peaked_logits(8, 100, 9.0, seed=5)
    call = {"logits_NV": logits[:, 50 * rank : 50 * rank + 50], "target_N": target, "first_column": 50 * rank}
    return call | {"group": None, "temperatures": (1.0,), "entropy": True, "top1": False, "valid_vocab": None}


def good_training_call(rank: int) -> dict[str, Any]:
    call = good_logits_call(rank)
    for name in ("temperatures", "entropy", "top1"):
        del call[name]
    return call | {"temperature": 1.0}


def good_hidden_call(rank: int) -> dict[str, Any]:
    call = good_logits_call(rank)
    del call["logits_NV"]
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(8, 16, generator=generator).bfloat16()
    weight = torch.randn(100, 16, generator=generator).bfloat16()[50 * rank : 50 * rank + 50]
    return call | {"hidden_NH": hidden, "weight_VH": weight, "logits_dtype": None}


def freed(tensor: Tensor) -> Tensor:
    """A tensor whose storage was given back, as an offload does."""
    tensor.untyped_storage().resize_(0)
    return tensor


FORMS: dict[str, tuple[Callable[..., Any], Callable[[int], dict[str, Any]]]] = {
    "logits": (score_vocab_parallel, good_logits_call),
    "training": (token_logp_vocab_parallel, good_training_call),
    "hidden": (score_hidden_vocab_parallel, good_hidden_call),
}
# What rank 1 gives instead, and words of what it is told.
REFUSED: list[tuple[str, str, Any, str]] = [
    ("logits", "logits_NV", torch.tensor(1.0), "expected two dimensions"),
    ("logits", "logits_NV", [[1.0, 2.0]], "expected a torch tensor"),
    ("logits", "target_N", torch.tensor(1), "target_N has shape ()"),
    ("logits", "target_N", None, "expected a torch tensor"),
    ("logits", "temperatures", 1.0, "expected a tuple of numbers"),
    ("logits", "temperatures", ("1",), "expected a finite number above 0"),
    ("logits", "temperatures", (10**400,), "expected a finite number above 0"),
    ("logits", "entropy", 1, "entropy is 1, expected True or False"),
    ("logits", "top1", "yes", "top1 is 'yes', expected True or False"),
    ("logits", "first_column", 50.0, "first_column is 50.0, expected an int"),
    ("logits", "valid_vocab", "100", "valid_vocab is '100', expected an int"),
    ("logits", "first_column", 2**70, "expected an int of at most 2^62"),
    ("logits", "valid_vocab", 2**70, "expected an int of at most 2^62"),
    ("logits", "valid_vocab", 10**5000, "valid_vocab is too long to be written"),
    ("logits", "temperatures", (10**5000,), "temperature is too long to be written"),
    ("logits", "logits_NV", freed(torch.ones(8, 50)), "logits_NV has no memory of its own"),
    ("logits", "target_N", freed(torch.arange(8)), "target_N has no memory of its own"),
    ("training", "first_column", 2**70, "expected an int of at most 2^62"),
    ("training", "temperature", 10**5000, "temperature is too long to be written"),
    ("hidden", "first_column", 2**70, "expected an int of at most 2^62"),
    ("hidden", "weight_VH", freed(torch.ones(50, 16).bfloat16()), "weight_VH has no memory of its own"),
    ("hidden", "hidden_NH", freed(torch.ones(8, 16).bfloat16()), "hidden_NH has no memory of its own"),
    ("training", "logits_NV", torch.tensor(1.0), "expected two dimensions"),
    ("training", "temperature", None, "temperature is None"),
    ("hidden", "hidden_NH", torch.tensor(1.0), "expected two dimensions"),
    ("hidden", "weight_VH", torch.tensor(1.0), "expected (vocabulary, 16)"),
    ("hidden", "weight_VH", None, "expected a torch tensor"),
    ("hidden", "logits_dtype", "float32", "logits_dtype is float32"),
]
# Nothing wrong with either call, but they do not belong together.
DISAGREED: list[tuple[str, str, Callable[[Any], Any], str]] = [
    # A sum weighted by position would not see this, 3 * 4 - 4 * 3 = 0.
    ("logits", "target_N", lambda t: t + torch.tensor([0, 0, 4, -3, 0, 0, 0, 0]), "disagree on targets"),
    ("logits", "target_N", lambda t: t.flip(0), "disagree on targets"),
    ("hidden", "logits_dtype", lambda _: torch.float32, "disagree on logits_dtype"),
    ("hidden", "hidden_NH", lambda h: h[:, :8], "disagree on hidden"),
]


def call_form(rank: int, form: str, name: str, change: Callable[[Any], Any]) -> str:
    """The error of a call in which rank 1 gives something else, with its name; then a correct call must succeed."""
    score, good = FORMS[form]
    call = good(rank)
    if rank == 1:
        call[name] = change(call[name])
        if name == "hidden_NH" and call[name].dim() == 2:
            call["weight_VH"] = call["weight_VH"][:, :8]
    said = "no error"
    try:
        score(**call)
    except ScoreError as error:
        said = f"{type(error).__name__}: {error}"
    score(**good(rank))
    return said


def every_refusal(rank: int, size: int) -> list[str]:
    return [call_form(rank, form, name, lambda _, v=value: v) for form, name, value, _ in REFUSED]


def test_what_one_rank_refuses_every_rank_learns_by_name(on_ranks: OnRanks) -> None:
    results = on_ranks(2, every_refusal)
    for result in results:
        assert result.error is None, result.message
    for case, there, here in zip(REFUSED, results[0].value, results[1].value, strict=True):
        assert here.startswith("ScoringInputError"), (case, here)
        assert case[3] in here, (case, here)
        assert there.startswith("ShardMismatchError: rank 1 of the group refused the call"), (case, there)
        assert case[3] in there, (case, there)


def every_disagreement(rank: int, size: int) -> list[str]:
    return [call_form(rank, form, name, change) for form, name, change, _ in DISAGREED]


def test_what_the_ranks_disagree_on_every_rank_learns_by_name(on_ranks: OnRanks) -> None:
    results = on_ranks(2, every_disagreement)
    for result in results:
        assert result.error is None, result.message
        for case, said in zip(DISAGREED, result.value, strict=True):
            assert said.startswith("ShardMismatchError"), (case, said)
            assert case[3] in said, (case, said)


def unwritable_line(rank: int, size: int) -> tuple[str, Tensor]:
    """Rank 1 fails between its checks and its line; rank 0 must not wait for that line."""
    dist.group.WORLD.get_group_store().set_timeout(timedelta(seconds=2))
    line: Any = ShardCall("", 1, None, "", "", "", [1.0], True, False, None, "", 0, 1)
    said = ""
    try:
        with Meeting(None) as meeting:
            meeting.agree(replace(line, columns=object()) if rank == 1 else line)
    except (ScoreError, TypeError) as error:
        said = f"{type(error).__name__}: {error}"
    return said, entropies(rank, 5)


def test_a_line_that_cannot_be_written_is_reported_and_the_next_call_is_in_step(on_ranks: OnRanks) -> None:
    results = on_ranks(2, unwritable_line)
    assert [result.error for result in results] == [None, None], results[0].message + results[1].message
    assert results[0].value[0].startswith("ShardMismatchError: rank 1 of the group refused the call: TypeError")
    assert results[1].value[0].startswith("TypeError")
    assert torch.equal(results[0].value[1], results[1].value[1])


def unwritable_error(rank: int, size: int) -> str:
    try:
        with Meeting(None) as meeting:
            if rank == 1:
                raise ValueError(10**5000)  # str() of it is a ValueError in its turn
            meeting.agree(ShardCall("", 1, None, "", "", "", [1.0], True, False, None, "", 0, 1))
    except ValueError as error:
        return str(error) if rank == 0 else type(error).__name__
    return "no error"


def test_an_error_whose_message_cannot_be_written_is_reported_by_its_name(on_ranks: OnRanks) -> None:
    results = on_ranks(2, unwritable_error)
    assert results[0].value == "rank 1 of the group refused the call: ValueError: its message cannot be written"
    assert results[1].value == "ValueError"


def test_who_names_a_group_does_not_stop_at_a_question_that_an_earlier_group_left() -> None:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=5))
    store.set("nemo_uecr/scoring/question/1", "of an earlier group")
    with ThreadPoolExecutor(2) as threads:
        told = threads.submit(Generation(0, 2).name, store)
        store.wait(["nemo_uecr/scoring/answer/of an earlier group"])  # rank 0 has taken it for its partner's
        asked = threads.submit(Generation(1, 2).name, store)
        assert told.result() == asked.result()


def wrong_group(rank: int, size: int) -> str:
    try:
        score_vocab_parallel(**(good_logits_call(rank) | {"group": "tensor"}))
    except ScoreError as error:
        return str(error)
    return "no error"


def test_a_group_that_is_none_is_refused(on_ranks: OnRanks) -> None:
    for result in on_ranks(2, wrong_group):
        assert "group is str, expected a process group" in result.value


def test_the_digest_of_targets_sees_values_and_order_and_no_dtype() -> None:
    targets = torch.arange(40_000)
    assert target_digest(targets) == target_digest(targets.int())
    assert target_digest(targets) == target_digest(torch.stack([targets, targets], 1)[:, 0])
    swapped = targets.clone()
    swapped[[0, 39_999]] = swapped[[39_999, 0]]
    assert target_digest(targets) != target_digest(swapped)
    middle = targets.clone()
    middle[[18_000, 22_000]] = middle[[22_000, 18_000]]
    assert target_digest(targets) != target_digest(middle)
    assert target_digest(targets) != target_digest(targets[:-1])
