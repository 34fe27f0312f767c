"""A callable whose parameters are others, or in another order, is refused; read off the standard library."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.upstream import UpstreamError, check_signatures, expected_signatures
from nemo_uecr.nemo.worker_scoring import MicroBatch


@pytest.mark.parametrize("names", ["text prefix predicate", "text prefix ...", "text ..."])
def test_what_is_there_passes(names: str) -> None:
    """``textwrap.indent(text, prefix, predicate=None)``."""
    check_signatures([("textwrap", "indent", names.split())], "0.7.0")


@pytest.mark.parametrize(
    "names", ["prefix text predicate", "prefix text ...", "text prefix", "text prefix predicate more"]
)
def test_another_order_or_number_is_refused(names: str) -> None:
    with pytest.raises(UpstreamError, match=r"textwrap\.indent takes \(text, prefix, predicate\); expected \("):
        check_signatures([("textwrap", "indent", names.split())], "0.7.0")


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


# Trees after August 2026, of which single files are known: stand-ins with their signatures.


def entry(name: str) -> tuple[str, str, list[str] | None]:
    both = [*expected_signatures("driver"), *expected_signatures("worker")]
    return next(one for one in both if one[1] == name)


def standing_in(monkeypatch: pytest.MonkeyPatch, module: str, **names: Any) -> None:
    made = ModuleType(module)
    vars(made).update(names)
    monkeypatch.setitem(sys.modules, module, made)


def test_an_estimator_that_must_answer_with_more_than_a_tensor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "nemo_rl.algorithms.advantage_estimator"
    standing_in(monkeypatch, module)
    check_signatures([entry("AdvantageResult")], "later")
    standing_in(monkeypatch, module, AdvantageResult=object)
    with pytest.raises(UpstreamError, match=rf"NeMo-RL later: {module} has AdvantageResult; expected none"):
        check_signatures([entry("AdvantageResult")], "later")


@pytest.mark.parametrize(
    ("more", "refused"),
    [({}, ""), ({"original_seq_length": 3}, ""), ({"input_is_next_token_logprobs": False}, ""),
     ({"input_is_next_token_logprobs": True}, "input_is_next_token_logprobs"), ({"another": 1}, "another")],
)  # fmt: skip
def test_what_a_later_forward_hands_to_its_post_processor(
    more: dict[str, Any], refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Processor:
        def __init__(self, cfg: Any, sampling_params: Any) -> None: ...

    names = ["self", "data_dict", "input_ids", "cu_seqlens_padded", *more]
    body: dict[str, Any] = {}
    exec(f"def __call__({', '.join(names)}): ...", body)
    Processor.__call__ = body["__call__"]  # type: ignore[attr-defined]
    standing_in(monkeypatch, "nemo_rl.models.megatron.train", LogprobsPostProcessor=Processor)
    ids, logits = torch.ones(2, 3, dtype=torch.long), torch.randn(2, 3, 5)
    data = {"input_ids": ids, "input_lengths": torch.tensor([3, 2])}

    def forward(*, post_processing_fn: Any, **given: Any) -> Any:
        return [post_processing_fn(data_dict=data, input_ids=ids, cu_seqlens_padded=None, **more)(logits)]

    theirs = {
        "LogprobsPostProcessor": Processor, "megatron_forward_backward": forward,
        "get_microbatch_iterator": lambda *given, **named: (iter(()), 1, 1, 3, 3),
    }  # fmt: skip
    monkeypatch.setattr(upstream, "native", theirs.__getitem__)
    worker = SimpleNamespace(
        cfg={"logprob_batch_size": 1}, mcore_state=SimpleNamespace(straggler_timer=None), delegate_pack_to_model=False,
        model=None, defer_fp32_logits=False,
    )  # fmt: skip

    def scored() -> Any:
        check_signatures([entry("LogprobsPostProcessor.__call__")], "later")
        return upstream.score_forward(worker, data, lambda given, micro: {"logits": given, "micro": micro})

    if refused:
        with pytest.raises(UpstreamError, match=refused):
            scored()
        return
    [(_, found)] = scored()
    assert found["logits"] is logits
    assert isinstance(found["micro"], MicroBatch)
