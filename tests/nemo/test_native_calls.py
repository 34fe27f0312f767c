"""What fits a call passes, what does not is named in one line: stand-ins with the signatures of trees after 0.7."""

from __future__ import annotations

import logging
import sys
from collections import namedtuple
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from nemo_uecr.nemo import native_calls, upstream
from nemo_uecr.nemo.native_calls import UpstreamError, check_called, check_passed, check_replaced
from nemo_uecr.nemo.worker_scoring import MicroBatch

SIDES = [native_calls.native_calls(side) for side in ("driver", "worker")]
FORWARD = (
    "model, data_iterator, num_microbatches, seq_length, mbs, post_processing_fn, forward_only=False, "
    "defer_fp32_logits=False, {} sampling_params=None, straggler_timer=None, draft_model=None, "
    "use_router_replay=False, router_replay_train=False"
)
LOSS = "self, next_token_logprobs, data, global_valid_seqs, global_valid_toks"


def entry(kind: str, name: str) -> Any:
    """The only row of this kind and name."""
    (found,) = [row for side in SIDES for row in getattr(side, kind) if row[1] == name]
    return found


def standing_in(monkeypatch: pytest.MonkeyPatch, row: Any, parameters: str) -> None:
    """A function of these parameters in the place of the row's, alone in its module."""
    body: dict[str, Any] = {}
    exec(f"def function({parameters}): ...", body)
    owner, _, method = row.name.rpartition(".")
    thing = type(owner, (), {method: body["function"]}) if owner else body["function"]
    module = ModuleType(row.module)
    setattr(module, owner or method, thing)
    monkeypatch.setitem(sys.modules, row.module, module)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("megatron_forward_backward", FORWARD.format("global_draft_pass_counts=None,")),
        ("ClippedPGLossFn.__call__", f"{LOSS}, opd_full_divergence=None, opd_full_entropy=None"),
        ("Policy.get_logprobs", "self, data, top_k=None, timer=None"),
        ("Policy.get_reference_policy_logprobs", "self, data, *, micro_batch_size=None, timer=None, **later"),
    ],
)
def test_a_call_with_more_that_is_optional_fits(name: str, parameters: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = entry("called", name)
    standing_in(monkeypatch, row, parameters)
    check_called(row, "later")


@pytest.mark.parametrize(
    ("name", "parameters", "fault"),
    [
        ("megatron_forward_backward", FORWARD.format("straggler=None,").replace("straggler_timer=None,", ""),
         "unexpected keyword argument 'straggler_timer'"),
        ("megatron_forward_backward", "global_draft_pass_counts, " + FORWARD.format(""), "'global_draft_pass_counts'"),
        ("Policy.get_logprobs", "self, data", "unexpected keyword argument 'timer'"),
        ("Policy._shard_for_logprob", "self, data, columns", "missing a required argument: 'columns'"),
    ],
)  # fmt: skip
def test_a_call_that_would_fail_is_named(
    name: str, parameters: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = entry("called", name)
    standing_in(monkeypatch, row, parameters)
    with pytest.raises(
        UpstreamError, match=rf"^NeMo-RL later: {row.module}\.{name} takes \(.*cannot be called.*{fault}"
    ):
        check_called(row, "later")


def test_a_name_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nemo_rl.algorithms.grpo", ModuleType("nemo_rl.algorithms.grpo"))
    with pytest.raises(UpstreamError, match=r"^NeMo-RL later: nemo_rl\.algorithms\.grpo has no setup; expected it"):
        check_called(entry("called", "setup"), "later")


def test_what_callers_may_pass_to_ours_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The signature of 0.8.0; and what Ray adds to every method of an actor's parents, of which nobody need hear."""
    caplog.set_level(logging.INFO)
    native_calls._log_once.cache_clear()
    loss = entry("replaced", "ClippedPGLossFn.__call__")
    later = "opd_full_divergence=None, opd_full_entropy=None, opd_full_cross_entropy=None, *, _ray_trace_ctx=None"
    standing_in(monkeypatch, loss, f"{LOSS}, {later}")
    for _ in range(2):
        check_replaced(loss, "0.8.0")
    (message,) = caplog.messages
    assert "does not take opd_full_divergence, opd_full_entropy, opd_full_cross_entropy, which" in message
    assert "ray" not in message


@pytest.mark.parametrize(
    ("name", "parameters", "fault"),
    [
        ("ClippedPGLossFn.__call__", f"{LOSS}, opd_full_entropy", "unexpected keyword argument 'opd_full_entropy'"),
        ("ClippedPGLossFn.__call__", LOSS.replace("data, global_valid_seqs", "global_valid_seqs, data"), "has data, "),
        ("MegatronPolicyWorkerImpl.move_model", "self, model, device, stream, *, _ray_trace_ctx=None", "'stream'"),
    ],
)  # fmt: skip
def test_ours_that_could_not_be_called_is_named(
    name: str, parameters: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = entry("replaced", name)
    standing_in(monkeypatch, row, parameters)
    with pytest.raises(UpstreamError, match=rf"^NeMo-RL later: {row.module}\.{name} takes \(.*{fault}"):
        check_replaced(row, "later")


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("adv_estimator.compute_advantage(prompt_ids=a, rewards=a, mask=a, repeated_batch=a, logprobs_policy=a,"
         " logprobs_reference=a, valid_mask=a)", ""),
        ("adv_estimator.compute_advantage(prompt_ids=a, rewards=a, mask=a, values=a)", "'repeated_batch'"),
        ("policy.get_logprobs(a, timer=a)", ""),
        ("policy.get_logprobs(a, timer=a, top_k=a)", "unexpected keyword argument 'top_k'"),
    ],
)  # fmt: skip
def test_what_the_loop_passes_is_read_in_its_source(
    call: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a decorator, too; another function of the module passes what it likes."""
    (tmp_path / "later_loop.py").write_text(
        f"def other():\n    policy.get_logprobs(5, 6, 7)\n\n@lambda function: None\ndef grpo_train():\n    {call}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "later_loop", raising=False)
    row = next(row for row in SIDES[0].passed if row.call == call.partition("(")[0])
    row = row._replace(module="later_loop")
    if not fault:
        check_passed(row, "later")
        return
    with pytest.raises(UpstreamError, match=rf"^NeMo-RL later: grpo_train calls {row.call}\(.*{fault}"):
        check_passed(row, "later")


def test_a_missing_package_is_not_blamed_on_nemo_rl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nemo_rl" / "algorithms").mkdir(parents=True)
    (tmp_path / "nemo_rl" / "package_info.py").write_text('__version__ = "0.7.0"\n')
    (tmp_path / "nemo_rl" / "algorithms" / "grpo.py").write_text("import no_such_tracker.client\n")
    for name in ("nemo_rl", "nemo_rl.package_info", "nemo_rl.algorithms", "nemo_rl.algorithms.grpo"):
        monkeypatch.setitem(sys.modules, name, None)  # to be put back
        del sys.modules[name]
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UpstreamError, match="NeMo-RL imports no_such_tracker, which is not installed"):
        upstream.check()


def test_an_estimator_answers_in_the_form_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later tree proposes a result of several fields."""
    module = ModuleType("nemo_rl.algorithms.advantage_estimator")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    estimator = SimpleNamespace(compute_advantage=lambda **given: given["rewards"] + 1)
    assert upstream.answering_estimator(estimator).compute_advantage(rewards=4) == 5
    result = namedtuple("AdvantageResult", "advantages returns metrics", defaults=(None, None))
    module.AdvantageResult = result  # type: ignore[attr-defined]
    assert upstream.answering_estimator(estimator).compute_advantage(rewards=4) == result(5)


@pytest.mark.parametrize(
    ("more", "refused"),
    [({}, ""), ({"original_seq_length": 3}, ""), ({"input_is_next_token_logprobs": False}, ""),
     ({"input_is_next_token_logprobs": True}, "input_is_next_token_logprobs")],
)  # fmt: skip
def test_what_a_later_forward_hands_to_its_post_processor(more: dict[str, Any], refused: str) -> None:
    ids, logits = torch.ones(2, 3, dtype=torch.long), torch.randn(2, 3, 5)
    data = {"input_ids": ids, "input_lengths": torch.tensor([3, 2])}
    process = upstream.RawLogits()
    process.columns = lambda given, micro: {"logits": given, "micro": micro}

    def forward() -> Any:
        return process(data_dict=data, input_ids=ids, cu_seqlens_padded=None, **more)(logits)

    if refused:
        with pytest.raises(UpstreamError, match=refused):
            forward()
        return
    _, found = forward()
    assert found["logits"] is logits
    assert isinstance(found["micro"], MicroBatch)
