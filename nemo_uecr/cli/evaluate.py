"""The command `evaluate`, with `evaluate compare` and `evaluate table`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from nemo_uecr.cli.common import AtLeastOne, Seed, ZeroOrMore, ZeroOrMoreInt, family, say, within
from nemo_uecr.errors import DataError
from nemo_uecr.paths import SCHEME, locate_path, resolve_path
from nemo_uecr.ranges import UpToOne, range_of

if TYPE_CHECKING:
    from nemo_uecr.config.schema import EnvironmentConfig
    from nemo_uecr.data.problems import Problem
    from nemo_uecr.generation.prompts import ChatSettings

log = logging.getLogger(__name__)

app = family("evaluate")

TEMPLATE = "{question}\nPlease reason step by step, and put your final answer within \\boxed{}."


@app.default
def evaluate(
    models: tuple[str, ...],
    /,
    *,
    max_tokens: AtLeastOne,
    out: Path,
    benchmarks: tuple[str, ...] = ("aime24", "aime25", "amc23", "hmmt_feb25", "hmmt_nov25"),
    samples: AtLeastOne = 12,
    temperature: ZeroOrMore = 0.6,
    top_p: Annotated[float, within(range_of(UpToOne))] = 0.95,
    top_k: ZeroOrMoreInt = 20,
    stop: tuple[str, ...] = (),
    seed: Seed = 42,
    engine: Literal["transformers", "vllm"] = "vllm",
    dtype: Literal["float32", "bfloat16"] | None = None,
    batch: AtLeastOne = 256,
    thinking: Annotated[bool | None, Parameter(negative="--no-thinking")] = None,
    prompt_template: str | None = None,
    system_prompt: str | None = None,
    chat_template_kwargs: tuple[str, ...] = (),
    prompt_date: str | None = None,
    environment: str | None = None,
    correct_at: float | None = None,
    dry_run: bool = False,
) -> None:
    r"""Measure avg@k of one or several models on benchmarks, keeping every sample.

    All models, including the teacher, are evaluated with the same settings, each into its own folder under `--out`.
    After an interruption, the same command generates only the missing samples. By default the prompt is that of the run
    that trained one of the models; without such a run it asks for the answer in \boxed{}.

        nemo-uecr evaluate student=runs/uecr/checkpoints/step-000160 teacher=path/to/teacher \
            --benchmarks aime24 amc23=amc23.jsonl --max-tokens 16384 --out evaluations

    Args:
        models: Model folder, run folder (its best checkpoint, else its newest), hub name or demo:student, as MODEL or
            LABEL=MODEL.
        max_tokens: Longest response, in tokens.
        out: Folder of the results.
        benchmarks: Known names, files or NAME=FILE.
        samples: Responses per problem.
        temperature: Sampling temperature; 0: greedy.
        top_p: Nucleus mass; 1: off.
        top_k: Number of candidate tokens; 0: off.
        stop: Strings that complete a response.
        seed: Seed of the sampling.
        engine: Engine that generates the responses.
        dtype: Precision of the models (default: that of the run that trained one of them, else bfloat16).
        batch: Responses generated and saved at once.
        thinking: Whether the chat template enables thinking.
        prompt_template: User turn with {question} in it.
        system_prompt: System turn; '' for none.
        chat_template_kwargs: Handed to the chat template, as NAME=VALUE.
        prompt_date: What the chat template takes for today, as 2026-11-29.
        environment: What answers the turns: FILE.py:CLASS, with all that a model's run says of it, or a section as
            {call: ..., max_turns: ...}; none.
        correct_at: From which sum of its rewards a response is correct (default: as in the run whose environment it
            is; else the verifier judges the last turn).
        dry_run: Check all arguments; write nothing.
    """
    import yaml

    from nemo_uecr.data.benchmarks import check_benchmarks, load_benchmarks
    from nemo_uecr.data.references import check_references
    from nemo_uecr.evaluation import runner
    from nemo_uecr.evaluation.samples import lines_of
    from nemo_uecr.files import check_writable
    from nemo_uecr.generation import engines

    named = dict(map(label_of, models))
    if len(named) < len(models):
        raise DataError("two models have the same label; give each its own: LABEL=MODEL")
    given = dict(map(_argument, chat_template_kwargs))
    chat = _prompt(named.values(), prompt_template, system_prompt, thinking, given, prompt_date)
    decoding = engines.Decoding(temperature, top_p, top_k, max_tokens, stop)
    precision = dtype or _dtype(named.values())
    played, judged = _environment(environment, named.values(), stop)
    settings = runner.EvaluationSettings(
        samples, decoding, seed, chat, engine, precision, batch,
        environment=played, correct_at=judged if correct_at is None else correct_at,
    )  # fmt: skip
    answered = settings.correct_at is None
    if dry_run:
        check_benchmarks(_placed(benchmarks, locate_path), answered=answered)
        for label, model in named.items():
            engines.check_model(locate_path(model))
            engines.check_weights(locate_path(model))
            if not Path(locate_path(model)).exists() and not model.startswith(SCHEME):
                say(f"{label}: no folder {model} here; assumed to be on the hub, which is not checked")
            check_writable(out / label)
        own = {} if played is None else {"environment": played.model_dump(mode="json")}
        shown = yaml.safe_dump(asdict(settings) | {"environment": None} | own, sort_keys=False, width=float("inf"))
        return say("# dry run: nothing is written", shown.rstrip())
    # Report a mistyped file before the demo's models are made.
    check_benchmarks([text for text in benchmarks if SCHEME not in text], answered=answered)
    named = {label: resolve_path(model) for label, model in named.items()}
    for model in named.values():
        engines.check_model(model)
        engines.load_tokens(model)  # report a mistyped path before a missing package, and before hours of generation
    loaded = load_benchmarks(_placed(benchmarks, resolve_path), answered=answered)
    for name, each in loaded.items() if answered else ():
        check_references(name, each.problems, template=chat.template)
    for caution in _repeats({name: each.problems for name, each in loaded.items()}, played):
        log.warning("%s", caution)
    averages = []
    for label, model in named.items():
        result = runner.evaluate(label, model, loaded, settings, out / label)
        averages.append(f"{label} {100 * result['average']['avg']:.2f}")
        say(*lines_of(result), f"{out / label}/result.json")
    say(f"avg@{samples}: {', '.join(averages)}")


def _repeats(problems: Mapping[str, Sequence[Problem]], played: EnvironmentConfig | None) -> list[str]:
    """What to say of questions, or games, that several rows of a benchmark have."""
    from nemo_uecr.generation.environments import Environment
    from nemo_uecr.start.problem_sets import repeated

    with nullcontext() if played is None else closing(Environment(played)) as environment:
        found = [repeated(problems, name, environment) for name in problems]
    return [each.message for each in found if each is not None]


def label_of(text: str) -> tuple[str, str]:
    """Label (by default the last part of the name) and model of ``[LABEL=]MODEL``; of a run its checkpoint, printed."""
    from nemo_uecr.data.sources import file_kind
    from nemo_uecr.generation.trained import check_trained, trained_model

    label, sign, model = text.partition("=")
    if not sign:
        label, model = Path(text.removeprefix(SCHEME)).name, text
    if label in ("", ".", "..") or "/" in label or not model:
        raise DataError(f"{text!r}: expected MODEL or LABEL=MODEL, the label a plain name: its folder is --out/LABEL")
    if file_kind(Path(model)):
        raise DataError(f"{model} is a file of problems, not a model; name it with --benchmarks")
    path = Path(model).expanduser()
    if (path / "checkpoints").is_dir():
        path, newest = trained_model(path), max((path / "checkpoints").glob("step-*"), default=path)
        best = f"the best on the run's own benchmarks (checkpoint.keep_best); its newest is {newest.name}"
        say(f"{label}: {path}, {'the newest of the run' if path == newest else best}")
    check_trained(path)
    return label, model if path == Path(model) else str(path)


def _dtype(models: Iterable[str]) -> str:
    from nemo_uecr.generation.engines import training_of

    known: set[str] = {run["student"]["dtype"] for model in models if (run := training_of(model))}
    if len(known) > 1:
        raise DataError("the models' runs differ in student.dtype; evaluate them separately, or give one --dtype")
    return known.pop() if known else "bfloat16"


def _environment(
    text: str | None, models: Iterable[str], stop: Sequence[str]
) -> tuple[EnvironmentConfig | None, float | None]:
    """What answers the turns, and from which sum of its rewards a response is correct; None: the verifier says it.

    A model that was trained with an environment is evaluated with one, or expressly without.
    """
    import yaml

    from nemo_uecr.config.load import validated
    from nemo_uecr.config.schema import SEVERAL, AnyReward, EnvironmentSection, Section, judged_by
    from nemo_uecr.generation.engines import training_of

    runs = {model: run for model in models if (run := training_of(model)) and run.get("environment")}
    calls = sorted({run["environment"]["call"] for run in runs.values()})
    if text is None and runs:
        raise DataError(
            f"{next(iter(runs))} was trained with environment {calls[0]}; give --environment {calls[0]}, which is "
            "played as in its run, or --environment none"
        )
    if text in (None, "none"):
        return None, None

    class Given(Section):
        environment: EnvironmentSection

    class Own(Given):
        reward: Annotated[tuple[AnyReward, ...], *SEVERAL]
        correct_at: float

    own = [{key: run[key] for key in Own.model_fields} for run in runs.values() if run["environment"]["call"] == text]
    if any(each != own[0] for each in own):
        raise DataError(f"the models' runs differ in how they play and judge {text}; evaluate them separately")
    if own:
        say(f"environment ({text}, as in its run): {json.dumps(own[0])}")
    values = own[0] if own else {"environment": yaml.safe_load(str(text))}
    given: Any = validated(Own if own else Given, values, {}, "--environment")
    if given.environment is not None and given.environment.role == "text" and not stop:
        raise DataError("--environment: role text continues a turn that a stop string ended; give --stop")
    return given.environment, judged_by(given) if own else None


def _argument(text: str) -> tuple[str, Any]:
    """Name and value, as YAML reads it, of an argument of the chat template."""
    import yaml

    name, sign, value = text.partition("=")
    if not name or not sign:
        raise DataError(f"--chat-template-kwargs {text}: expected NAME=VALUE, as in reasoning_effort=low")
    return name, yaml.safe_load(value)


def _prompt(
    models: Collection[str],
    template: str | None,
    system: str | None,
    thinking: bool | None,
    more: dict[str, Any],
    date: str | None,
) -> ChatSettings:
    """The prompt of the models' runs or of the demo, else the default, changed by the options; printed too."""
    from nemo_uecr.config.schema import day_of
    from nemo_uecr.generation.engines import training_of
    from nemo_uecr.generation.prompts import ChatSettings

    if date:
        try:
            day_of(date)
        except ValueError as error:
            raise DataError(str(error)) from error
    if template is not None and "{question}" not in template:
        raise DataError(f"--prompt-template: got {template!r}, expected {{question}} in the text")
    given = {
        "template": template, "system": system, "thinking": thinking, "chat_template_kwargs": more or None,
        "prompt_date": date,
    }  # fmt: skip
    changes: dict[str, Any] = {k: None if value == "" else value for k, value in given.items() if value is not None}
    known = {f"{model}'s run": ChatSettings.of(run["data"]) for model in models if (run := training_of(model))}
    known |= {model: ChatSettings("{question}", None, False) for model in models if model.startswith(SCHEME)}
    known = known or {"default": ChatSettings(TEMPLATE, None, False)}
    (source, chat), *others = [(source, replace(chat, **changes)) for source, chat in known.items()]
    if unlike := [f"{other} {theirs}" for other, theirs in others if theirs != chat]:
        raise DataError(
            f"{source} had the prompt {chat}; {unlike[0]}: evaluate them separately, or give one --prompt-template, "
            "--system-prompt ('' for none) and --thinking or --no-thinking for all"
        )
    origin = (
        "as given"
        if changes.keys() >= {"template", "system", "thinking"}
        else f"{source}, with what is given"
        if changes
        else source
    )
    say(f"prompt ({origin}): {chat}")
    return chat


def _placed(given: Sequence[str], find: Callable[[str], str]) -> list[str]:
    """The benchmarks, with the path in place of each ``[NAME=]demo:...``."""
    return [f"{name}{sign}{find(place)}" for name, sign, place in (text.rpartition("=") for text in given)]


@app.command(name="compare")
def compare_evaluations(first: Path, second: Path, /, *, seed: Seed = 42) -> None:
    """Compare two evaluations on the same problems, paired: second minus first, with interval and p-values.

    Args:
        first: Evaluation folder, run folder (its last evaluation) or a run's evaluations/step-NNNNNN.parquet.
        second: The other evaluation.
        seed: Seed of the sign changes.
    """
    from nemo_uecr.evaluation.compare import differences_of, lines_of

    say(f"{second} minus {first}, percent", *lines_of(differences_of(first, second, seed=seed)))


@app.command
def table(
    runs: tuple[str, ...],
    /,
    *,
    layout: Literal["main", "ablation"] = "main",
    format: Literal["markdown", "latex"] = "markdown",
) -> None:
    """Print the paper's tables from evaluations and training runs.

    The best value is bold, the second underlined; 95% intervals are in brackets. Labels that name a method become the
    paper's titles.

        nemo-uecr evaluate table initial=ev/base grpo=ev/grpo uecr=ev/uecr --format latex
        nemo-uecr evaluate table runs/grpo runs/puu runs/uecr --layout ablation

    Args:
        runs: Evaluation or run folders, each as RUN or LABEL=RUN.
        layout: Which table of the paper.
        format: Format of the table.
    """
    from nemo_uecr.evaluation.tables import FORMATS, build_table, read_rows

    rows, k = read_rows(list(runs))
    say(FORMATS[format](build_table(rows, layout=layout, k=k)).removesuffix("\n"))
