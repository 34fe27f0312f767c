"""Files, inheritance, overrides and interpolation."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.config.load import annotated_yaml, dump_config, flat_values, load_config
from nemo_uecr.errors import ConfigError

CONFIGS = Path(__file__).resolve().parents[2] / "examples" / "configs" / "local"  # the others: test_nemo.py
SHIPPED = sorted(CONFIGS.rglob("*.yaml"))
RUNNABLE = [path for path in SHIPPED if path.name != "base.yaml"]
DEMO = str(CONFIGS / "demo.yaml")
BASE = str(CONFIGS / "base.yaml")


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def refusal(path: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("path", RUNNABLE, ids=lambda path: path.stem)
def test_every_shipped_configuration_loads(path: Path) -> None:
    loaded = load_config(path, [])
    assert set(loaded.origins) == set(flat_values(loaded.config))


def test_the_base_alone_lacks_what_a_run_must_give() -> None:
    message = refusal(BASE)
    assert message.startswith(f"{BASE}: missing run.folder; write it")
    assert message.endswith("(and 3 more: student.model_name, data.train, train.steps)")


class TestInheritance:
    """`defaults:`: depth first, later wins, relative to the file that names it."""

    def test_later_parent_and_child_win(self, tmp_path: Path) -> None:
        (tmp_path / "parents").mkdir()
        write(
            tmp_path,
            "parents/root.yaml",
            f"defaults: {DEMO}\nrun: {{seed: 1}}\ntrain: {{steps: 1, learning_rate: 3e-5}}\n",
        )
        write(tmp_path, "parents/a.yaml", "defaults: root.yaml\nrollout: {top_k: 3}\nrun: {seed: 2}\n")
        write(tmp_path, "parents/b.yaml", "run: {seed: 3}\nrollout: {top_k: 4}\n")
        child = write(tmp_path, "child.yaml", "defaults: [parents/a.yaml, parents/b.yaml]\nrollout: {top_k: 5}\n")
        loaded = load_config(child, [])
        assert (loaded.config.train.steps, loaded.config.run.seed, loaded.config.rollout.top_k) == (1, 3, 5)
        assert loaded.config.train.learning_rate == 3e-5  # which YAML 1.1 takes for a text
        assert loaded.origins["train.steps"] == str(tmp_path / "parents" / "root.yaml")
        assert loaded.origins["run.seed"] == str(tmp_path / "parents" / "b.yaml")
        assert loaded.origins["rollout.top_k"] == child

    def test_a_section_can_replace_the_inherited_one(self, tmp_path: Path) -> None:
        text = "evaluation:\n  benchmarks: {_override_: true, own: own.jsonl}\n"
        path = write(tmp_path, "run.yaml", f"defaults: {DEMO}\n{text}")
        assert load_config(path, []).config.evaluation.benchmarks == {"own": "own.jsonl"}

    def test_a_missing_parent_is_named_with_the_file_that_wants_it(self, tmp_path: Path) -> None:
        path = write(tmp_path, "run.yaml", "defaults: nowhere.yaml\n")
        parent = tmp_path / "nowhere.yaml"
        said = f"{parent}: cannot be read as YAML: No such file or directory (named by 'defaults' of {path})"
        assert refusal(path) == said

    def test_a_circle_is_refused(self, tmp_path: Path) -> None:
        path = write(tmp_path, "a.yaml", "defaults: b.yaml\n")
        write(tmp_path, "b.yaml", "defaults: a.yaml\n")
        assert "a file cannot inherit itself" in refusal(path)


class TestInterpolation:
    """OmegaConf's `${...}` with the resolvers of NeMo-RL's files."""

    def test_a_value_follows_another_key_that_a_later_file_changes(self, tmp_path: Path) -> None:
        text = "rollout: {prompts_per_step: 3}\ntrain: {microbatch_responses: 1}\n"
        path = write(tmp_path, "run.yaml", f"defaults: {DEMO}\n{text}")
        # The base asks for prompts_per_step times responses_per_prompt, here 3 times 8.
        assert load_config(path, []).config.train.minibatch_responses == 24

    def test_what_cannot_be_resolved_is_named(self) -> None:
        assert refusal(DEMO, "run.seed=${nowhere.at_all}").startswith("run.seed: ")


class TestFiles:
    """What is wrong with a file is said with its name and line."""

    @pytest.mark.parametrize(
        ("text", "end"),
        [
            ("run:\n  seed: 1\n  seed: 2\n", "found duplicate key seed"),
            ("run:\n\tseed: 1\n", "line 2"),
            ("a: !!python/object:os.system x\n", "could not determine a constructor for the tag"),
        ],
        ids=["duplicate", "tab", "python object"],
    )
    def test_faults(self, tmp_path: Path, text: str, end: str) -> None:
        path = write(tmp_path, "run.yaml", text)
        message = refusal(path)
        assert message.startswith(path)
        assert end in message

    def test_an_unknown_key_names_the_nearest(self, tmp_path: Path) -> None:
        path = write(tmp_path, "run.yaml", f"defaults: {DEMO}\ntrain: {{learning_rat: 1.0}}\n")
        assert refusal(path) == (
            f"{path}: unknown key train.learning_rat; the nearest known key is train.learning_rate"
        )


class TestOverrides:
    """`key=value` of the command line."""

    @pytest.mark.parametrize(
        ("overrides", "key", "value"),
        [
            (["train.steps=3"], "train.steps", 3),
            (["+train.steps=3"], "train.steps", 3),
            (["++train.steps=3", "train.steps=4"], "train.steps", 4),
            (["method.std=sample"], "method.std", "sample"),  # a key that no file has
            (["run.folder=on"], "run.folder", "on"),  # text is taken as written
            (["run.folder=a=b"], "run.folder", "a=b"),
            (["data.system_prompt='null'"], "data.system_prompt", "null"),
            (["threads=null"], "threads", None),
            (["telemetry.tensorboard=off"], "telemetry.tensorboard", "off"),  # a word there, no boolean
            (["rollout.top_k=${mul:3,4}"], "rollout.top_k", 12),
            (["rollout.top_k=${max:3,4}"], "rollout.top_k", 4),
            (["evaluation.benchmarks.a.b=own.jsonl"], "evaluation.benchmarks.a.b", "own.jsonl"),
            (["evaluation.benchmarks={}", "checkpoint.keep_best=false"], "evaluation.benchmarks", {}),
        ],
        ids=str,
    )
    def test_a_value(self, overrides: list[str], key: str, value: object) -> None:
        loaded = load_config(DEMO, overrides)
        assert (flat_values(loaded.config)[key], loaded.origins[key]) == (value, "override")

    def test_a_section_merges_and_a_benchmark_is_added(self) -> None:
        method = load_config(DEMO, ["method={name: puu, alpha: 2.0}"]).config.method
        assert (method.name, method.alpha, method.rho) == ("puu", 2.0, 0.5)
        benchmarks = load_config(DEMO, ["evaluation.benchmarks.own=own.jsonl"]).config.evaluation.benchmarks
        assert len(benchmarks) > 1

    def test_what_is_no_override(self) -> None:
        assert refusal(DEMO, "train.steps") == "override 'train.steps': expected key=value, for example train.steps=10"

    @pytest.mark.parametrize(("text", "nearest"), [("train.step=3", "train.steps"), ("alpha=1", "method.alpha")])
    def test_an_unknown_key_names_the_nearest(self, text: str, nearest: str) -> None:
        assert refusal(DEMO, text).endswith(f"the nearest known key is {nearest}")


class TestRoundTrip:
    """What is written into the run folder gives the same run again."""

    OVERRIDES = (
        "data.prompt_template=\\${{question}} \u00e4 # no comment: 'x'\nsecond line",
        "data.system_prompt='null'",
        "telemetry.tensorboard=off",
        "train.learning_rate=1e-7",
        "evaluation.benchmarks.on=on.jsonl",
    )

    def test_the_dump(self, tmp_path: Path) -> None:
        config = load_config(DEMO, self.OVERRIDES).config
        assert config.data.prompt_template.startswith("${{question}}")
        assert config.data.system_prompt == "null"
        again = load_config(write(tmp_path, "config.yaml", dump_config(config)), [])
        assert again.config == config
        assert set(again.origins.values()) == {str(tmp_path / "config.yaml")}

    @pytest.mark.parametrize("text", ["{question} ${a}", r"{question} \${a}"])
    def test_a_text_with_dollars_and_backslashes(self, tmp_path: Path, text: str) -> None:
        """LaTeX has both; OmegaConf reads a backslash as an escape before `${` and as itself elsewhere."""
        plain = load_config(DEMO, []).config
        config = plain.model_copy(update={"data": plain.data.model_copy(update={"prompt_template": text})})
        origins = dict.fromkeys(flat_values(config), "somewhere")
        for written in (dump_config(config), annotated_yaml(config, origins)):
            again = load_config(write(tmp_path, "config.yaml", written), []).config
            assert again.data.prompt_template == text

    def test_the_annotated_form(self, tmp_path: Path) -> None:
        loaded = load_config(DEMO, self.OVERRIDES)
        text = annotated_yaml(loaded.config, loaded.origins)
        assert load_config(write(tmp_path, "config.yaml", text), []).config == loaded.config
        origin_of = {line.split(":")[0].strip(): line.rpartition("# ")[2] for line in text.splitlines()}
        assert origin_of["learning_rate"] == "override"
        assert origin_of["std_floor"] == "default"
        assert origin_of["backend"] == BASE
