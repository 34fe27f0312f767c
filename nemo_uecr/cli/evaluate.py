"""The command `evaluate`, with `evaluate compare` and `evaluate table`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, types, validators

from nemo_uecr.cli.common import AtLeastOne, Seed, family, say
from nemo_uecr.errors import DataError

app = family("evaluate")

TEMPLATE = "{question}\nPlease reason step by step, and put your final answer within \\boxed{}."


@app.default
def evaluate(
    *models: str,
    max_tokens: AtLeastOne,
    out: Path,
    benchmarks: tuple[str, ...] = ("aime24", "aime25", "amc23", "hmmt_feb25", "hmmt_nov25"),
    samples: AtLeastOne = 12,
    temperature: types.NonNegativeFloat = 0.6,
    top_p: Annotated[float, Parameter(validator=validators.Number(gt=0, lte=1))] = 0.95,
    top_k: types.NonNegativeInt = 20,
    stop: tuple[str, ...] = (),
    seed: Seed = 42,
    engine: Literal["transformers", "vllm"] = "vllm",
    dtype: Literal["float32", "bfloat16"] = "bfloat16",
    batch: AtLeastOne = 256,
    thinking: bool = False,
    prompt_template: Annotated[str, Parameter(show_default=repr)] = TEMPLATE,
    system_prompt: str | None = None,
    dry_run: bool = False,
) -> None:
    r"""Measure avg@k of one or several models on benchmarks, keeping every sample.

    All models, the teacher included, are evaluated in the same way, each into its own folder under `--out`. Run the
    same command again after an interruption: it generates only the missing samples.

        nemo-uecr evaluate student=runs/uecr/checkpoints/step-000160 teacher=path/to/teacher \
            --benchmarks aime24 amc23=amc23.jsonl --max-tokens 16384 --out evaluations

    Args:
        models: Model folder, hub name or demo:student, each as MODEL or LABEL=MODEL.
        max_tokens: Longest response, in tokens.
        out: Folder of the results.
        benchmarks: Known names, files or NAME=FILE.
        samples: Responses to each problem.
        temperature: 0: greedy.
        top_p: 1: off.
        top_k: 0: off.
        stop: Strings that end a response, which is then finished.
        seed: Seed of the sampling.
        engine: What generates the responses.
        dtype: Precision of the model.
        batch: Responses generated, and saved, at once.
        thinking: Use the thinking chat template.
        prompt_template: The user's turn, with {question} in it.
        system_prompt: The system's turn.
        dry_run: Check everything that is named; write nothing.
    """
    from nemo_uecr.data.benchmarks import check_benchmarks, load_benchmarks
    from nemo_uecr.evaluation import engines, runner
    from nemo_uecr.evaluation.samples import lines_of
    from nemo_uecr.files import check_writable
    from nemo_uecr.study.demo import locate, resolve

    if "{question}" not in prompt_template:
        raise DataError(f"--prompt-template: got {prompt_template!r}, expected {{question}} in the text")
    decoding = engines.Decoding(temperature, top_p, top_k, max_tokens, stop)
    chat = engines.ChatSettings(prompt_template, system_prompt, thinking)
    settings = runner.Settings(samples, decoding, seed, chat, engine, dtype, batch)
    named = dict(map(label_of, models))
    if not named or len(named) < len(models):
        raise DataError("expected at least one model, and labels that differ: LABEL=MODEL")
    if dry_run:
        check_benchmarks(_placed(benchmarks, locate))
        for label, model in named.items():
            engines.check_model(locate(model))
            check_writable(out / label)
        say(f"dry run: {settings}")
        return
    named = {label: resolve(model) for label, model in named.items()}
    for model in named.values():
        engines.check_model_place(model)  # a mistyped path is told before a missing package
    engines.check_engine(settings.engine)
    loaded = load_benchmarks(_placed(benchmarks, resolve))
    for model in named.values():
        engines.load_tokens(model)  # so that a mistyped second model is reported before the first one's hours
    for label, model in named.items():
        result = runner.evaluate(label, model, loaded, settings, out / label)
        say(*lines_of(result), f"  {out / label}/result.json")


def label_of(text: str) -> tuple[str, str]:
    """Label and model of ``[LABEL=]MODEL``; without a label the model's last name."""
    from nemo_uecr.study.demo import SCHEME

    label, sign, model = text.partition("=")
    if not sign:
        label, model = Path(text.removeprefix(SCHEME)).name, text
    if label in ("", ".", "..") or "/" in label or not model:
        raise DataError(f"{text!r}: expected MODEL or LABEL=MODEL, the label a plain name: its folder is --out/LABEL")
    return label, str(Path(model).expanduser()) if model.startswith("~") else model


def _placed(given: Sequence[str], find: Callable[[str], str]) -> list[str]:
    """The benchmarks as given, but a `demo:` name, with or without ``NAME=`` before it, as its path."""
    return [f"{name}{sign}{find(place)}" for name, sign, place in (text.rpartition("=") for text in given)]


@app.command
def compare(first: Path, second: Path, /, *, seed: Seed = 42) -> None:
    """Paired comparison of two evaluations on the same problems: second minus first, with interval and p-values.

    Interval and p come from one test by sign changes of the problems' differences; Holm corrects the benchmarks'
    p-values; the average is a test of its own.

    Args:
        first: Evaluation folder, or a training run's sample file (RUN/evaluations/step-000040.jsonl).
        second: The other one.
        seed: Seed of the sign changes.
    """
    from nemo_uecr.evaluation.compare import compare as differences
    from nemo_uecr.evaluation.compare import lines_of

    lines = lines_of(differences(first, second, seed=seed))
    say(f"{second} minus {first}, percent", *lines)


@app.command
def table(
    *runs: str,
    layout: Literal["main", "ablation"] = "main",
    format: Literal["markdown", "latex", "html"] = "markdown",
) -> None:
    """Print the paper's tables from evaluations and training runs.

    Best bold, second best underlined, 95% intervals in brackets. A label that is a method's name gets the paper's
    title.

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
