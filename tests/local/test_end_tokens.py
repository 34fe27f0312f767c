"""What ends a response belongs to the model: every folder that is made of one ends where it ended."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.cli.main import entry_point
from nemo_uecr.conversion.export import export
from nemo_uecr.data.problems import Problem
from nemo_uecr.errors import UecrError
from nemo_uecr.generation.adapter import CONFIG, add_adapter, load_causal_lm
from nemo_uecr.generation.engines import load_tokens
from nemo_uecr.generation.models import GENERATION, load_tokenizer, save_pretrained
from nemo_uecr.generation.prompts import ChatSettings
from nemo_uecr.responses.table import read_responses
from tests.local import tiny
from tests.responses.tables import records
from tests.start import looking

CHAT = ChatSettings(tiny.configured(Path("unused")).config.data.prompt_template, None, False)
#: How a folder states its end tokens, and which they are: generation_config.json, config.json, the tokenizer's.
STATED: dict[str, tuple[dict[str, Any] | None, dict[str, Any], str, set[int]]] = {
    "a list beside one of config.json": ({"eos_token_id": [1, 0]}, {"eos_token_id": 0}, "<|endoftext|>", {0, 1}),
    "the tokenizer's beside another": ({"eos_token_id": 1}, {"eos_token_id": 1}, "<|im_end|>", {1, 2}),
    "config.json alone": (None, {"eos_token_id": [1, 0]}, "<|endoftext|>", {0, 1}),
    "config.json beside settings of sampling": ({"top_p": 0.9}, {"eos_token_id": 1}, "<|im_end|>", {1, 2}),
    "none beside the tokenizer's": ({"eos_token_id": None}, {"eos_token_id": None}, "<|im_end|>", {2}),
}


def ending(folder: Path, generation: dict[str, Any] | None, config: dict[str, Any], eos: str) -> Path:
    """The tiny student as a folder that states its end tokens so."""
    shutil.copytree(tiny.STUDENT, folder)
    for name, values in (("config.json", config), ("tokenizer_config.json", {"eos_token": eos})):
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | values))
    (folder / GENERATION).unlink()
    if generation is not None:
        (folder / GENERATION).write_text(json.dumps(generation))
    return folder


@pytest.mark.parametrize("stated", STATED)
def test_weights_adapters_and_exports_end_where_their_base_does(stated: str, tmp_path: Path) -> None:
    generation, config, eos, expected = STATED[stated]
    base = ending(tmp_path / "base", generation, config, eos)
    assert load_tokens(str(base)).end_ids == expected
    tokenizer = load_tokenizer(str(base), local_files_only=True)
    for kind in ("weights", "adapter"):
        model, _ = load_causal_lm(str(base), local_files_only=True, dtype=torch.float32)
        if kind == "adapter":
            add_adapter(model, rank=2, alpha=4.0, seed=0)
        saved, out = tmp_path / kind, tmp_path / f"{kind}-exported"
        saved.mkdir()
        save_pretrained(model, tokenizer, saved)
        export(saved, out, dtype="float32", tolerance=1e-3)
        assert [load_tokens(str(folder)).end_ids for folder in (saved, out)] == [expected, expected]
        for folder in (saved, out):  # for those who read the file themselves
            kept = json.loads((folder / GENERATION).read_text()).get("eos_token_id")
            assert kept == (config if generation is None else generation).get("eos_token_id")


def test_an_adapter_without_the_file_ends_as_its_base_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those written before: their folder has the base's config.json alone."""
    cache = tmp_path / "models--owner--base"
    base = ending(cache / "snapshots" / "1", {"eos_token_id": [1, 0]}, {"eos_token_id": 0}, "<|endoftext|>")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("1")
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    saved = Path(shutil.copytree(base, tmp_path / "adapter"))
    for name in (GENERATION, "model.safetensors"):
        (saved / name).unlink()
    (saved / CONFIG).write_text('{"base_model_name_or_path": "owner/base"}')
    assert load_tokens(str(saved)).end_ids == {0, 1}


def test_the_end_tokens_of_a_nested_configuration(tmp_path: Path) -> None:
    nested = {"eos_token_id": None, "text_config": {"eos_token_id": [1, 0]}}
    assert load_tokens(str(ending(tmp_path / "model", None, nested, "<|endoftext|>"))).end_ids == {0, 1}


def test_a_trained_adapter_answers_as_it_did_in_its_run(tmp_path: Path) -> None:
    """The student ends with token 2, which generation_config.json alone names; merged, it answers the same."""
    base = ending(tmp_path / "base", {"eos_token_id": [2, 0]}, {"eos_token_id": 0}, "<|endoftext|>")
    run = tiny.run(tmp_path / "run", *tiny.every(), f"student.model_name={base}", "student.lora_rank=2")
    inside = records(run / "evaluations" / "step-000002.parquet")
    assert not all(row["truncated"] for row in inside)
    assert entry_point(["export", str(run), "--merged", str(tmp_path / "merged")]) == 0
    config = tiny.configured(run, *tiny.every()).config.evaluation
    settings = {name: getattr(config, name) for name in ("samples", "temperature", "top_p", "top_k", "seed")}
    options = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    models = [f"saved={run / 'checkpoints' / 'step-000002'}", f"merged={tmp_path / 'merged'}"]
    words = ["evaluate", *models, "--benchmarks", f"a={tiny.assets().problems}", "--max-tokens", "6"]
    assert entry_point([*words, *options, "--engine", "transformers", "--out", str(tmp_path / "e")]) == 0
    for label in ("saved", "merged"):
        (file,) = (tmp_path / "e" / label).glob("*.parquet")
        assert [row["token_ids"] for row in records(file)] == [row["token_ids"] for row in inside]


@pytest.fixture(scope="module")
def swapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny student with the two end tokens exchanged: it ends with 0, where its teacher ends with 2."""
    folder = ending(tmp_path_factory.mktemp("swapped") / "student", None, {"eos_token_id": 0}, "<|endoftext|>")
    model, _ = load_causal_lm(str(folder), local_files_only=True, dtype=torch.float32)
    with torch.no_grad():
        weight = model.get_input_embeddings().weight
        weight[[0, 2]] = weight[[2, 0]]
    model.save_pretrained(folder)
    return folder


def first_batch(folder: Path, student: Path, *overrides: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The record and the tensors of one step, whose responses are the same whatever the teacher counts."""
    tiny.run(folder, "train.steps=1", "telemetry.save_batch_every=1", f"student.model_name={student}", *overrides)
    return tiny.records(folder / "metrics.jsonl")[0], tiny.tensors(folder)


def test_what_another_end_token_costs_and_what_the_key_makes_of_it(
    swapped: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record, plain = first_batch(tmp_path / "plain", swapped)
    mask, ids, gap = plain["sampled"].bool(), plain["token_ids"], plain["teacher_logp"] - plain["old_logp"]
    ends = mask & (ids == 0)
    assert ends.any()
    assert record["teacher/end_gap_mean"] == pytest.approx(float(gap[ends].mean()))
    assert record["teacher/end_gap_mean"] < -3
    start, cost = [each.getMessage() for each in caplog.records if "ends a response" in each.getMessage()]
    assert "'<|endoftext|>', the teacher with '<|im_end|>'" in start
    assert "teacher.end_token" in start
    for number in (f"{gap[ends].mean():+.2f}", f"{gap[mask & ~ends].mean():+.3f}", f"{gap[mask].mean():+.3f}"):
        assert number in cost
    caplog.clear()
    _, without = first_batch(tmp_path / "left_out", swapped, "teacher.end_token=left_out")
    _, own = first_batch(tmp_path / "own", swapped, "teacher.end_token=own")
    _, sampled = first_batch(tmp_path / "sampled", swapped, "teacher.end_token=sampled")
    assert not any("ends a response" in each.getMessage() for each in caplog.records)
    assert torch.equal(sampled["teacher_logp"][mask], plain["teacher_logp"][mask])
    assert torch.equal(without["teacher_logp"][ends], plain["old_logp"][ends])
    teacher, _ = load_causal_lm(str(tiny.TEACHER), local_files_only=True, dtype=torch.float32)
    asked = read_responses(tmp_path / "own" / "batches" / "step-000001.parquet").column("question")
    prompts = [load_tokens(str(swapped)).prompt(Problem("", question, ""), CHAT) for question in asked]
    for row, column in ends.nonzero().tolist():
        read = torch.tensor([[*prompts[row], *ids[row, :column].tolist()]])
        with torch.no_grad():
            expected = teacher(read).logits[0, -1].log_softmax(0)[2]
        assert float(own["teacher_logp"][row, column]) == pytest.approx(float(expected), abs=1e-4)
    for found in (without, own):
        assert torch.equal(found["teacher_logp"][mask & ~ends], plain["teacher_logp"][mask & ~ends])


def test_any_of_the_teachers_own_end_tokens_counts(swapped: Path, tmp_path: Path) -> None:
    """p(0) + p(2), where the teacher ends with either, as many instruct models do."""
    both = ending(tmp_path / "both", {"eos_token_id": [2, 0]}, {"eos_token_id": 2}, "<|im_end|>")
    found = [
        first_batch(tmp_path / name, swapped, f"teacher.model_name={both}", f"teacher.end_token={name}")[1]
        for name in ("sampled", "own")
    ]
    ends = found[0]["sampled"].bool() & (found[0]["token_ids"] == 0)
    assert (found[1]["teacher_logp"][ends] > found[0]["teacher_logp"][ends] + 0.5).all()
    assert (found[1]["teacher_logp"][ends] <= 0).all()


def test_the_doctor_and_the_audit_say_that_they_end_otherwise(
    swapped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(tiny.assets().config)
    words = [*tiny.SMALL, f"run.folder={tmp_path / 'run'}", f"student.model_name={swapped}"]
    for extra, status in (
        ([], "warn"),
        (["teacher.end_token=own"], "ok"),
        (["student.model_name=" + str(tiny.STUDENT)], "ok"),
    ):
        loaded = tiny.configured(tmp_path / "run", f"student.model_name={swapped}", *extra).config
        seen = looking.found(loaded, *looking.TOKENIZERS)["teacher end tokens"]
        assert (seen[0], "end_token=own" in seen[1]) == (status, status == "warn")
    assert entry_point(["audit", "teacher", config, *words, "--problems", "4"]) == 0
    assert "gap at the end token" in capsys.readouterr().out
    section = json.loads((tmp_path / "run" / "audits" / "teacher" / "section.json").read_text())
    assert "set teacher.end_token" in json.dumps(section)


@pytest.mark.parametrize(
    ("template", "stop", "said"),
    [
        ("", [], "'<|im_end|>', but a response ends with '<|endoftext|>'"),
        ("", ["<|im_end|>"], None),
        ("{% for m in messages %}{{ m['content'] }} <|im_end|><|endoftext|>{% endfor %}", [], None),
        ("{% for m in messages %}<|im_start|>{{ m['content'] }}{% endfor %}", [], None),
        ("{% for m in messages %}{{ raise_exception('no') if loop.last and not loop.first else m['content'] }}"
         "{% endfor %}", [], None),
    ],
)  # fmt: skip
def test_a_turn_that_ends_otherwise_than_a_response_is_named_once(
    template: str, stop: list[str], said: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Qwen2.5's base models have ChatML's template and end with another token; the student would go on for both."""
    folder = ending(tmp_path / "student", None, {"eos_token_id": 0}, "<|endoftext|>")
    if template:
        (folder / "chat_template.jinja").write_text(template)
    run = tiny.run(tmp_path / "run", f"student.model_name={folder}", f"rollout.stop={stop}", "train.steps=1")
    begun = [each for each in caplog.messages if "ends a turn" in each]
    assert len(begun) == (said is not None)
    assert (said or "") in "".join(begun)
    seen = looking.found(tiny.configured(run, *tiny.every()).config, *looking.TOKENIZERS)
    assert seen["end of turn"][0] == "ok"
    caplog.clear()
    words = ["evaluate", str(folder), "--benchmarks", f"a={tiny.assets().problems}", "--engine", "transformers"]
    words += ["--samples", "1", "--max-tokens", "2", *(word for each in stop for word in ("--stop", each))]
    assert entry_point([*words, "--out", str(tmp_path / "e")]) == 0
    assert len([each for each in caplog.messages if "ends a turn" in each]) == (said is not None)


def test_a_server_does_not_score_its_own_end_tokens(tmp_path: Path) -> None:
    served = "teacher={url: 'http://localhost:1', model_name: m, tokenizer: t, entropy: plugin, end_token: own}"
    with pytest.raises(UecrError, match=r"end_token.*left_out"):
        tiny.configured(tmp_path, served)
