"""The options that every evaluation has, with the paper's decoding as their defaults."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nemo_uecr.evaluation.settings import Settings

__all__ = ["add_evaluation_arguments", "check_model", "check_place", "place_benchmarks", "settings_of"]

HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
TEMPLATE = "{question}\nPlease reason step by step, and put your final answer within \\boxed{}."


def add_evaluation_arguments(parser: argparse.ArgumentParser) -> None:
    """Benchmarks, decoding, engine and output folder."""
    from nemo_uecr.data.benchmarks import PAPER
    from nemo_uecr.evaluation.engines import ENGINES

    parser.add_argument(
        "--benchmarks",
        nargs="+",
        default=list(PAPER),
        metavar="B",
        help="known name, file or NAME=FILE (default: five)",
    )
    parser.add_argument(
        "--samples", type=int, default=12, metavar="K", help="responses a problem (default: %(default)s)"
    )
    parser.add_argument("--max-tokens", type=int, required=True, metavar="N", help="longest response (16384 shipped)")
    parser.add_argument("--temperature", type=float, default=0.6, help="0 is greedy (default: %(default)s)")
    parser.add_argument("--top-p", type=float, default=0.95, help="1 is off (default: %(default)s)")
    parser.add_argument("--top-k", type=int, default=20, help="0 is off (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=42, help="seed of every draw (default: %(default)s)")
    parser.add_argument("--engine", choices=ENGINES, default="vllm", help="default: %(default)s")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16", help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=256, metavar="N", help="responses at once (default: %(default)s)")
    parser.add_argument("--thinking", action="store_true", help="thinking chat template (default: non-thinking)")
    parser.add_argument("--prompt-template", default=TEMPLATE, metavar="TEXT", help="user's turn with {question} in it")
    parser.add_argument("--system-prompt", default=None, metavar="TEXT", help="system turn (default: none)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the results")


def settings_of(args: argparse.Namespace) -> Settings:
    """The options as settings.

    Raises:
        DataError: If one is out of range.
    """
    from nemo_uecr.errors import DataError
    from nemo_uecr.evaluation.engines import ChatSettings, Decoding
    from nemo_uecr.evaluation.settings import Settings

    rules = {
        "--samples": (args.samples, args.samples >= 1, "a whole number from 1"),
        "--max-tokens": (args.max_tokens, args.max_tokens >= 1, "a whole number from 1"),
        "--temperature": (args.temperature, 0 <= args.temperature < float("inf"), "a number from 0"),
        "--top-p": (args.top_p, 0 < args.top_p <= 1, "a number above 0 and up to 1"),
        "--top-k": (args.top_k, args.top_k >= 0, "a whole number from 0"),
        "--seed": (args.seed, 0 <= args.seed < 1 << 63, "a whole number from 0"),
        "--batch": (args.batch, args.batch >= 1, "a whole number from 1"),
        "--prompt-template": (args.prompt_template, "{question}" in args.prompt_template, "{question} in the text"),
    }
    for option, (value, legal, expected) in rules.items():
        if not legal:
            raise DataError(f"{option}: got {value!r}, expected {expected}")
    decoding = Decoding(args.temperature, args.top_p, args.top_k, args.max_tokens)
    chat = ChatSettings(args.prompt_template, args.system_prompt, args.thinking)
    return Settings(args.samples, decoding, args.seed, chat, args.engine, args.dtype, args.batch)


def place_benchmarks(given: Sequence[str], find: Callable[[str], str]) -> list[str]:
    """The benchmarks as they were given, but a `demo:` name, with or without ``NAME=`` before it, as its path.

    Args:
        given: known names, files, ``NAME=FILE``.
        find: maps a `demo:` name to its path; another text comes back unchanged.
    """
    parts = [text.rpartition("=") for text in given]
    return [f"{name}{sign}{find(place)}" for name, sign, place in parts]


def check_model(name: str) -> None:
    """Refuse a model that no engine may load: no folder, or a folder whose weights are pickled or not whole.

    A name of the hub's form is taken as it is, unless it begins with a folder that is here: what the hub has is known
    when it is asked.

    Raises:
        DataError: it is one of these.
    """
    from nemo_uecr.data.model_files import read_fields
    from nemo_uecr.data.weight_files import read_header, weight_names
    from nemo_uecr.errors import DataError
    from nemo_uecr.evaluation.engines import check_model_place

    folder = Path(name)
    if not folder.is_dir():
        if HUB_NAME.fullmatch(name):
            check_model_place(name)
            return
        raise DataError(f"{name}: no such folder; expected a model's folder, or a hub name such as Qwen/Qwen3-4B")
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").exists():
        raise DataError(
            f"{name}: an adapter without its base model; expected a whole model: merge the two (peft: "
            "merge_and_unload) and name the folder that is saved"
        )
    read_fields(folder / "config.json", prefix="")
    shards = weight_names(folder)
    if any(folder.glob("*.bin")) and not any((folder / shard).is_file() for shard in shards):
        raise DataError(
            f"{name}: its weights are pickled (*.bin), and reading those can run code; expected safetensors: take a "
            "release of the model that has them"
        )
    for shard in shards:
        read_header(folder / shard)


def check_place(folder: Path) -> None:
    """Refuse an output folder that cannot be one.

    Raises:
        RunFolderError: something else is there, or on the way to it.
    """
    from nemo_uecr.errors import RunFolderError

    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise RunFolderError(f"{folder}: {place} cannot be written or is no folder; choose another --out")
