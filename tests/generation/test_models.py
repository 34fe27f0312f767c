"""Model folders: damage and code are refused before anything is loaded; hub names do not wait for a dead network."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub as hub
import pytest

from nemo_uecr.data.embedding import load_encoder
from nemo_uecr.data.sources import find_source
from nemo_uecr.errors import DataError
from nemo_uecr.generation.engines import load_tokens
from nemo_uecr.generation.models import (
    decoder_sizes,
    let_older_read,
    load_pretrained,
    load_tokenizer,
    only_here,
    read_header,
    save_pretrained,
    weight_names,
)
from nemo_uecr.generation.prompts import ChatSettings, prompt_ids
from tests.evaluation.tiny import save_tokenizer
from tests.local import tiny

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def _no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nobody listens where the hub should be, the cache is empty, and nobody may wait to try again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    constants = {"ENDPOINT": endpoint, "HF_HUB_OFFLINE": False, "HF_HUB_CACHE": str(tmp_path / "cache")}
    for name, value in constants.items():
        monkeypatch.setattr(hub.constants, name, value)
    monkeypatch.setattr("transformers.utils.hub.is_offline_mode", lambda: False)
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    yield
    assert waits == []


@pytest.mark.usefixtures("_no_hub")
def test_a_model_nobody_has_is_refused_without_waiting() -> None:
    with pytest.raises(DataError, match="owner/absent"):
        load_encoder("owner/absent")
    with pytest.raises(DataError, match="owner/absent"):
        load_tokens("owner/absent")


@pytest.mark.usefixtures("_no_hub")
def test_a_model_in_the_cache_is_read_without_waiting(tmp_path: Path) -> None:
    import torch
    from transformers import BertConfig, BertModel

    place = tmp_path / "cache" / "models--owner--small"
    snapshot = place / "snapshots" / COMMIT
    size = len(save_tokenizer(snapshot))
    config = BertConfig(
        vocab_size=size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    )  # fmt: skip
    BertModel(config).save_pretrained(snapshot)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    assert only_here("owner/small")
    vectors = load_encoder("owner/small").encode(["a text", "another one"])
    assert torch.allclose(vectors.norm(dim=-1), torch.ones(2))


ASKS = "import huggingface_hub as hub; hub.HfApi().file_exists('owner/small', 'hf_quant_config.json')"


@pytest.mark.usefixtures("_no_hub")
def test_a_silent_hub_is_named_once_and_asked_by_nobody_again(caplog: pytest.LogCaptureFixture) -> None:
    """What vLLM asks of a model, in this process and in one that begins later; it can do without the answer."""
    assert only_here("owner/small")
    assert only_here("owner/large")
    assert ["HF_HUB_OFFLINE=1" in message for message in caplog.messages] == [True]
    with pytest.raises(DataError, match="this machine's cache"):
        find_source("owner/benchmark", "test")
    with pytest.raises(hub.errors.OfflineModeIsEnabled):
        exec(ASKS)
    done = subprocess.run([sys.executable, "-c", ASKS], capture_output=True, text=True, check=False)
    assert "OfflineModeIsEnabled" in done.stderr.splitlines()[-1]


CONFIG = {
    "model_type": "qwen3", "vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 16, "tie_word_embeddings": False,
}  # fmt: skip


def test_sizes_of_a_decoder() -> None:
    sizes = decoder_sizes(CONFIG, "config.json")
    assert (sizes.head_dim, sizes.query, sizes.key_value) == (128, 512, 256)
    assert decoder_sizes(CONFIG | {"model_type": "llama"}, "config.json").head_dim == 2
    with pytest.raises(DataError, match="hidden_size"):
        decoder_sizes({key: value for key, value in CONFIG.items() if key != "hidden_size"}, "config.json")


def test_weight_files_are_held_against_their_headers(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    path = tmp_path / "model.safetensors"
    assert weight_names(tmp_path) == [path.name]
    save_file({"a": torch.zeros(2, 3, dtype=torch.bfloat16)}, path)
    assert read_header(path) == {"a": ("BF16", (2, 3))}
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="truncated"):
        read_header(path)
    path.unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "2", "b": "1", "c": "2"}}))
    assert weight_names(tmp_path) == ["1", "2"]


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    """Whatever of the tokenizer's smaller files is left."""
    folder = tmp_path / "model"
    save_tokenizer(folder)
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
        with pytest.raises(DataError, match=r"/model.* expected tokenizer"):
            load_tokenizer(str(folder), local_files_only=True)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(
    ("kind", "rope", "stated"),
    [
        ("qwen3", {"rope_type": "default", "rope_theta": 1e6}, {"rope_theta": 1e6}),
        ("qwen3", {**YARN, "rope_theta": 1e6}, {"rope_theta": 1e6, "rope_scaling": YARN}),
        ("glm4", {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25}, {"rope_theta": 1e6}),
        ("gemma3_text", None, {}),  # one dictionary for each kind of layer
    ],
)
def test_transformers_4_finds_the_rope_of_what_is_saved_and_5_reads_it_unchanged(
    kind: str, rope: dict[str, object] | None, stated: dict[str, object], tmp_path: Path
) -> None:
    """It ignores `rope_parameters`, and would compute another model in silence."""
    from transformers import AutoConfig

    AutoConfig.for_model(kind, **{} if rope is None else {"rope_parameters": rope}).save_pretrained(tmp_path)
    before = AutoConfig.from_pretrained(tmp_path).to_dict()
    let_older_read(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert {key: written[key] for key in ("rope_theta", "rope_scaling") if key in written} == stated
    assert written.get("partial_rotary_factor") == (rope or {}).get("partial_rotary_factor")
    assert AutoConfig.from_pretrained(tmp_path).to_dict() == before


def test_transformers_4_knows_the_class_of_a_saved_tokenizer(tmp_path: Path) -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>"]})
    save_pretrained(tiny.new_model(tokenizer, seed=0), tokenizer, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["rope_theta"] == 10_000
    written = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert (written["additional_special_tokens"], "extra_special_tokens" in written) == (["<|im_start|>"], False)
    again = load_tokenizer(str(tmp_path), local_files_only=True)
    assert (type(again), again.all_special_tokens) == (type(tokenizer), tokenizer.all_special_tokens)
    assert again("1 + 2<|im_end|>")["input_ids"] == tokenizer("1 + 2<|im_end|>")["input_ids"]


CHAT = ChatSettings("{question}", None, thinking=False)
ONLY_ANSWERS = "{% for m in messages if m['role'] != 'system' %}{{ m['content'] }}{% endfor %}"
IN_PARTS = "{% for m in messages %}{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endfor %}"
EDITED = "{% for m in messages %}{{ m['content'].replace('/no_think', '') | trim }}{% endfor %}"


def test_a_template_that_drops_a_turn_is_refused_and_one_that_edits_it_is_not() -> None:
    tokenizer = tiny.tokenizer()

    def prompt(template: str, system: str) -> str:
        tokenizer.chat_template = template
        before = [{"role": "system", "content": system}, {"role": "assistant", "content": "Yes."}]
        return str(tokenizer.decode(prompt_ids(tokenizer, " 1 + 2 /no_think\n", CHAT, before)))

    with pytest.raises(DataError, match=r"drops the system turn 'Be brief\.': leave the system prompt out"):
        prompt(ONLY_ANSWERS, "Be brief.")
    with pytest.raises(DataError, match=r"drops the user turn ' 1 \+ 2"):
        prompt(IN_PARTS.replace("m in messages", "m in messages[2:]") + "{{ messages[0]['content'] }}", "Be brief.")
    assert prompt(EDITED, "/no_think") == "Yes.1 + 2"
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    with pytest.raises(DataError, match=r"refuses the prompt: [^;]*$"):  # nothing of a system turn, where there is none
        prompt_ids(tokenizer, "1", CHAT)


def test_a_plain_prompt_begins_once_and_does_not_end() -> None:
    """Without a chat template, by a tokenizer that puts tokens around every text."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = tiny.tokenizer()
    tokenizer.chat_template, tokenizer.bos_token = None, "<|im_start|>"
    around = [("<|im_start|>", 1), ("<|im_end|>", 2)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A <|im_end|>", special_tokens=around
    )
    plain = tokenizer("1+2", add_special_tokens=False)["input_ids"]
    for text, ids in (("1+2", [1, *plain]), ("<|im_start|>1+2", [1, *plain]), ("1+2<|im_end|>", [1, *plain, 2, 2])):
        assert prompt_ids(tokenizer, text, CHAT) == ids


def test_a_kernel_of_the_hub_is_refused(tmp_path: Path) -> None:
    """transformers would fetch and run it."""
    from transformers import AutoConfig

    for values in ({"attn_implementation": "owner/kernel"}, {"text_config": {"experts_implementation": {"": "o/k"}}}):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"} | values))
        with pytest.raises(DataError, match="kernel"):
            load_pretrained(AutoConfig, str(tmp_path), local_files_only=True)
