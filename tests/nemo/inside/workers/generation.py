"""A generator in vLLM's place: transformers in a Ray actor, refitted through NeMo-RL's own socket protocol.

vLLM for a CPU is an environment of 2 GB, which the slow tests have; here it would take the time of the whole test.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ray
import torch

from tests.nemo.inside.workers import stand_ins

END = 1


def by_published_name(model: Any) -> dict[str, Any]:
    """The weights where they lie; transformers keeps all experts of a layer in two, and folders have one for each."""
    found = {}
    for name, value in model.state_dict().items():
        layer, _, kind = name.rpartition(".experts.")
        if not layer:
            found[name] = value
            continue
        for expert, weight in enumerate(value):
            parts = {"down_proj": weight}
            if kind == "gate_up_proj":
                parts = dict(zip(("gate_proj", "up_proj"), weight.chunk(2), strict=True))
            found |= {f"{layer}.experts.{expert}.{part}.weight": view for part, view in parts.items()}
    return found


@ray.remote(num_cpus=0)
class Engine:
    """Holds the model, and is the receiver in a refit, as NeMo-RL's extension of vLLM is."""

    def __init__(self, folder: str, temperature: float, longest: int, workers: int) -> None:
        from transformers import AutoModelForCausalLM

        torch.manual_seed(0)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        sys.meta_path.append(stand_ins.Empty(stand_ins.UNUSED))  # a tensor of a worker's may name megatron-core
        self.temperature, self.longest, self.workers = temperature, longest, workers
        self.sockets: list[Any] = []

    def prepare_refit_info(self, info: dict[str, Any]) -> None:
        self.info = info

    def update(self) -> bool:
        """Every worker of the policy sends the whole model; the first's is taken, and no tensor may lack."""
        import zmq
        from nemo_rl.models.policy.utils import IPCProtocol

        if not self.sockets:
            for rank in range(self.workers):
                self.sockets.append(zmq.Context.instance().socket(zmq.REP))
                self.sockets[-1].connect(f"ipc:///tmp/{stand_ins.gpu_name(rank)}.sock")
        poller, waiting, state = zmq.Poller(), set(self.sockets), by_published_name(self.model)
        for socket in self.sockets:
            poller.register(socket, zmq.POLLIN)
        missing = state.keys() - {"lm_head.weight"}  # tied
        while waiting:
            ready = dict(poller.poll(100_000))
            if not ready:
                raise TimeoutError(f"no weights from {len(waiting)} of {self.workers} workers")
            for socket in ready:
                payload = socket.recv_pyobj()
                if payload == IPCProtocol.COMPLETE:
                    waiting.discard(socket)
                elif socket is self.sockets[0]:
                    missing -= self._load(state, *payload)
                socket.send(IPCProtocol.ACK.value.encode())
        if missing:
            raise ValueError(f"a refit without {sorted(missing)}")
        return True

    def _load(self, state: dict[str, Any], handle: Any, names: list[str], used: int) -> set[str]:
        from nemo_rl.models.policy.utils import calculate_aligned_size
        from torch.multiprocessing.reductions import rebuild_tensor

        buffer, offset = rebuild_tensor(*handle[0]), 0
        for name in names:
            shape, dtype = self.info[name]
            size = dtype.itemsize * torch.Size(shape).numel()
            if name in state:
                state[name].copy_(buffer[offset : offset + size].view(dtype).view(torch.Size(shape)))
            offset += calculate_aligned_size(size)
        assert offset == used
        return set(names)

    def save(self, folder: Path) -> None:
        self.model.save_pretrained(folder)

    @torch.no_grad()
    def generate(self, ids: Any, lengths: Any) -> dict[str, Any]:
        rows = [self._respond(row[:length].tolist()) for row, length in zip(ids, lengths.tolist(), strict=True)]
        spent = torch.tensor([len(logp) for _, logp in rows])
        out = torch.zeros(len(rows), int((lengths + spent).max()), dtype=torch.long)
        logp = torch.zeros(out.shape)
        for row, (tokens, own) in enumerate(rows):
            out[row, : len(tokens)] = torch.tensor(tokens)
            logp[row, len(tokens) - len(own) : len(tokens)] = torch.tensor(own)
        return {
            "output_ids": out, "generation_lengths": spent, "unpadded_sequence_lengths": lengths + spent,
            "logprobs": logp, "truncated": torch.tensor([tokens[-1] != END for tokens, _ in rows]),
            **self._routes([tokens for tokens, _ in rows], out.shape[1]),
        }  # fmt: skip

    def _routes(self, rows: list[list[int]], width: int) -> dict[str, Any]:
        """[B, S, L, k] the experts that each token took: of all but a row's last, which was never an input."""
        if not (chosen := getattr(self.model.config, "num_experts_per_tok", None)):
            return {}
        layers = self.model.config.num_hidden_layers
        routes = torch.arange(chosen, dtype=torch.int32).expand(len(rows), width, layers, chosen).clone()
        for row, tokens in enumerate(rows):
            logits = self.model(torch.tensor([tokens[:-1]]), output_router_logits=True).router_logits
            routes[row, : len(tokens) - 1] = torch.stack([layer.topk(chosen).indices for layer in logits], dim=1)
        return {"routed_experts": routes}

    def _respond(self, prompt: list[int]) -> tuple[list[int], list[float]]:
        tokens, logps = list(prompt), list[float]()
        while len(logps) < self.longest and (not logps or tokens[-1] != END):
            logits = self.model(torch.tensor([tokens])).logits[0, -1].float()
            logp = (logits / self.temperature).log_softmax(-1)
            tokens.append(int(torch.multinomial(logp.exp(), 1)))
            logps.append(float(logp[tokens[-1]]))
        return tokens, logps


class CpuGeneration:
    """What NeMo-RL's set-up and loop ask of `VllmGeneration`."""

    made: Any = None

    def __init__(self, *, cluster: Any, config: Any) -> None:
        from nemo_uecr.nemo import upstream

        self.batch, self.cfg, self.refits = upstream.native("BatchedDataDict"), config, 0
        self.engine = Engine.remote(  # type: ignore[attr-defined]
            config["model_name"], config["temperature"], config["max_new_tokens"], cluster.world_size()
        )
        type(self).made = self

    def prepare_refit_info(self, info: Any) -> None:
        ray.get(self.engine.prepare_refit_info.remote(info))

    def update_weights_via_ipc_zmq(self) -> list[Any]:
        self.refits += 1
        return [self.engine.update.remote()]

    def generate(self, data: Any, greedy: bool = False) -> Any:
        return self.batch(ray.get(self.engine.generate.remote(data["input_ids"], data["input_lengths"])))

    def prepare_for_generation(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def finish_generation(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def clear_logger_metrics(self) -> None: ...

    def get_logger_metrics(self) -> dict[str, Any]:
        return {}

    def shutdown(self) -> bool:
        return True
