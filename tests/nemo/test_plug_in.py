"""The start of a recipe: what is refused before the launch script, what is recorded, and what a resume compares."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from torch.utils.data import IterableDataset

from nemo_uecr.errors import CheckpointError, ConfigError, DataError, RunFolderError
from nemo_uecr.nemo import plug_in, records
from nemo_uecr.nemo.evaluation import Schedule, beside_validation
from nemo_uecr.nemo.plug_in import Run, check_models, run_script
from nemo_uecr.nemo.recipe import section_of, view
from nemo_uecr.nemo.upstream import UpstreamError
from nemo_uecr.stopping import RunStopped, StopRequest
from nemo_uecr.telemetry.run_folder import read_run
from nemo_uecr.telemetry.sinks import EVALUATIONS
from tests.nemo.inside.launched import make_tokenizer
from tests.nemo.made_recipe import METHOD, made, made_settings
from tests.nemo.test_recipe import EVALUATION, OTHER_PROBLEMS
from tests.nemo.worlds import SIZES


def recipe_of(folder: Path, **values: Any) -> dict[str, Any]:
    """The made recipe with two models on disk."""
    for role in ("student", "teacher"):
        if not (folder / role).exists():
            make_tokenizer(folder / role)
            (folder / role / "config.json").write_text(json.dumps(SIZES))
    names = {"policy__model_name": str(folder / "student"), "uecr__teacher__model_name": str(folder / "teacher")}
    return made(**names, checkpointing__checkpoint_dir=str(folder / "run"), **values)


def written(folder: Path, **values: Any) -> Path:
    """The same as a file."""
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe_of(folder, **values)))
    return path


@pytest.fixture(autouse=True)
def conversions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where NeMo-RL keeps the weights that it makes; its own function is not at hand."""
    kept = tmp_path / "conversions"
    monkeypatch.setattr("nemo_uecr.nemo.upstream.conversion_folder", lambda model, _: kept / Path(model).name)
    return kept


# -- before the script -----------------------------------------------------------------------------------------------


def test_a_recipe_is_refused_before_the_script_begins(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("raise SystemExit('it ran')")
    path = written(tmp_path, policy__megatron_cfg__enabled=False)
    with pytest.raises(ConfigError, match=r"^policy\.megatron_cfg\.enabled: got False"):
        run_script(tmp_path / "script.py", [f"--config={path}"])
    with pytest.raises(ConfigError, match=r"^grpo\.advantage_clip_low: got 2"):
        run_script(
            tmp_path / "script.py",
            ["++grpo.advantage_clip_low=2", "--config", str(path), "policy.megatron_cfg.enabled=true"],
        )
    assert list(tmp_path.glob("run*")) == []


def test_without_nemo_rl_a_run_stops_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nemo_rl", None)
    with pytest.raises(UpstreamError, match=r"^NeMo-RL cannot be imported .*$"):
        plug_in.train(str(written(tmp_path)), [])


def test_models_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for key, name, message in (
        ("policy__model_name", f"{tmp_path}/none", "model '.*none'"),
        ("uecr__teacher__model_name", "none/such", "model 'none/such' cannot be loaded"),
    ):
        given = recipe_of(tmp_path) | {}
        values = made(**{"policy__model_name": given["policy"]["model_name"], key: name})
        settings = view(values, section_of(values), 98)
        with pytest.raises(DataError, match=message):
            check_models(values, settings)


def test_student_and_teacher_have_one_tokenizer(tmp_path: Path) -> None:
    values = recipe_of(tmp_path)
    settings = view(values, section_of(values), 98)
    check_models(values, settings)
    make_tokenizer(tmp_path / "teacher", special=["<think>"])
    with pytest.raises(DataError, match="tokenizer"):
        check_models(values, settings)


@pytest.mark.parametrize("mark", ["[THINK]", "<|channel|>"])
def test_marks_that_nemo_rl_hides_from_our_verifier_are_named(
    mark: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A reward of one's own may do without them; an environment of NeMo-RL's is not ours to judge."""
    recipe_of(tmp_path)
    for role in ("student", "teacher"):
        make_tokenizer(tmp_path / role, special=[mark])
    for reward, named in (("math", 1), (None, 0)):
        caplog.clear()
        values = recipe_of(tmp_path, uecr__reward=reward)
        check_models(values, view(values, section_of(values), 98))
        assert sum(f"{mark!r} is a special token" in each for each in caplog.messages) == named


def test_a_conversion_that_did_not_end_is_refused_for_each_model(tmp_path: Path, conversions: Path) -> None:
    (conversions / "teacher" / "iter_0000000").mkdir(parents=True)
    values = recipe_of(tmp_path)
    with pytest.raises(DataError, match=r"^uecr\.teacher\.model_name: .* was interrupted"):
        check_models(values, view(values, section_of(values), 98))
    start = {"checkpointing__pretrained_checkpoint": {"path": "x"}, "uecr__teacher__megatron_checkpoint": "mine"}
    own = recipe_of(tmp_path, **start)
    check_models(own, view(own, section_of(own), 98))


def test_a_mixture_of_a_family_that_was_not_tried_is_refused(tmp_path: Path) -> None:
    """Of the student or of a teacher; the families that were are taken."""
    mixture = {"num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    for role, key in (("student", "policy"), ("teacher", "uecr.teacher")):
        values = recipe_of(tmp_path)
        file = tmp_path / role / "config.json"
        for kind, refused in (("qwen3_moe", False), ("mixtral", True)):
            file.write_text(json.dumps(SIZES | mixture | {"model_type": kind}))
            with pytest.raises(ConfigError) if refused else contextlib.nullcontext() as caught:
                check_models(values, view(values, section_of(values), 98))
        assert str(caught.value).startswith(
            f"{key}.model_name: got {tmp_path / role}, a mixture of experts of model_type"
        )
        file.write_text(json.dumps(SIZES))


# -- records and resume ----------------------------------------------------------------------------------------------


def checkpoint_of(folder: Path, values: dict[str, Any]) -> Path:
    """A checkpoint with the configuration that NeMo-RL keeps in it."""
    folder = folder / "step_7"
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    return folder


def test_a_checkpoint_is_continued_as_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = checkpoint_of(tmp_path, made())
    records.check_same_method(checkpoint, made())
    assert caplog.messages == []
    records.check_same_method(checkpoint, made(grpo__max_num_steps=60, uecr__save_batch_every=5))
    records.check_same_method(checkpoint, made(uecr__kl="recipe"))  # its default
    elsewhere = {"uecr__hash_weights": True, "uecr__teacher__dedicated_gpus": 4}
    records.check_same_method(checkpoint, made(uecr__teacher__megatron_cfg__tensor_model_parallel_size=2, **elsewhere))
    assert caplog.messages == [
        "grpo.max_num_steps: 30 when step_7 was written, 60 now",
        "uecr.save_batch_every: 0 when step_7 was written, 5 now",
        "uecr.hash_weights: False when step_7 was written, True now",
        "uecr.teacher.dedicated_gpus: 0 when step_7 was written, 4 now",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"uecr__method__alpha": 2.0}, {"uecr__teacher__model_name": "other"}, {"uecr__kl": "paper"},
        {"loss_fn__ratio_clip_max": 0.3}, {"policy__model_name": "other"}, {"uecr__teacher__precision": "float32"},
    ],
)  # fmt: skip
def test_another_method_teacher_loss_or_model_does_not_continue_a_checkpoint(
    change: dict[str, Any], tmp_path: Path
) -> None:
    key = next(iter(change)).replace("__", ".")
    with pytest.raises(CheckpointError, match=f"step_7 was written with {key}="):
        records.check_same_method(checkpoint_of(tmp_path, made()), made(**change))


def test_a_run_of_a_method_s_earlier_equation_is_not_continued(tmp_path: Path) -> None:
    """A record without a revision is of the first one."""
    values = made(uecr__folder=str(tmp_path), uecr__method={**METHOD, "name": "uecr_trust"})
    section = section_of(values)
    settings = view(values, section, 9)
    records.write(settings, section, values, origins={}, prompts={}, version="0.7.0", step=7)
    records.check_same_inputs(settings, section, {})
    record = json.loads((tmp_path / "provenance.json").read_text())
    assert record.pop("method_revision") == 2
    (tmp_path / "provenance.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=r"was made by revision 1 of uecr_trust, .* expected revision 2"):
        records.check_same_inputs(settings, section, {})


def test_a_checkpoint_of_plain_grpo_is_not_continued(tmp_path: Path) -> None:
    plain = made()
    del plain["uecr"]
    with pytest.raises(CheckpointError, match="written by a run without a section uecr"):
        records.check_same_method(checkpoint_of(tmp_path, plain), made())


def test_the_record_has_the_resolved_recipe_and_versions(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def right(samples): ...")
    values = made(uecr__folder=str(tmp_path / "uecr"), uecr__reward=f"{tmp_path}/mine.py:right")
    section = section_of(values)
    settings = view(values, section, 9)
    settings.folder.mkdir()
    evaluations = settings.folder / EVALUATIONS
    evaluations.write_text("".join(json.dumps({"step": step}) + "\n" for step in (0, 7, 14)))
    rows = [{"message_log": [{"token_ids": [row]}]} for row in range(200)]
    prompts = records.prompt_digests(rows, None)
    named = {"origins": {"grpo.seed": "override"}, "version": "0.7.0", "step": 7}
    records.write(settings, section, values, prompts=prompts, **named)
    written = yaml.safe_load((settings.folder / "config.yaml").read_text())
    assert {key: value for key, value in written.items() if key != "uecr"} | {"uecr": values["uecr"]} == values
    assert written["uecr"]["tolerances"]["first_ratio"] == 0.05
    run = read_run(settings.folder)
    assert (run.method, run.planned_steps, run.tolerances["first_ratio"]) == ("uecr", 30, 0.05)
    assert run.origins == {"grpo.seed": "override"}
    record = json.loads((settings.folder / "provenance.json").read_text())
    assert (record["versions"]["nemo_rl"], list(record["code"])) == ("0.7.0", ["uecr.reward.right"])
    assert [json.loads(line)["step"] for line in evaluations.read_text().splitlines()] == [0, 7]
    records.check_same_inputs(settings, section, prompts)
    rows[-4]["message_log"][0]["token_ids"] = [9, 9]  # 64 rows of 200 are read: every fourth
    with pytest.raises(CheckpointError, match="the prompts of train changed since"):
        records.check_same_inputs(settings, section, records.prompt_digests({"train": rows}, None))


def test_a_changed_environment_is_another_run(tmp_path: Path) -> None:
    (tmp_path / "game.py").write_text("class Game: ...")
    asked = {"uecr__environment": f"{tmp_path}/game.py:Game", "uecr__reward": "environment"}
    values = made(uecr__folder=str(tmp_path / "uecr"), **asked)
    section = section_of(values)
    settings = view(values, section, 9)
    records.write(settings, section, values, origins={}, prompts={}, version="0.7.0", step=0)
    records.check_same_inputs(settings, section, {})
    (tmp_path / "game.py").write_text("class Game:  # another")
    with pytest.raises(CheckpointError, match=r"the file of uecr\.environment changed since"):
        records.check_same_inputs(settings, section, {})


def test_rows_that_are_made_as_they_are_read_have_no_digest() -> None:
    class MadeOnTheWay(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[dict[str, Any]]:
            yield {"message_log": []}

    assert records.prompt_digests(MadeOnTheWay(), []) == {"validation": hashlib.sha256().hexdigest()}


# -- the end ---------------------------------------------------------------------------------------------------------


def ended(reason: str, *, completed: int, saves: bool = True, timed_out: bool = False) -> Run:
    """A run that ended after some of 30 steps."""
    run = object.__new__(Run)
    run.settings, run.saves, run.stop = made_settings(9), saves, StopRequest()
    run.timeouts = [SimpleNamespace(last_saved=timed_out)]
    run.context = SimpleNamespace(completed_steps=completed)  # type: ignore[assignment]
    if reason:
        run.stop.ask(reason)
    return run


def test_an_early_end_says_where_it_saved() -> None:
    with pytest.raises(RunStopped, match=r"^stopped by SIGUSR1 after step 7 of 30; its checkpoint is complete"):
        ended("SIGUSR1", completed=7).report_early_end()
    with pytest.raises(RunStopped, match=r"^stopped by the time limit after step 7"):
        ended("", completed=7, timed_out=True).report_early_end()
    ended("SIGUSR1", completed=30).report_early_end()  # the last step was under way: the run is complete
    ended("", completed=7).report_early_end()  # its data ended
    with pytest.raises(RunFolderError, match=r"checkpointing\.enabled is false, so nothing was saved"):
        ended("SIGUSR1", completed=7, saves=False).report_early_end()


# -- evaluation beside validation ------------------------------------------------------------------------------------


def scheduled(begins: bool = True, **values: Any) -> tuple[Schedule, dict[str, Any]]:
    given = made(
        uecr__data=OTHER_PROBLEMS, uecr__evaluation=EVALUATION, policy__megatron_cfg__train_iters=25,
        grpo__val_at_start=False, **values,
    )  # fmt: skip
    evaluation = section_of(given).evaluation
    assert evaluation is not None
    return Schedule.set(given, evaluation, begins=begins), given


def test_the_loop_validates_when_either_is_due() -> None:
    """Ours every 10 steps, at the start, and after the last step, which the epochs end at 25."""
    schedule, given = scheduled(grpo__val_period=5)
    assert {key: given["grpo"][key] for key in ("val_period", "val_at_start", "val_at_end")} == {
        "val_period": 5, "val_at_start": True, "val_at_end": True,
    }  # fmt: skip
    assert [step for step in range(26) if schedule.due(step)] == [0, 10, 20, 25]
    schedule, given = scheduled(begins=False, grpo__val_period=0)
    assert (given["grpo"]["val_period"], given["grpo"]["val_at_start"]) == (10, False)
    several, _ = scheduled(data__use_multiple_dataloader=True)
    assert several.last_step == 30


def test_ours_runs_beside_theirs_and_theirs_names_the_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    drained: list[bool] = []
    monkeypatch.setattr("nemo_uecr.nemo.upstream.components", lambda: drained.append(True) or {})

    def theirs(generation: Any, loader: Any, tokenizer: Any, *, step: int, logger: Any) -> Any:
        return {"accuracy": 0.25, "reward": 1.0}, {"total_validation_time": 3.0}

    def ours(generation: Any, step: int) -> Any:
        return {"accuracy": 0.5, "aime24/avg@4": 0.5}, {"total_evaluation_time": 2.0}

    schedule, _ = scheduled(grpo__val_period=5)
    validate = beside_validation(theirs, ours, schedule, own_rewards=True)
    assert validate("engine", "data", "tokenizer", step=0, logger=None)[0] == {"aime24/avg@4": 0.5}
    assert drained == []
    assert validate("engine", "data", "tokenizer", step=5, logger=None)[0] == {"accuracy": 0.25, "reward": 1.0}
    metrics, timings = validate("engine", "data", "tokenizer", step=10, logger=None)
    assert metrics == {"accuracy": 0.25, "reward": 1.0, "aime24/avg@4": 0.5}
    assert timings == {"total_validation_time": 3.0, "total_evaluation_time": 2.0}
    assert validate("engine", None, "tokenizer", step=10, logger=None)[0]["accuracy"] == 0.5
    assert drained == [True, True]


def test_a_stop_acts_when_it_is_asked_and_only_its_first_reason_is_kept() -> None:
    stop, acted = StopRequest(), list[str]()
    stop.then(lambda: acted.append(stop.reason))
    stop.ask("SIGUSR1")
    stop.ask("SIGTERM")
    stop.then(lambda: acted.append("late"))
    assert acted == ["SIGUSR1", "SIGUSR1", "late"]
