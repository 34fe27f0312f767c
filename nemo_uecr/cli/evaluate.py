"""The command `evaluate`, with `evaluate compare` and `evaluate table`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter, types, validators

from nemo_uecr.cli.common import AtLeastOne, Seed, family, say
from nemo_uecr.errors import DataError

if TYPE_CHECKING:
    from nemo_uecr.evaluation.runner import Settings

app = family("evaluate")

TEMPLATE = "{question}\nPlease reason step by step, and put your final answer within \\boxed{}."


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """What an evaluation is asked for; the decoding's defaults are the paper's."""

    max_tokens: AtLeastOne
    """Longest response, in tokens."""
    out: Path
    """Folder of the results."""
    benchmarks: tuple[str, ...] = ("aime24", "aime25", "amc23", "hmmt_feb25", "hmmt_nov25")
    """Known names, files or NAME=FILE."""
    samples: AtLeastOne = 12
    """Responses to each problem."""
    temperature: types.NonNegativeFloat = 0.6
    """0: greedy."""
    top_p: Annotated[float, Parameter(validator=validators.Number(gt=0, lte=1))] = 0.95
    """1: off."""
    top_k: types.NonNegativeInt = 20
    """0: off."""
    stop: tuple[str, ...] = ()
    """Strings that end a response, which is then finished."""
    seed: Seed = 42
    """Seed of the sampling."""
    engine: Literal["transformers", "vllm"] = "vllm"
    """What generates the responses."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Precision of the model."""
    batch: AtLeastOne = 256
    """Responses generated, and saved, at once."""
    thinking: bool = False
    """Use the thinking chat template."""
    prompt_template: Annotated[str, Parameter(show_default=repr)] = TEMPLATE
    """The user's turn, with {question} in it."""
    system_prompt: str | None = None
    """The system's turn."""

    def settings(self) -> Settings:
        """The options as the runner takes them."""
        from nemo_uecr.evaluation.engines import ChatSettings, Decoding
        from nemo_uecr.evaluation.runner import Settings

        if "{question}" not in self.prompt_template:
            raise DataError(f"--prompt-template: got {self.prompt_template!r}, expected {{question}} in the text")
        decoding = Decoding(self.temperature, self.top_p, self.top_k, self.max_tokens, self.stop)
        chat = ChatSettings(self.prompt_template, self.system_prompt, self.thinking)
        return Settings(self.samples, decoding, self.seed, chat, self.engine, self.dtype, self.batch)


@app.default
def evaluate(*models: str, options: Options, dry_run: bool = False) -> None:
    r"""Measure avg@k of one or several models on benchmarks, keeping every sample.

    All models, the teacher included, are evaluated in the same way, each into its own folder under `--out`. Run the
    same command again after an interruption: it generates only the missing samples.

        nemo-uecr evaluate student=runs/uecr/checkpoints/step-000160 teacher=path/to/teacher \
            --benchmarks aime24 amc23=amc23.jsonl --max-tokens 16384 --out evaluations

    Args:
        models: Model folder, hub name or demo:student, each as MODEL or LABEL=MODEL.
        dry_run: Check everything that is named; write nothing.
    """
    from nemo_uecr.data.benchmarks import check_benchmarks, load_benchmarks
    from nemo_uecr.evaluation.engines import check_engine, check_model, load_tokens
    from nemo_uecr.evaluation.runner import evaluate as run
    from nemo_uecr.evaluation.samples import lines_of
    from nemo_uecr.files import check_writable
    from nemo_uecr.study.demo import locate, resolve

    settings, out = options.settings(), options.out
    named = dict(map(label_of, models))
    if not named or len(named) < len(models):
        raise DataError("expected at least one model, and labels that differ: LABEL=MODEL")
    if dry_run:
        check_benchmarks(_placed(options.benchmarks, locate))
        for label, model in named.items():
            check_model(locate(model))
            check_writable(out / label)
        say(f"dry run: {options}")
        return
    check_engine(settings.engine)
    named = {label: resolve(model) for label, model in named.items()}
    benchmarks = load_benchmarks(_placed(options.benchmarks, resolve))
    for model in named.values():
        load_tokens(model)  # so that a mistyped second model is reported before the first one's hours
    for label, model in named.items():
        result = run(label, model, benchmarks, settings, out / label)
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
