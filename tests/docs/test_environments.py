"""The environment of docs/environments.md, as it stands, trains the tiny student."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nemo_uecr.generation.conversation import Bridge
from nemo_uecr.generation.prompts import check_template
from nemo_uecr.responses.table import read_responses
from tests.docs.pages import ROOT, blocks_of
from tests.generation.test_conversation import CHAT, TOOL, tokens_of
from tests.local.tiny import metrics, run

BLOCKS = blocks_of(ROOT / "docs" / "environments.md")


def test_the_template_of_the_page_holds_tools_and_their_turns() -> None:
    (block,) = (each for each in BLOCKS if each.language == "jinja")
    chat, tokens = replace(CHAT, tools=(TOOL,)), tokens_of(block.text)
    check_template(tokens.tokenizer, chat)
    bridge = Bridge(tokens, chat, "tool")
    assert not bridge.thoughts_stay
    shown = tokens.tokenizer.decode(bridge.ids([9], ["21 C"]))
    assert shown == "<|im_end|>\n<|im_start|>tool\n21 C<|im_end|>\n<|im_start|>assistant\n"


def test_the_page_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = (each for each in BLOCKS if each.language == "python")
    file = tmp_path / block.text.splitlines()[0].removeprefix("# ")
    file.parent.mkdir(parents=True)
    file.write_text(block.text)
    section = f"environment={{call: {file.relative_to(tmp_path)}:SecondTry, max_turns: 2, turn_tokens: 6}}"
    settings = ("reward=[math, environment]", "rollout.max_response_tokens=120", "telemetry.save_batch_every=1")
    folder = run(tmp_path / "run", section, *settings)
    assert [record["turns/count_max"] for record in metrics(folder)] == [2, 2]
    words = read_responses(folder / "batches" / "step-000001.parquet").column("tokens")
    assert any("That is not right." in "".join(own) for own in words)
