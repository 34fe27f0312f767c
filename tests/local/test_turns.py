"""Responses of several turns: what is observed is context and nothing else, from the rollout to the report."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nemo_uecr.audit import facts
from nemo_uecr.audit.sources import table_source
from nemo_uecr.cli.main import entry_point
from nemo_uecr.config.load import load_config
from nemo_uecr.core import GAP_CLIP
from nemo_uecr.errors import CheckpointError, ConfigError, DataError, RewardError
from nemo_uecr.generation.models import load_tokenizer
from nemo_uecr.local import rollout, trainer
from nemo_uecr.report.credit import step_map
from nemo_uecr.responses.replay import recompute, scored_batch
from nemo_uecr.responses.table import Responses, read_responses
from nemo_uecr.start.checks import DOCTOR, asked, examine
from nemo_uecr.start.facts import of_local, size_of
from tests.generation.games import write_games
from tests.local import tiny
from tests.local.tiny import assets, every, in_child, metrics, outcome, run, same
from tests.reliability.commands import refused

TURNS = (
    "reward=[math, environment]",
    "rollout.max_response_tokens=120",
    "evaluation.max_tokens=120",
    "telemetry.save_batch_every=1",
)


def played(games: Path, name: str, **settings: Any) -> tuple[str, ...]:
    """Overrides with which a class of the games answers, in three turns of at most six tokens."""
    section = {"call": f"{games}:{name}", "max_turns": 3, "turn_tokens": 6, "processes": 2} | settings
    return (f"environment={json.dumps(section)}", *TURNS)


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_games(tmp_path_factory.mktemp("games"))


@pytest.fixture(scope="module")
def folder(games: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps in which the student has further tries."""
    torch.set_num_threads(1)
    return run(tmp_path_factory.mktemp("turns") / "run", *every(), *played(games, "Again"))


def saved(folder: Path, step: int = 1) -> Responses:
    return read_responses(folder / "batches" / f"step-{step:06d}.parquet")


def sampled(table: Responses) -> Tensor:
    return table.padded("sampled").bool()


def logp_of(model: Path, table: Responses) -> list[Tensor]:
    """A plain forward over each whole conversation."""
    module, found = tiny.load(model).module, []
    for prompt, ids in zip(table.column("prompt_ids"), table.column("token_ids"), strict=True):
        with torch.no_grad():
            logits = module(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].double()
        found.append(logits.log_softmax(-1))
    return found


def test_scores_are_those_of_the_whole_conversation_and_of_sampled_tokens_alone(folder: Path) -> None:
    table = saved(folder)
    rows = len(table)
    for model, column in ((assets().student, "old_logp"), (assets().teacher, "teacher_logp")):
        for row, logp_TV in enumerate(logp_of(model, table)):
            ids, mask = (torch.tensor(table.column(name)[row]) for name in ("token_ids", "sampled"))
            mine_T = logp_TV.gather(1, ids[:, None])[:, 0]
            theirs = table.column(column)[row]
            assert [value is None for value in theirs] == (~mask).tolist()
            given = torch.tensor([value or 0.0 for value in theirs], dtype=torch.float64)
            torch.testing.assert_close(given[mask], mine_T[mask], atol=2e-5, rtol=0)
            if column == "teacher_logp":
                entropy = -(logp_TV.exp() * logp_TV).sum(-1)
                told = torch.tensor([v or 0.0 for v in table.column("teacher_entropy")[row]], dtype=torch.float64)
                torch.testing.assert_close(told[mask], entropy[mask], atol=2e-5, rtol=0)
    gap_BT = (table.padded("teacher_logp") - table.padded("old_logp")).double().clamp(-GAP_CLIP, GAP_CLIP)
    mask_BT = sampled(table)
    assert bool((~mask_BT & (table.padded("turn") == 0)).any())
    mean_B = (gap_BT * mask_BT).sum(1) / mask_BT.sum(1)
    torch.testing.assert_close(torch.tensor(table.column("teacher_reward")).double(), mean_B, atol=1e-6, rtol=0)
    weight_B = (table.padded("weight") * mask_BT).sum(1) / mask_BT.sum(1)
    torch.testing.assert_close(weight_B, torch.ones(rows), atol=1e-6, rtol=0)  # the budget is of sampled tokens
    for name in ("advantage", "weight", "old_logp_rollout", "teacher_rank"):
        for values, own in zip(table.column(name), table.column("sampled"), strict=True):
            assert [value is not None for value in values] == own


def test_telemetry_counts_sampled_tokens(folder: Path) -> None:
    table, record = saved(folder), metrics(folder)[0]
    mask_BT, turn = sampled(table), table.padded("turn")
    length_B = torch.tensor([len(ids) for ids in table.column("token_ids")])
    assert record["turns/count_mean"] == pytest.approx(float((turn.amax(1) + 1.0).mean()))
    assert record["turns/count_max"] == 3
    assert record["turns/observed_share"] == pytest.approx(1 - float(mask_BT.sum() / length_B.sum()))
    assert record["turns/observed_share"] > 0.3
    assert record["response/length_mean"] == pytest.approx(float(mask_BT.sum(1).double().mean()))
    assert record["count/valid_tokens"] == int(mask_BT.sum())
    assert (record["turns/failed"], record["turns/call_errors"], record["reward/environment/failed"]) == (0, 0, 0)
    gap_BT = (table.padded("teacher_logp") - table.padded("old_logp")).double()
    first_BT = mask_BT & ~mask_BT.roll(1, dims=1) & (turn > 0)
    assert record["turns/first_gap_mean"] == pytest.approx(float(gap_BT[first_BT].mean()), abs=1e-6)
    rest_BT = mask_BT & ~first_BT
    rest_B = (gap_BT.clamp(-5, 5) * rest_BT).sum(1) / rest_BT.sum(1)
    assert record["turns/teacher_reward_rest"] == pytest.approx(float(rest_B.mean()), abs=1e-6)
    assert record["policy/first_ratio_error"] == 0


def test_the_verifier_judges_the_last_turn_and_the_rewards_add_up(folder: Path) -> None:
    table = saved(folder)
    tokenizer = load_tokenizer(str(assets().student), local_files_only=True)
    columns = ("token_ids", "turn", "answer", "verdict", "reward", "response", "reward/environment", "truncated")
    late = 0
    for ids, turn, answer, verdict, reward, response, own, cut in zip(*map(table.column, columns), strict=True):
        said = [[token for token, number in zip(ids, turn, strict=True) if number == each] for each in range(3)]
        texts = [tokenizer.decode(each, skip_special_tokens=True) for each in said if each]
        assert response == "\n".join(texts)
        boxed = [f"\\boxed{{{answer}}}" in text for text in texts]
        assert not any(boxed[:-1])  # it would have ended there
        assert (verdict == "correct") == boxed[-1]
        assert own == (1.0 / len(texts) if boxed[-1] and not cut else 0.0)  # a turn that was cut off is not answered
        assert reward == pytest.approx(boxed[-1] + own)
        late += boxed[-1] and len(texts) > 1
    assert late


def test_saved_steps_are_replayed_bit_for_bit(folder: Path) -> None:
    assert all(recompute(path).bitwise for path in sorted((folder / "batches").glob("*.parquet")))


def test_evaluations_keep_what_was_observed(folder: Path) -> None:
    table = read_responses(folder / "evaluations" / "step-000002.parquet")
    assert any(not all(own) for own in table.column("sampled"))
    assert table.count_B.tolist() == [sum(own) for own in table.column("sampled")]
    right = [own > 0 for own in table.column("reward/environment")]
    assert table.column("correct") == right  # here both judge alike
    source = table_source(folder / "evaluations" / "step-000002.parquet", step=None)
    assert [each.sampled for each in source.rollouts] == [tuple(own) for own in table.column("sampled")]


def test_the_credit_map_shows_what_was_observed(folder: Path) -> None:
    shown = step_map(1, folder / "batches" / "step-000001.parquet", token_budget=10_000)["responses"]
    late = [one for one in shown if one["observed"]]
    assert late
    for one in late:
        assert all("Wrong: try again." in text for text in one["observed"].values())
        assert all(place < one["count"] == len(one["text"]) == len(one["after"]) for place in one["observed"])


def test_the_command_evaluates_as_the_run_does(
    folder: Path, games: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = folder / "checkpoints" / "step-000002", tmp_path / "out"
    words = [120 if word == 6 else word for word in tiny.evaluation(f"m={model}", out)]  # the limit
    told = refused(capsys, *words)
    assert (
        f"was trained with environment {games}:Again; give --environment {games}:Again, which is played as in" in told
    )
    assert entry_point([str(word) for word in (*words, "--environment", f"{games}:Again")]) == 0
    columns = ("problem", "sample", "token_ids", "sampled", "correct")
    tables = (out / "m" / "responses.parquet", folder / "evaluations" / "step-000002.parquet")
    mine, theirs = (sorted(zip(*map(read_responses(each).column, columns), strict=True)) for each in tables)
    assert mine == theirs
    settings = json.loads((out / "m" / "settings.json").read_text())
    assert settings["environment"]["call"] == f"{games}:Again"
    assert len(settings["environment"]["sha256"]) == 64
    assert settings["environment"]["correct_at"] is None  # the verifier judges, as in the run
    assert (settings["environment"]["max_turns"], settings["environment"]["turn_tokens"]) == (3, 6)


def test_a_teachers_own_responses_are_played_too(games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that `audit teacher` says what a teacher is worth that never saw the format."""
    played_by = []
    respond = facts.respond

    def noted(sampler: Any, *args: Any, **given: Any) -> Any:
        told, responses = respond(sampler, *args, **given)
        played_by.append([len(each.turns) for each in responses])
        return told, responses

    monkeypatch.setattr(facts, "respond", noted)
    config = tiny.configured(tmp_path / "run", *played(games, "Again")).config
    found = facts.facts_of_config(config, problems=2)
    assert found.shares["teacher"] is not None
    assert max(played_by[0]) > 1


def test_the_doctor_plays_nothing_but_looks(games: Path, tmp_path: Path) -> None:
    def found(*settings: str) -> dict[str, tuple[str, str]]:
        run = of_local(tiny.configured(tmp_path / "run", *settings).config, size_of, ray_port=0, resources=None)
        names = ("student tokenizer", "environment", "tools", "turns")
        checks = [check for check in asked(run, DOCTOR) if check.name in names]
        return {each.check: (each.status, each.message) for each in examine(run, checks)}

    seen = found(*played(games, "Again"))
    assert seen["environment"] == ("ok", "Again")
    assert seen["turns"][0] == "warn"
    assert "thoughts" in seen["turns"][1]
    seen = found(*played(games, "Account"))
    assert seen["environment"] == ("ok", "Account, with the tools look, pay")
    assert seen["tools"][0] == seen["turns"][0] == "fail"
    assert "does not show the tool look;" in seen["tools"][1]
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = TOOLS
    shutil.copytree(assets().student, tmp_path / "student")
    tokenizer.save_pretrained(tmp_path / "student")
    seen = found(*played(games, "Account"), f"student.model_name={tmp_path / 'student'}")
    assert (seen["tools"], seen["turns"][0]) == (("ok", "the template shows look, pay"), "ok")
    assert found(*played(games, "Missing"))["environment"][0] == "fail"
    assert set(found(*TURNS[1:])) == {"student tokenizer"}


def test_a_killed_run_goes_on_bit_for_bit(folder: Path, games: Path, tmp_path: Path) -> None:
    settings = (*every(), *played(games, "Again"))

    def work() -> None:
        step, calls = trainer.Trainer.step, []

        def killed(self: trainer.Trainer, number: int) -> dict[str, float]:
            calls.append(number)
            if number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(self, number)

        trainer.Trainer.step = killed  # type: ignore[method-assign]
        run(tmp_path / "run", *settings)

    assert in_child(work)[0] == -signal.SIGKILL
    assert len(metrics(tmp_path / "run")) == 1
    run(tmp_path / "run", *settings, resume=True)
    assert same(outcome(tmp_path / "run"), outcome(folder), ignoring=("config.yaml",)) == []


def test_one_turn_keeps_its_bits(games: Path, tmp_path: Path) -> None:
    """An environment that ends at once leaves every number as it is without one."""
    without = run(tmp_path / "without", *every(), *TURNS[1:])
    once = run(tmp_path / "once", *every(), *played(games, "Once", turn_tokens=None)[:1], *TURNS[1:])
    for step in (1, 2):
        one, other = saved(without, step), saved(once, step)
        assert set(one.names) == set(other.names)
        for name in {*one.names} - {"asked"}:  # a game of its own is asked
            assert one.column(name) == other.column(name), name
    own = ("turns/",)
    kept = [{k: v for k, v in each.items() if not k.startswith(own)} for each in metrics(once)]
    assert kept == metrics(without)
    weights = "checkpoints/step-000002/model.safetensors"
    assert (without / weights).read_bytes() == (once / weights).read_bytes()


def test_atod_reads_the_turns(games: Path, tmp_path: Path) -> None:
    folder = run(tmp_path / "run", *played(games, "Again"), "method.name=atod", "train.steps=1")
    table = saved(folder)
    weights = [{v for v in own if v is not None} for own in table.column("weight")]
    turns = [max(v for v in own if v is not None) + 1 for own in table.column("turn")]
    assert all(own == {0.75} for own, count in zip(weights, turns, strict=True) if count == 1)
    assert any(len(own) > 1 for own in weights)
    assert scored_batch(table).segments_BT is not None


@pytest.mark.parametrize("name", ["grpo", "pg_opd", "distilled_rl", "uecr_trust"])
def test_other_methods_train_on_turns(name: str, games: Path, tmp_path: Path) -> None:
    folder = run(tmp_path / "run", *played(games, "Again"), f"method.name={name}")
    assert all(each["policy/first_ratio_error"] == 0 for each in metrics(folder))
    assert all(recompute(path).bitwise for path in sorted((folder / "batches").glob("*.parquet")))


def test_the_environment_alone_rewards_and_judges(games: Path, tmp_path: Path) -> None:
    alone = (*every(), *played(games, "Higher", max_turns=2), "reward=environment", "correct_at=1")
    folder = run(tmp_path / "run", *alone)
    table = saved(folder)
    assert table.column("reward") == table.column("reward/environment")
    assert all("\n\nGuess a number below 9." in question for question in table.column("question"))
    prompts = {tuple(ids) for ids in table.column("prompt_ids")}
    assert len(prompts) == 2  # as many as there are problems
    evaluated = read_responses(folder / "evaluations" / "step-000002.parquet")
    assert evaluated.column("correct") == [value >= 1 for value in evaluated.column("reward/environment")]
    words = [120 if word == 6 else word for word in tiny.evaluation(f"m={folder}", tmp_path / "out")]
    assert entry_point([str(word) for word in (*words, "--environment", f"{games}:Higher")]) == 0
    again = read_responses(tmp_path / "out" / "m" / "responses.parquet")
    both = [
        sorted(zip(*map(each.column, ("problem", "sample", "correct")), strict=True)) for each in (again, evaluated)
    ]
    assert both[0] == both[1]  # judged as in the run


def test_an_answer_may_continue_the_turn(tmp_path: Path) -> None:
    """The calculator's way: a stop string ends a turn, and the bare text follows it."""
    file = tmp_path / "tool.py"
    file.write_text(
        "class Tool:\n def step(self, text):\n  return ('7', 0.0, False) if text.endswith('=') else (None, 0.0, True)"
    )
    settings = (f"environment={{call: {file}:Tool, role: text}}", "rollout.stop=['=']", *TURNS[1:])
    table = saved(run(tmp_path / "run", *settings, "train.steps=1"))
    texts = ["".join(words) for words in table.column("tokens")]
    assert any("=7" in text for text in texts)
    for words, mask in zip(table.column("tokens"), table.column("sampled"), strict=True):
        assert all(word == "7" for word, own in zip(words, mask, strict=True) if not own)


TOOLS = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for m in messages %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_typed_methods_train(games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's style: what the student says is given, since one this small calls no tool; the rest is as in every run."""
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = TOOLS
    for name in ("student", "teacher"):  # they read longer prompts, which tell of the tools
        folder = tmp_path / name
        shutil.copytree(getattr(assets(), name), folder)
        tokenizer.save_pretrained(folder)
        sizes = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(sizes | {"max_position_embeddings": 2048}))

    def said(_module: Any, tokens: Any, prompts: Any, seeds: Any, *_: Any, **__: Any) -> list[list[int]]:
        texts = [tokens.tokenizer.decode(prompt) for prompt in prompts]
        assert all("How much to pay." in text for text in texts)  # the student reads what the tools are
        pay = '<tool_call>{"name": "pay", "arguments": {"amount": 2}}</tool_call>'
        answers = ["\\boxed{2}" if "<|im_start|>tool\n2<" in text else pay if seed % 2 else "No." for text, seed in
                   zip(texts, seeds, strict=True)]  # fmt: skip
        return [tokens.tokenizer(f"{each}<|im_end|>", add_special_tokens=False)["input_ids"] for each in answers]

    monkeypatch.setattr(rollout, "decode", said)
    models = (f"student.model_name={tmp_path / 'student'}", f"teacher.model_name={tmp_path / 'teacher'}")
    settings = (*played(games, "Account", turn_tokens=None, role="tool"), *models)
    long = ("data.max_prompt_tokens=1000", "rollout.max_response_tokens=200", "reward=[math, environment]")
    trained = run(tmp_path / "run", *settings, *long)
    assert [record["turns/count_max"] for record in metrics(trained)] == [2, 2]
    table = saved(trained)
    names = ("tokens", "turn", "answer", "reward/environment")
    for words, turn, answer, own in zip(*(table.column(name) for name in names), strict=True):
        assert ("tool\n2<|im_end|>" in "".join(words)) == (1 in turn)
        assert own == (int(answer) == (2 if 1 in turn else 0))  # what was paid is what was asked for
    assert {1 in turn for turn in table.column("turn")} == {True, False}
    assert recompute(trained / "batches" / "step-000002.parquet").bitwise


def limited(games: Path, tmp_path: Path, tokens: int) -> tuple[Responses, dict[str, float]]:
    rest = (f"rollout.max_response_tokens={tokens}", "train.steps=1")
    folder = run(tmp_path / f"run{tokens}", *played(games, "Again"), *rest)
    return saved(folder), metrics(folder)[0]


def test_a_turn_that_is_cut_off_and_an_observation_without_room_end_the_episode(games: Path, tmp_path: Path) -> None:
    table, _ = limited(games, tmp_path, 31)  # an observation is about thirty tokens
    dropped = [cut for cut, turn in zip(table.column("truncated"), table.column("sampled"), strict=True) if all(turn)]
    assert any(dropped)
    assert all(len(ids) <= 31 for ids in table.column("token_ids"))
    table, _ = limited(games, tmp_path, 39)
    lengths = [len(ids) for ids in table.column("token_ids")]
    assert max(lengths) == 39  # the limit of a row's own
    assert all(cut for cut, length in zip(table.column("truncated"), lengths, strict=True) if length == 39)
    cut = run(tmp_path / "cut", *played(games, "Again", turn_tokens=3), "train.steps=1")
    assert all(map(all, saved(cut).column("sampled")))
    assert all(saved(cut).column("truncated"))


def test_a_failing_environment_stops_the_run_and_names_the_response(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text("class Bad:\n def step(self, text):\n  raise LookupError('no such door')\n")
    with pytest.raises(
        RewardError, match=r"(?s)environment Bad failed on at least \d of 8.*step 1, problem p\d, row.*no such"
    ):
        run(tmp_path / "run", f"environment={file}:Bad")


def test_a_changed_environment_is_another_run(games: Path, tmp_path: Path) -> None:
    file = write_games(tmp_path)
    run(tmp_path / "run", *played(file, "Again"), "train.steps=1")
    file.write_text(file.read_text() + "\n# changed\n")
    with pytest.raises(CheckpointError, match="input 'environment': sha256"):
        run(tmp_path / "run", *played(file, "Again"), "train.steps=2", resume=True)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("reward=environment",), "reward: got environment, but there is none; write environment=FILE.py:CLASS"),
        (("environment={call: a.py:B, role: text}",), "environment.role: got text, .*set rollout.stop"),
        (
            ("environment=a.py:B", "method.name=atod", "method.turn_separator=x"),
            "method.turn_separator: got one; expected null",
        ),
        (("environment=a.py:B", "rollout.lag=1"), "rollout.lag: got 1 with an environment; expected 0"),
        (("environment=B",), "environment.call"),
        (("data.answer_key=null",), "data.answer_key: got null, but the rewards have the verifier"),
        (
            ("data.answer_key=null", "reward=a.py:b", "evaluation.benchmarks={a: b.jsonl}"),
            "data.answer_key: got null, but the verifier judges evaluation.benchmarks",
        ),
    ],
)
def test_configurations_that_contradict_themselves(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(assets().config, overrides)


def test_what_cannot_be_played_is_refused_before_the_run(games: Path, tmp_path: Path) -> None:
    cases: tuple[tuple[str, type[Exception], str], ...] = (
        ("Missing", ConfigError, "cannot be used"),
        ("Account", DataError, r"the model's chat template does not show the tool look; expected one that writes its"),
    )
    for name, kind, message in cases:
        with pytest.raises(kind, match=message):
            run(tmp_path / "run", *played(games, name))
        assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_rewards_that_nothing_reads_and_rewards_that_nothing_gives_are_told_once(
    games: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    unread = "Again returns rewards that no entry of reward reads; add one: reward=[..., environment]"
    trained = run(tmp_path / "run", *played(games, "Again"), "reward=math", "train.steps=1")
    assert caplog.text.count(unread) == 1
    assert unread in (trained / "provenance.json").read_text()
    caplog.clear()
    words = [str(assets().config), *tiny.SMALL, f"run.folder={tmp_path / 'other'}"]
    assert entry_point(["config", "check", *words, *played(games, "Again"), "reward=math"]) == 0
    assert caplog.text.count(unread) == 1
    caplog.clear()
    bare = played(games, "Bare", args={"low": 1})
    assert entry_point(["config", "check", *words, *bare]) == 0
    assert "Bare gives no reward (get_reward, reward, step): the reward environment is always 0" in caplog.text
    caplog.clear()
    assert entry_point(["config", "check", *words, *bare, "reward=math"]) == 0
    assert entry_point(["config", "check", *words, *played(games, "Again")]) == 0
    assert "reward" not in caplog.text
    assert "args lacks low, for which Bare has no default" in refused(
        capsys, "config", "check", *words, *played(games, "Bare")
    )


def test_equal_questions_are_games_of_their_own(
    games: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `reset` reads tells them apart; `data prepare`, which keeps one row of a question, is no remedy."""
    files = {}
    for name, answers in {"train": range(6), "twice": [*range(6), 5], "test": range(4, 8)}.items():
        rows = [{"id": f"{name}{row}", "question": "Guess.", "answer": str(each)} for row, each in enumerate(answers)]
        files[name] = tmp_path / f"{name}.jsonl"
        files[name].write_text("".join(json.dumps(row) + "\n" for row in rows))

    def checked(train: str, *more: str) -> list[str]:
        caplog.clear()
        words = [f"data.train={files[train]}", f"evaluation.benchmarks={{test: {files['test']}}}", *more]
        assert entry_point(["config", "check", str(assets().config), *words]) == 0
        return caplog.messages

    held = "test: 2 of 4 games are also in data.train; it is not held out"
    assert checked("train", *played(games, "Again")) == [held]
    assert checked("twice", *played(games, "Again")) == [
        "data.train: 7 rows are 6 games, each counted as often as it stands there", held,
    ]  # fmt: skip
    told = checked("train")
    assert told[0].startswith("data.train: 6 rows are 1 questions, each counted as often as it stands there; 1 of them")
    assert told[-1] == "test: 4 of 4 questions are also in data.train; it is not held out"
    caplog.clear()
    run(tmp_path / "run", *played(games, "Again"), f"data.train={files['twice']}", "train.steps=1")
    assert [each for each in caplog.messages if "rows are" in each or "held out" in each] == [
        "data.train: 7 rows are 6 games, each counted as often as it stands there"
    ]
    caplog.clear()
    words = ["evaluate", f"m={assets().student}", "--benchmarks", str(files["twice"]), "--samples", "1", "--engine",
             "transformers", "--dtype", "float32", "--max-tokens", "8", "--out", str(tmp_path / "ev")]  # fmt: skip
    assert entry_point([*words, "--environment", f"{games}:Once"]) == 0
    assert [each for each in caplog.messages if "rows are" in each] == [
        "twice: 7 rows are 6 games, each counted as often as it stands there"
    ]
    capsys.readouterr()
