"""Evaluation on the vLLM engines of Ray workers: the same answers as from one engine, and a dead worker is named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.evaluation.engines import Decoding, Request
from nemo_uecr.nemo.evaluation import WorkersEngine
from nemo_uecr.nemo.upstream import WorkerError
from tests.nemo_backend.local_ray import local_ray
from tests.nemo_backend.test_vllm import ENVIRONMENT, make_model

pytestmark = pytest.mark.real

DRAWN = Decoding(temperature=0.9, top_p=0.95, top_k=20, max_tokens=8)
END = frozenset({7})


def make_workers(folder: str) -> list[Any]:
    import ray

    @ray.remote(num_cpus=0)
    class Worker:
        """As much of NeMo-RL's generation worker as is used: an engine under ``llm``."""

        def __init__(self) -> None:
            from vllm import LLM

            self.llm = LLM(
                model=folder, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=64, seed=1
            )

    return [Worker.remote() for _ in range(2)]


def test_two_workers_answer_as_one_engine_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("vllm")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setitem(os.environ, name, value)
    make_model().save_pretrained(tmp_path)
    with local_ray(ENVIRONMENT):
        actors = make_workers(str(tmp_path))
        requests = [Request((3, 1 + row, 4), seed=100 + row) for row in range(5)]
        both = WorkersEngine([("vllm-0", actors[0]), ("vllm-1", actors[1])], END, seconds=300)
        first, again = both.generate(requests, DRAWN), both.generate(requests, DRAWN)
        alone = WorkersEngine([("vllm-0", actors[0])], END, seconds=300).generate(requests, DRAWN)
        assert first == again == alone
        assert len({answer.token_ids for answer in first}) == 5
        assert all(answer.truncated == (answer.token_ids[-1] not in END) for answer in first)
        ray.kill(actors[1])
        with pytest.raises(WorkerError, match="generate for evaluation: worker vllm-1 died"):
            both.generate(requests, DRAWN)
