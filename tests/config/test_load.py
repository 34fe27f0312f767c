"""Files, inheritance, interpolation, overrides; and what a run writes of them, reads again and does not let change."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.config.load import (
    SHIPPED,
    annotated_yaml,
    check_same_configuration,
    dump_config,
    flat_values,
    load_config,
    read_written,
    written_config,
)
from nemo_uecr.errors import CheckpointError, RunFolderError
from tests.config.shipped import CONFIGS, DEMO, refusal

BASE = CONFIGS / "local" / "base.yaml"
RUNNABLE = sorted(path for path in BASE.parent.rglob("*.yaml") if path != BASE)  # the others: test_nemo.py


def write(folder: Path, text: str, name: str = "config.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", RUNNABLE, ids=lambda path: path.stem)
def test_every_shipped_configuration_loads(path: Path) -> None:
    loaded = load_config(path, [])
    assert set(loaded.origins) == set(flat_values(loaded.config))


def test_the_base_alone_lacks_what_a_run_must_give() -> None:
    message = refusal(path=BASE)
    assert message.startswith(f"{BASE}: missing run.folder; write it")
    assert message.endswith("(and 3 more: student.model_name, data.train, train.steps)")


def test_later_parent_and_child_win(tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    root = f"defaults: {DEMO}\nrun: {{seed: 1}}\ntrain: {{steps: 1, learning_rate: 3e-5}}\n"
    write(tmp_path, root, "up/root.yaml")
    write(tmp_path, "defaults: root.yaml\nrollout: {top_k: 3}\nrun: {seed: 2}\n", "up/a.yaml")
    write(tmp_path, "run: {seed: 3}\nrollout: {top_k: 4, prompts_per_step: 3}\n", "up/b.yaml")
    text = "evaluation: {benchmarks: {_override_: true, own: own.jsonl}}\nrollout: {top_k: 5}\n"
    child = write(tmp_path, f"defaults: [up/a.yaml, up/b.yaml]\ntrain: {{microbatch_responses: 1}}\n{text}")
    loaded = load_config(child, [])
    assert (loaded.config.train.steps, loaded.config.run.seed, loaded.config.rollout.top_k) == (1, 3, 5)
    assert loaded.config.train.learning_rate == 3e-5  # which YAML 1.1 takes for a text
    assert loaded.config.train.minibatch_responses == 24  # the base's prompts_per_step * responses_per_prompt
    assert loaded.config.evaluation.benchmarks == {"own": "own.jsonl"}
    text = f"defaults: {child}\nevaluation: {{benchmarks: {{}}}}\ncheckpoint: {{keep_best: false}}\n"
    emptied = load_config(write(tmp_path, text, "e.yaml"), [])
    assert emptied.config.evaluation.benchmarks == {}
    assert emptied.config.train == loaded.config.train
    origins = [loaded.origins[key] for key in ("train.steps", "run.seed", "rollout.top_k")]
    assert origins == [str(tmp_path / "up" / "root.yaml"), str(tmp_path / "up" / "b.yaml"), str(child)]


def test_a_shipped_configuration_is_found_from_anywhere_but_not_before_ones_own(tmp_path: Path) -> None:
    child = write(tmp_path, "defaults: local/demo.yaml\ntrain: {steps: 1}\n")
    assert load_config(child, []).origins["run.folder"] == str(SHIPPED / "local" / "demo.yaml")
    (tmp_path / "local").mkdir()
    own = write(tmp_path, f"defaults: {DEMO}\nrun: {{folder: own}}\n", "local/demo.yaml")
    assert load_config(child, []).origins["run.folder"] == str(own)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("run:\n  seed: 1\n  seed: 2\n", "found duplicate key seed"),
        ("run:\n\tseed: 1\n", "line 2"),
        (
            f"defaults: {CONFIGS}/study/few.yaml\nfolder: x\n",
            "it is a file for another command: python -m benchmarks.study",
        ),
        ("a: !!python/object:os.system x\n", "could not determine a constructor for the tag"),
        ("defaults: nowhere.yaml\n", "config.yaml inherits it): cannot be read: No such file or directory"),
        ("policy: {}\ngrpo: {}\n", "is a recipe of NeMo-RL's"),
        (f"defaults: {DEMO}\ntrain.steps: 3\n", "in a file, write train: {steps: ...}"),
        (f"defaults: {DEMO}\nrun: {{folder: '${{RUNS}}/a'}}\n", "an environment variable is ${oc.env:NAME} (set in"),
        ("defaults: config.yaml\n", "a file cannot inherit itself"),
        ("defaults: [{model: small}]\n", "expected a file name or a list of file names"),
        (f"defaults: {DEMO}\ntrain: {{learning_rat: 1.0}}\n", "the nearest known key is train.learning_rate"),
        (f"defaults: {DEMO}\nrun: {{seed: '${{nowhere.at_all}}'}}\n", "run.seed: "),
        (f"defaults: {DEMO}\ntelemetry: null\n", "telemetry: got null, expected a valid dictionary (set in "),
    ],
)
def test_a_faulty_file_is_named(tmp_path: Path, text: str, fault: str) -> None:
    message = refusal(path=write(tmp_path, text))
    assert fault in message
    assert str(tmp_path) in message


@pytest.mark.parametrize(
    ("overrides", "key", "value"),
    [
        (["train.steps=3"], "train.steps", 3),
        (["++train.steps=3", "+train.steps=4"], "train.steps", 4),
        (["method.sample_std=true"], "method.sample_std", True),  # a key that no file has
        (["run.folder=on"], "run.folder", "on"),  # text is taken as written
        (["run.folder=a=b"], "run.folder", "a=b"),
        (["run.folder=~/a"], "run.folder", str(Path.home() / "a")),
        (["data.system_prompt='null'"], "data.system_prompt", "null"),
        (["threads=null"], "threads", None),
        (["telemetry.tensorboard=off"], "telemetry.tensorboard", "off"),  # a word there, no boolean
        (["rollout.top_k=${mul:3,4}"], "rollout.top_k", 12),
        (["rollout.top_k=${max:3,4}"], "rollout.top_k", 4),
        (["method={name: puu, alpha: 2.0}"], "method.alpha", 2.0),
        (["evaluation.benchmarks.a.b=own.jsonl"], "evaluation.benchmarks.a.b", "own.jsonl"),
        (["evaluation.benchmarks={}", "checkpoint.keep_best=false"], "evaluation.benchmarks", {}),
    ],
    ids=str,
)
def test_an_override(overrides: list[str], key: str, value: object) -> None:
    loaded = load_config(DEMO, overrides)
    assert (flat_values(loaded.config)[key], loaded.origins[key]) == (value, "override")


def test_an_override_leaves_the_rest_of_its_section() -> None:
    config = load_config(DEMO, ["method={name: puu}", "evaluation.benchmarks.own=own.jsonl"]).config
    assert config.method.alpha == 1.0
    assert len(config.evaluation.benchmarks) > 1


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("train.steps", 'train.steps: got "", expected a valid integer (set on the command line)'),
        ("train.step=3", "the nearest known key is train.steps"),
        ("train.steps.max=5", "(set on the command line); the nearest known key is train.steps"),
        ("method.bnd=1", "the nearest known key is method.bound"),
        ("method.tau=1", "the nearest known key is method.tau_delta"),
        ("alpha=1", "the nearest known key is method.alpha"),
        ("run.folder=$RUNS/a", "expected ${oc.env:RUNS} for an environment variable"),
        ("data.system_prompt=None", "got 'None', expected a value, or null for none"),
        ("method=grpo", "expected a section; write method.name=grpo"),
    ],
)
def test_what_is_no_override(text: str, end: str) -> None:
    assert refusal(text).endswith(end)


# LaTeX has dollars and backslashes; OmegaConf reads a backslash as an escape before `${` and as itself elsewhere.
TEMPLATES = ["$${question}$ ä # no comment: 'x'\nsecond line", "{question} ${a}", r"{question} \${a} and \ on its own"]


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_a_run_writes_gives_the_same_run_again(tmp_path: Path, template: str) -> None:
    words = ["data.system_prompt='null'", "telemetry.tensorboard=off", "train.learning_rate=1e-7"]
    loaded = load_config(DEMO, [*words, "evaluation.benchmarks.on=on.jsonl"])
    data = loaded.config.data.model_copy(update={"prompt_template": template})
    rollout = loaded.config.rollout.model_copy(update={"stop": (template,)})
    config = loaded.config.model_copy(update={"data": data, "rollout": rollout})
    path = write(tmp_path, dump_config(config))
    again = load_config(path, [])
    assert again.config == config
    assert set(again.origins.values()) == {str(path)}
    assert read_written(path) == config.model_dump(mode="json")
    assert written_config(path) == config

    text = annotated_yaml(config.model_dump(mode="json"), loaded.origins)
    assert load_config(write(tmp_path, text), []).config == config
    origin_of = {line.split(":")[0].strip(): line.rpartition("# ")[2] for line in text.splitlines()}
    assert (origin_of["learning_rate"], origin_of["std_floor"], origin_of["backend"]) == (
        "override", "default", str(BASE),
    )  # fmt: skip


@pytest.mark.parametrize("text", ["${oc.env:HOME}", "x ${method.name}"])
def test_nothing_is_looked_up_for_a_run_folder(tmp_path: Path, text: str) -> None:
    assert read_written(write(tmp_path, f"a: '{text}'")) == {"a": text}


def test_what_no_run_has_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="No such file"):
        read_written(tmp_path / "config.yaml")


def resumed(saved: list[str], now: list[str]) -> None:
    before = load_config(DEMO, saved).config.model_dump(mode="json")
    check_same_configuration(Path("runs/one"), load_config(DEMO, now).config, before)


def test_what_a_resumed_run_may_change() -> None:
    """What is written, and how long it trains; of what is trained, the first difference is named."""
    resumed([], ["train.steps=9", "run.folder=elsewhere", "checkpoint.every=3", "telemetry.save_batch_every=7"])
    resumed([], ["tolerances.budget=1e-5", "threads=1", "train.microbatch_responses=1"])
    served = ["teacher={url: 'http://node17:8000', model_name: served, tokenizer: tokens, entropy: plugin}"]
    resumed(
        [*served, "reward=[{call: a.py:f, timeout_s: 5}]"], [served[0].replace("17", "23"), "reward=[{call: a.py:f}]"]
    )
    with pytest.raises(CheckpointError, match=r"train\.steps"):  # its coefficient is annealed over the run
        resumed(["method.name=saf_opd", "train.steps=4"], ["method.name=saf_opd", "train.steps=8"])
    with pytest.raises(CheckpointError, match=r"^runs/one was written with loss\.clip_low=0\.11, this run has 0\.2"):
        resumed(["run.seed=77", "loss.clip_low=0.11"], [])
    with pytest.raises(CheckpointError, match=r"with reward\.1\.weight=0\.5, this run has 0\.25"):
        resumed(["reward=[math, {call: a.py:f, weight: 0.5}]"], ["reward=[math, {call: a.py:f, weight: 0.25}]"])
