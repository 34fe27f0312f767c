"""Milliseconds per token of the decode loop by the mode in which its steps run, beside Hugging Face's `generate`.

  python -m benchmarks.decode --model DIR --device cuda --batch 32 --tokens 192

Prompts are random tokens and no end token counts, so every row has the same length. A greedy row is compared with that
of `generate`; in bfloat16 modes may round differently, and a model with random weights soon diverges.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
import transformers

from nemo_uecr.cli.common import write_json
from nemo_uecr.generation import decode as loop
from nemo_uecr.generation.decode import Mode, decode
from nemo_uecr.generation.engines import Decoding, ModelTokens
from nemo_uecr.local.token_model import TokenModel, load_model

#: Temperature, top-p, top-k.
DRAWS = {"greedy": (0.0, 1.0, 0), "sampled": (1.0, 1.0, 0), "sampled, top-p 0.95": (1.0, 0.95, 0)}


def timed(draw: Callable[[], list[list[int]]], device: torch.device) -> tuple[list[list[int]], float]:
    """The drawn tokens, and the seconds until they are on the host."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    return draw(), time.perf_counter() - started


def by_hugging_face(model: TokenModel, prompts: list[tuple[int, ...]], count: int) -> list[list[int]]:
    """Greedy responses of ``count`` tokens."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    config = transformers.GenerationConfig(max_new_tokens=count, do_sample=False, pad_token_id=0)
    module: Any = model.module
    module.generation_config = config  # the checkpoint's own has end tokens
    drawn = module.generate(ids.to(model.device), attention_mask=mask.to(model.device), generation_config=config)
    rows: list[list[int]] = drawn[:, width:].tolist()
    return rows


def measure(model: TokenModel, *, batch: int, width: int, count: int) -> list[dict[str, Any]]:
    """One row per padding, mode and manner of drawing."""
    generator, rows = torch.Generator().manual_seed(0), []
    endless = ModelTokens(model.tokenizer, frozenset())
    modes = [mode for mode in get_args(Mode) if mode != "graph" or model.device.type == "cuda"]
    for padded in (False, True):
        lengths = [width - (row % 8 if padded else 0) for row in range(batch)]
        prompts = [tuple(torch.randint(5, model.vocabulary, (n,), generator=generator).tolist()) for n in lengths]
        by_hugging_face(model, prompts, 4)
        expected, seconds = timed(partial(by_hugging_face, model, prompts, count), model.device)
        rows.append(
            {"padded": padded, "mode": "generate", "draw": "greedy", "equal": None, "ms": 1e3 * seconds / count}
        )
        for mode, draw in [*((mode, "greedy") for mode in modes), *((modes[-1], draw) for draw in list(DRAWS)[1:])]:
            for tokens in (4, count):  # the first pays for kernels that later ones find
                decoding = Decoding(*DRAWS[draw], tokens)
                loop = partial(decode, model.module, endless, prompts, range(batch), decoding, mode)
                drawn, seconds = timed(loop, model.device)
            same = sum(one == other for one, other in zip(drawn, expected, strict=True)) if draw == "greedy" else None
            rows.append({"padded": padded, "mode": mode, "draw": draw, "equal": same, "ms": 1e3 * seconds / count})
    return rows


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16", help="of the computation (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument("--width", type=int, default=128, help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=192, help="tokens of a response (default: %(default)s)")
    parser.add_argument("--cudnn", action="store_true", help="let torch choose cuDNN's attention")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the figures to this file")
    args = parser.parse_args()
    torch.backends.cuda.enable_cudnn_sdp(args.cudnn)
    device = torch.device(args.device)
    model = load_model(args.model, role="student", dtype=args.dtype, device=device, master_weights=True)
    with model.forward_context(keep_casts=True):
        rows = measure(model, batch=args.batch, width=args.width, count=args.tokens)
    sys.stdout.write("| padded | mode | draw | ms per token | tokens per second | rows as generate |\n")
    for row in rows:
        speed = f"{row['ms']:.2f} | {1e3 * args.batch / row['ms']:.0f}"
        sys.stdout.write(f"| {row['padded']} | {row['mode']} | {row['draw']} | {speed} | {row['equal']} |\n")
    settings = {key: getattr(args, key) for key in ("model", "device", "dtype", "batch", "width", "tokens", "cudnn")}
    captured = loop._CAPTURES.get(model.module)  # None: not tried; False: "graph" ran without one
    write_json(args.json, settings | {"captured": captured, "rows": rows})


if __name__ == "__main__":
    main()
