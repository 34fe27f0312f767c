"""Runs that cannot work are refused in one line before NeMo-RL is looked for and before a folder is made."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.cli.main import entry_point
from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.core.methods import RunState
from nemo_uecr.core.methods.uecr import Puu
from nemo_uecr.data.batch_file import save_batch
from nemo_uecr.data.manifest import chosen_problems
from nemo_uecr.errors import ConfigError, DataError
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.evaluation import training_evaluation
from nemo_uecr.nemo.step import Routes
from nemo_uecr.plan.faults import teacher_alone_faults
from nemo_uecr.plan.shapes import shape_of
from nemo_uecr.start.model_files import chat_template_in_nemo_rl
from nemo_uecr.start.nemo_form import UNSEEN, check_conversion, check_models, encoded_prompts, layout, routes
from nemo_uecr.start.seen import Caution
from tests.config.shipped import GRPO
from tests.data.made import write_jsonl
from tests.nemo.inside.launched import make_benchmarks, make_tokenizer
from tests.nemo.worlds import BASE, FITS, SIZES, world

BAD = {
    "teacher.parallel.pipeline=8": "teacher.parallel.pipeline: got 8, expected a divisor of the model's 4 layers",
    "rollout.max_response_tokens=3000": "the student has 4096 positions",
    "student.vocabulary=97": "student.vocabulary=97, but the student has 98",
    "data.train={}/keys.jsonl": "no field 'question'",
    "data.difficulty_key=level": "data.difficulty_key=null data.difficulty_low=null data.difficulty_high=null",
    "data.subset=100": "100 problems are left to train on; expected at least rollout.prompts_per_step=126",
    "data.subset=300": "200 problems of difficulty 5.0 to 7.0; expected at least data.subset=300",
    "evaluation.benchmarks={{a: {}/none.jsonl}}": "evaluation.benchmarks.a: no file /",
}


@pytest.mark.parametrize("change", BAD)
def test_what_cannot_work_is_refused_by_both_commands(
    change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*world(tmp_path), change.format(tmp_path)]
    if "max_response" in change:
        given += ["train.tokens_per_microbatch=9000", "scoring.tokens_per_microbatch=9000"]
    for command in (["config", "check"], ["train"]):
        assert entry_point([*command, str(BASE), *given]) == 2
        said = capsys.readouterr().err.strip().splitlines()
        assert BAD[change] in said[-1]
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("rope", [{"rope_scaling": {"type": "yarn"}}, {"rope_parameters": {"rope_type": "yarn"}}])
def test_a_model_extended_with_yarn_is_refused_and_not_as_too_short(rope: dict[str, Any], tmp_path: Path) -> None:
    config, student = load_nemo_config(BASE, world(tmp_path)), tmp_path / "student"
    (student / "config.json").write_text(json.dumps(SIZES | rope | {"max_position_embeddings": 1024}))
    with pytest.raises(
        ConfigError, match=r"^student.model_name: its rotary embeddings are scaled \(yarn\), [^;]*; [^;]*$"
    ):
        layout(config, with_models=True)
    (fault,) = teacher_alone_faults(config, shape_of(str(student), role="teacher"), 2048)
    assert "scaled (yarn)" in fault
    (student / "config.json").write_text(json.dumps(SIZES | {"rope_scaling": {"rope_type": "llama3"}}))
    assert layout(config, with_models=True) != UNSEEN


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("student.megatron_checkpoint={}/none", "student.megatron_checkpoint: .*none has no run_config.yaml"),
        ("student.model_name={}/none", "model '.*none': no such folder"),
        ("teacher.model_name=none/such", "model 'none/such' cannot be loaded"),
    ],
)
def test_models_that_are_not_there(change: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    config = load_nemo_config(BASE, [*world(tmp_path), change.format(tmp_path)])
    with pytest.raises(DataError, match=rf"^{message}.*$"):
        check_models(config)


def test_equal_prompts_have_one_teacher(tmp_path: Path) -> None:
    several = ["teacher.model_name=null", "teachers={a: {model_name: x}, b: {model_name: y}}", "routing.key=kind"]
    given = [*world(tmp_path), *several, "data.prompt_template={question}", "data.difficulty_key=null"]
    given += ["data.difficulty_low=null", "data.difficulty_high=null", f"data.train={tmp_path}/kinds.jsonl"]
    config = load_nemo_config(BASE, given)

    def found(*pairs: tuple[str, str]) -> Routes | None:
        rows = [{"question": question, "final_answer": "2", "kind": kind} for question, kind in pairs]
        write_jsonl(tmp_path / "kinds.jsonl", rows)
        prompts = {place: [ord(question)] for place, (question, _) in enumerate(pairs) if place != 1}
        return routes(config, chosen_problems(config.data, 0), prompts)

    pairs = [("1", "a"), ("2", "a"), ("3", "b"), ("1", "a")]
    assert found(*pairs) == Routes({(ord("1"),): "a", (ord("3"),): "b"}, ["a", "b", "a"])
    with pytest.raises(DataError, match="routed to the teacher b, an equal prompt before it to a"):
        found(*pairs, ("1", "b"))
    with pytest.raises(DataError, match=r"has 'c' under 'kind' .* teachers a, b"):
        found(*pairs, ("4", "c"))


def test_layout_faults_of_one_model_are_told_beside_another_of_an_unknown_kind(tmp_path: Path) -> None:
    given = world(tmp_path)
    (tmp_path / "student" / "config.json").write_text(json.dumps(SIZES | {"model_type": "gemma2"}))
    assert layout(load_nemo_config(BASE, given), with_models=True) == UNSEEN
    with pytest.raises(ConfigError, match="got 8, expected a divisor of the model's 4 layers"):
        layout(load_nemo_config(BASE, [*given, "teacher.parallel.pipeline=8"]), with_models=True)


def test_config_check_says_what_it_did_not_see(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check = ["config", "check", str(BASE), *world(tmp_path)]
    assert entry_point(check) == 0
    assert "is not here" not in capsys.readouterr().out
    assert entry_point([*check, f"teacher.model_name={tmp_path}/elsewhere"]) == 0
    assert "its layout and lengths are checked at the start" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "tokens", "largest", "message"),
    [
        (["teacher.parallel.pipeline=8"], 6, 97, "teacher.parallel.pipeline: got 8, expected a divisor of the model's"),
        ([], 4097, 97, "has 4097 tokens, but the teacher has 4096 positions"),
        ([], 6, 98, "the batch has token id 98; expected ids below student.vocabulary=98"),
        (["method.name=grpo", "teacher.model_name=null"], 6, 97, "method.name: grpo reads no teacher"),
    ],
)  # fmt: skip
def test_a_teacher_alone_that_cannot_work_is_refused(
    changes: list[str], tokens: int, largest: int, message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A batch of one response of all but the first token; nothing is written."""
    monkeypatch.setattr(upstream, "check", lambda: "0.7.0")
    mask, ids = torch.ones(1, tokens, dtype=torch.bool), torch.full((1, tokens), 5)
    mask[0, 0], ids[0, -1] = False, largest
    tensors = {
        "task_reward": torch.ones(1), "group": torch.zeros(1, dtype=torch.long), "mask": mask,
        "old_logp": torch.zeros(1, tokens), "token_ids": ids,
    }  # fmt: skip
    batch, out = tmp_path / "batch.safetensors", tmp_path / "scored.safetensors"
    save_batch(batch, tensors, method=Puu(alpha=1.0), run=RunState(), step=1)
    command = ["teacher", "score", str(BASE), "--batch", str(batch), "--out"]
    assert entry_point([*command, str(out), *world(tmp_path), *changes]) == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert message in said
    assert not out.exists()
    assert entry_point([*command, str(batch), *FITS, *changes]) == 2
    assert "batch.safetensors is the input itself and would be lost" in capsys.readouterr().err


def test_long_prompts_are_counted_before_the_start(tmp_path: Path) -> None:
    """With the tokenizer and template of the run, as the local back end counts them."""
    from nemo_uecr.demo.task import build_tokenizer

    sums = {place: "1+1" * (40 if place in (3, 70) else 1) for place in range(128)}
    rows = [{"id": f"p{place}", "question": text, "final_answer": "2", "difficulty": 6} for place, text in sums.items()]
    tokenizer = build_tokenizer()
    changes = [*world(tmp_path), "data.prompt_template={question}", "data.max_prompt_tokens=100"]
    changes += ["student.vocabulary=300"]
    write_jsonl(tmp_path / "p.jsonl", rows)

    def encoded(config: NemoConfig) -> dict[int, list[int]]:
        return encoded_prompts(config, chosen_problems(config.data, 0), tokenizer)

    with pytest.raises(DataError, match=r"^2 of 128 prompts .* is problem '4' with 1\d\d\. Raise the limit"):
        encoded(load_nemo_config(BASE, changes))
    dropping = load_nemo_config(BASE, [*changes, "data.long_prompts=drop"])
    assert set(range(128)) - encoded(dropping).keys() == {3, 70}
    write_jsonl(tmp_path / "p.jsonl", rows[:127])
    with pytest.raises(DataError, match="125 problems are left to train on"):
        encoded(dropping)


@pytest.mark.parametrize("mark", ["[THINK]", "<|channel|>"])
def test_marks_that_nemo_rl_hides_from_the_verifier_are_named(
    mark: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start and by the doctor; a reward of one's own may do without them."""
    given = world(tmp_path)
    make_tokenizer(tmp_path / "student", special=[mark])
    make_tokenizer(tmp_path / "teacher", special=[mark])
    (tmp_path / "r.py").write_text("def right(samples): ...")
    for reward, named in ((), [True]), ((f"reward={tmp_path}/r.py:right",), []):
        caplog.clear()
        config = load_nemo_config(BASE, [*given, *reward])
        tokenizer = check_models(config)
        assert [f"student: {mark!r} is a special token" in each for each in caplog.messages] == named
        seen = chat_template_in_nemo_rl(tokenizer, thinking=False, verified=not reward)
        assert isinstance(seen, Caution)
        assert ("pays for boxes" in seen.message) == bool(named)


def test_a_long_prompt_of_a_benchmark_is_refused(tmp_path: Path) -> None:
    make_tokenizer(tmp_path / "student")
    given = [f"student.model_name={tmp_path / 'student'}", "data.max_prompt_tokens=20", *make_benchmarks(tmp_path)]
    config = load_nemo_config(BASE, [*GRPO, *given])
    with pytest.raises(DataError, match=r"benchmark easy: .*; the first is problem '3'"):
        training_evaluation(config)


def test_problems_are_kept_by_difficulty_and_drawn_by_seed(tmp_path: Path) -> None:
    rows = [{"question": f"q{place}", "final_answer": 1, "difficulty": place % 10} for place in range(50)]
    write_jsonl(tmp_path / "p.jsonl", rows)
    data = load_nemo_config(BASE, [*GRPO, f"data.train={tmp_path}/p.jsonl"]).data
    kept = chosen_problems(data, 0)
    assert [problem.question for problem in kept] == [f"q{place}" for place in range(50) if place % 10 in (5, 6, 7)]
    few = data.model_copy(update={"subset": 4})
    drawn = [chosen_problems(few, seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(problem in kept for problem in drawn[0])
    write_jsonl(tmp_path / "p.jsonl", [row | {"difficulty": f"Level {row['difficulty']}"} for row in rows])
    assert chosen_problems(data, 0) == kept
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1"}]
    write_jsonl(tmp_path / "p.jsonl", [row | {"question": talk} for row in rows])
    with pytest.raises(DataError, match=r"problem '1' has turns before its question"):
        chosen_problems(data, 0)


def finished(made: Path) -> None:
    """As Megatron-Bridge writes it: the shards, its two trackers, and run_config.yaml last."""
    (made / "iter_0000000").mkdir(parents=True)
    for name in ("latest_train_state.pt", "latest_checkpointed_iteration.txt", "iter_0000000/run_config.yaml"):
        (made / name).touch()


@pytest.mark.parametrize("kind", ["folder", "hub"])
def test_an_interrupted_conversion_is_never_used(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NeMo-RL looks whether iter_0000000 is there, which it makes first."""
    monkeypatch.setattr(upstream, "native", lambda name: lambda: str(tmp_path / "cache"))
    teacher = load_nemo_config(BASE, world(tmp_path)).teacher
    if kind == "hub":
        teacher = teacher.model_copy(update={"model_name": "owner/name"})
    named = "owner/name" if kind == "hub" else f"model_{str(tmp_path / 'teacher').replace('/', '_')}"
    made = tmp_path / "cache" / named
    check_conversion("teacher", teacher)
    finished(made)
    check_conversion("teacher", teacher)
    for part in ("iter_0000000/run_config.yaml", "latest_*"):
        for path in made.glob(part):
            path.unlink()
        with pytest.raises(DataError, match=rf"^teacher\.model_name: .*{named} .*interrupted.* remove it.*$"):
            check_conversion("teacher", teacher)
        (made / "iter_0000000/run_config.yaml").touch()


def test_converted_weights_of_another_model_are_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The teacher is made again in its folder, with the sizes and times of the old one."""
    teacher = load_nemo_config(BASE, world(tmp_path)).teacher
    made = tmp_path / "cache" / "model_teacher"
    monkeypatch.setattr(upstream, "conversion_folder", lambda name: made)
    weights = tmp_path / "teacher" / "model-00001-of-00001.safetensors"
    weights.write_bytes(b"old weights")
    check_conversion("teacher", teacher)
    finished(made)
    check_conversion("teacher", teacher)
    before = weights.stat()
    weights.write_bytes(b"new weights")
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    refused = rf"^teacher\.model_name: no record shows that NeMo-RL's conversion {made} was made of the weights "
    with pytest.raises(DataError, match=refused):
        check_conversion("teacher", teacher)
    made.with_name("model_teacher.sha256.json").unlink()
    with pytest.raises(DataError, match=refused):
        check_conversion("teacher", teacher)
