"""Real vLLM under Ray: many engines answer as one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.demo.task import build_tokenizer
from nemo_uecr.generation.engines import Decoding, Request
from nemo_uecr.nemo.evaluation import answers_of
from nemo_uecr.nemo.upstream import WorkerError
from tests.local import tiny
from tests.nemo.local_ray import local_ray

pytestmark = pytest.mark.real

#: vLLM in a worker on a CPU, without compilation.
ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}  # fmt: skip
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


def test_two_workers_answer_as_one_engine_does(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("vllm")
    tokenizer = build_tokenizer()
    tiny.save_model(tiny.new_model(tokenizer, seed=0, head_dim=32), tokenizer, tmp_path)
    with local_ray(ENVIRONMENT):
        actors = make_workers(str(tmp_path))
        requests = [Request((3, 1 + row, 4), seed=100 + row) for row in range(5)]
        both = [("vllm-0", actors[0]), ("vllm-1", actors[1])]
        first, again, alone = (
            answers_of(workers, requests, DRAWN, END, seconds=300) for workers in (both, both, both[:1])
        )
        assert first == again == alone
        assert len({answer.token_ids for answer in first}) == 5
        assert all(answer.truncated == (answer.token_ids[-1] not in END) for answer in first)
        ray.kill(actors[1])
        with pytest.raises(WorkerError, match="generate for evaluation: worker vllm-1 died"):
            answers_of(both, requests, DRAWN, END, seconds=300)
