"""The commands `audit NAME`: each reads scores or a run, prints a table and writes a folder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast, get_args

from cyclopts import Parameter

from nemo_uecr.cli.common import AtLeastOne, Override, Seed, Words, family, method_settings, say
from nemo_uecr.errors import DataError, require_extra
from nemo_uecr.paths import locate_path, resolve_path

if TYPE_CHECKING:
    from nemo_uecr.audit.output import Audit
    from nemo_uecr.audit.store import Scored
    from nemo_uecr.core.methods.uecr import Uecr

app = family("audit", "The paper's audits of scores or of a run.")

ScoresFolder = Annotated[
    Path, Parameter(help="Run folder, for what the run scored itself, or folder that `nemo-uecr score` wrote.")
]
Run = Annotated[Path, Parameter(help="Run folder.")]
Out = Annotated[
    Path | None,
    Parameter(name="--out", help="Output folder (default: RUN/audits/NAME, or audits/NAME-SCORES beside SCORES)."),
]
Replicates = Annotated[AtLeastOne, Parameter(help="Bootstrap replicates.")]
BootstrapSeed = Annotated[Seed, Parameter(help="Seed of the bootstrap.")]
RunOfSettings = Annotated[
    Path | None,
    Parameter(name="--run", help="Run folder whose settings hold where --set gives none (default: SCORES, if a run)."),
]
Engine = Literal[
    "transformers", "transformers-bf16", "transformers-int8", "transformers-nf4", "megatron", "vllm", "vllm-bf16",
    "vllm-fp8",
]  # fmt: skip


@app.command
def signal(
    scores: ScoresFolder,
    /,
    *,
    judge: Path | None = None,
    key: Path | None = None,
    write_pairs: Path | None = None,
    pairs: AtLeastOne = 350,
    replicates: Replicates = 2000,
    seed: BootstrapSeed = 42,
    out: Out = None,
) -> None:
    """What the teacher's score adds to the verifier's verdict, and how often they conflict, by checkpoint.

    SCORES has several responses per prompt, by one or more checkpoints.

        nemo-uecr audit signal runs/demo/scores
        nemo-uecr audit signal runs/demo/scores --write-pairs judging --pairs 350
        nemo-uecr audit signal runs/demo/scores --judge verdicts.jsonl --key judging/key.jsonl

    The judge gets judging/pairs.jsonl, blinded pairs of responses with equal verdicts, and writes one line per pair:
    {"pair": "...", "preferred": "first", "second", "tie" or "unjudgeable"}.

    Args:
        judge: A judge's verdicts on pairs (JSONL).
        key: The key that was written with the pairs.
        write_pairs: Write blinded pairs for a judge into this folder, and stop.
        pairs: Number of pairs to write.
    """
    from nemo_uecr.audit import judging
    from nemo_uecr.audit.signal import signal_audit

    scored = _read(scores)
    if write_pairs is not None:
        written = judging.write_pairs(scored, write_pairs, pairs=pairs, seed=seed)
        say(f"{written} pairs for the judge: {write_pairs}/pairs.jsonl")
        return
    if (judge is None) != (key is None):
        raise DataError("--judge and --key go together; give the verdicts and the key of their pairs")
    judged = judging.read_pairs(judge, key) if judge and key else None
    _finish(signal_audit(scored, judged, replicates=replicates, seed=seed), out, scores)


@app.command
def token_credit(
    scores: ScoresFolder,
    /,
    *,
    run: RunOfSettings = None,
    words: Words = (),
    checkpoint: int | None = None,
    replicates: Replicates = 2000,
    seed: BootstrapSeed = 42,
    out: Out = None,
) -> None:
    """Where the teacher's token signals are large, how certain it is there, and how the weights affect the budget.

    SCORES has groups of responses, such as the saved batches of a run; the first is of the initial student.

        nemo-uecr audit token-credit runs/demo

    Args:
        checkpoint: Step of the checkpoint to audit (default: the first).
    """
    from nemo_uecr.audit.token_credit import token_credit_audit

    settings = _uecr(scores, run, words)
    audit = token_credit_audit(_read(scores), settings, checkpoint=checkpoint, replicates=replicates, seed=seed)
    _finish(audit, out, scores)


@app.command
def group_signal(
    scores: ScoresFolder,
    /,
    *,
    anchor: str = "base",
    replicates: Replicates = 2000,
    seed: BootstrapSeed = 42,
    out: Out = None,
) -> None:
    """PUU's signal in pseudo-groups of eight and four, against a fixed base model, by checkpoint.

    SCORES has 12 responses per problem, or a multiple of 12, scored with the base model as an anchor.

        nemo-uecr score runs/demo --anchor base=demo:student --out runs/demo/scores
        nemo-uecr audit group-signal runs/demo/scores

    Args:
        anchor: Name of the base model's anchor.
    """
    from nemo_uecr.audit.group_signal import group_signal_audit

    _finish(group_signal_audit(_read(scores), anchor=anchor, replicates=replicates, seed=seed), out, scores)


@app.command
def alpha_sweep(
    scores: ScoresFolder, /, *, replicates: Replicates = 2000, seed: BootstrapSeed = 42, out: Out = None
) -> None:
    """The teacher's weight at which a wrong response overtakes a right one, on fixed rollouts, by checkpoint.

    The gap is measured against the checkpoint that generated the response, and clipped at 5 nats. Reports conflicts and
    fully safe groups over alpha in [0, 8], ten values of alpha below the first that inverts a tenth of a checkpoint's
    mixed groups, tie points, sign changes, and intervals over problems.

        nemo-uecr audit alpha-sweep runs/demo/scores
    """
    from nemo_uecr.audit.alpha_sweep import alpha_sweep_audit

    _finish(alpha_sweep_audit(_read(scores), replicates=replicates, seed=seed), out, scores)


@app.command
def localization(
    scores: ScoresFolder,
    /,
    *,
    write_steps: Path | None = None,
    limit: AtLeastOne = 200,
    judge: Path | None = None,
    key: Path | None = None,
    checkpoint: int = 0,
    tokenizer: str | None = None,
    run: RunOfSettings = None,
    words: Words = (),
    shuffles: AtLeastOne = 100,
    replicates: Replicates = 10_000,
    seed: BootstrapSeed = 42,
    out: Out = None,
) -> None:
    r"""Whether ECR assigns the blame for a failed response to the steps that a judge calls invalid.

    First write the steps for the judge, then audit with its labels.

        nemo-uecr audit localization runs/demo --write-steps judging-steps
        nemo-uecr audit localization runs/demo --judge labels.jsonl --key judging-steps/key.jsonl

    The judge gets only judging-steps/steps.jsonl and writes one line per item:
    {"item": NAME, "labels": [valid|invalid|uncertain|not_reasoning, one per step], "first_error": NUMBER or null}.

    Args:
        write_steps: Write blinded steps for a judge into this folder, and stop.
        limit: Number of responses to write.
        judge: The judge's labels (JSONL).
        key: The key that was written with the steps.
        checkpoint: Step of the checkpoint to audit.
        tokenizer: Model with the responses' tokenizer (default: the teacher).
        shuffles: Number of shuffles per response.
    """
    from nemo_uecr.audit.judging import STEPS, read_labels
    from nemo_uecr.audit.localization import localization_audit, write_candidates
    from nemo_uecr.generation.engines import load_tokens

    scored = _read(scores)
    if write_steps is not None:
        responses, steps = write_candidates(scored, write_steps, checkpoint=checkpoint, limit=limit, seed=seed)
        say(f"{responses} responses, {steps} steps for the judge: {write_steps / STEPS}")
        return
    if judge is None or key is None:
        raise DataError("expected --judge LABELS and --key KEY; write the steps for a judge with --write-steps DIR")
    settings, labels = _uecr(scores, run, words), read_labels(judge, key)
    spelling = tokenizer or scored.plan["teacher"]["name"]
    if spelling is None:
        raise DataError(f"{scores} names no teacher's model; give the responses' tokenizer with --tokenizer MODEL")
    spelled = load_tokens(resolve_path(spelling)).tokenizer
    counts = {"checkpoint": checkpoint, "shuffles": shuffles, "replicates": replicates, "seed": seed}
    _finish(localization_audit(scored, labels, settings, spelled, **counts), out, scores)


@app.command
def teacher(
    source: Annotated[str, Parameter(help="Configuration file, run folder with saved batches, or folder of scores.")],
    /,
    *overrides: Override,
    problems: AtLeastOne = 32,
    engines: tuple[Engine, ...] | None = None,
    teacher: str | None = None,
    responses: AtLeastOne | None = None,
    out: Out = None,
) -> None:
    """What a teacher is worth to a student, before any training: how far to follow it, by which method and settings.

    For a configuration of the local back end it draws two groups of the student's responses to each problem, and half
    a group of the teacher's own. For a run it reads the first saved batch; what a batch cannot say stays unknown. The
    report shows the audit; that of a run's batch never replaces a fuller one in the run folder.

        nemo-uecr audit teacher examples/configs/local/demo.yaml
        nemo-uecr audit teacher runs/demo

    Scores, written by `nemo-uecr score` in float32, also show how far engines and low precisions differ: the same
    tokens are scored again, one response at a time. transformers-int8 and transformers-nf4 quantize the linear layers
    like `teacher.quantize` and compute in bf16. megatron is Megatron-Bridge's model in float32; vllm-bf16 and vllm-fp8
    need a GPU. If an engine cannot run here, the reason is shown.

        nemo-uecr score runs/demo/batches/step-000001.parquet --out runs/demo/scores-start
        nemo-uecr audit teacher runs/demo/scores-start --engines transformers-bf16 vllm

    Args:
        problems: Training problems to draw responses to, with a configuration.
        engines: Engines to compare, with scores (default: all).
        teacher: The teacher's folder, with scores (default: theirs).
        responses: Number of responses to compare engines on, with scores (default: all).
    """
    from nemo_uecr.audit.store import PLAN

    place = Path(source)
    if (place / PLAN).is_file() and not overrides:
        return _finish(_teacher_of_scores(place, engines or get_args(Engine), teacher, responses), out, place)
    if engines or teacher or responses:
        raise DataError(
            f"{source}: --engines, --teacher and --responses need a folder of scores; write one with nemo-uecr score "
            "RUN/batches/step-000001.parquet --out RUN/scores"
        )
    audit, folder = audited_teacher(source, overrides, problems=problems, out=out)
    _say_teacher(audit)
    say(f"audit: {folder}" if folder else "not written: the run folder has this audit; --out FOLDER writes this one")


def _teacher_of_scores(scores: Path, engines: Sequence[str], teacher: str | None, responses: int | None) -> Audit:
    require_extra("local", "plots")
    from nemo_uecr.audit.facts import facts_of_scores
    from nemo_uecr.audit.teacher import compare_engines, teacher_audit
    from nemo_uecr.evaluation.runner import model_digest

    scored = _read(scores)
    model = resolve_path(teacher or scored.plan["teacher"]["name"])
    if model_digest(model) != scored.plan["teacher"]["sha256"]:
        raise DataError(f"the weights of {model} are not those that gave the scores; name their teacher with --teacher")
    facts = facts_of_scores(scored)
    return teacher_audit(facts, compare_engines(scored, model, engines, responses=responses))


def audited_teacher(
    source: str, overrides: Sequence[str], *, problems: int, out: Path | None
) -> tuple[Audit, Path | None]:
    """Audit the teacher of a configuration or a run; the folder is None where the run folder keeps its own."""
    require_extra("local")
    from nemo_uecr.audit.facts import facts_of_config, facts_of_run
    from nemo_uecr.audit.output import write_audit
    from nemo_uecr.audit.teacher import teacher_audit
    from nemo_uecr.config.load import load_config

    run = Path(source)
    if run.is_dir() and overrides:
        raise DataError(f"{source} is a folder; key=value changes a configuration: name {run / 'config.yaml'}")
    if run.is_dir():
        facts = facts_of_run(run)
    else:
        config = load_config(source, overrides).config
        facts, run = facts_of_config(config, problems=problems), Path(config.run.folder)
    audit, folder = teacher_audit(facts, {}), out or run / "audits" / "teacher"
    if Path(source).is_dir() and out is None and folder.exists():
        return audit, None
    write_audit(folder, audit)
    return audit, folder


@app.command
def batch(run: Run, /, *, out: Out = None) -> int:
    """Count prompts, trajectories, tokens and steps of a run, and report every fault.

    The exit code is 1 if there is a fault.

        nemo-uecr audit batch runs/demo
    """
    require_extra("plots")
    from nemo_uecr.audit.runs import batch_audit
    from nemo_uecr.config.load import written_config

    audit = batch_audit(run, Path(locate_path(written_config(run / "config.yaml").data.train)))
    _finish(audit, out, run)
    return 1 if audit.numbers["faults"] else 0


@app.command
def efficiency(run: Run, /, *, baseline: Path | None = None, out: Out = None) -> None:
    """Time and memory of a run, and the overhead of the teacher's scores over GRPO.

    The overhead over the baseline is per token, because two methods write responses of different lengths.

        nemo-uecr audit efficiency runs/demo --baseline runs/grpo

    Args:
        baseline: Run with method grpo to compare with.
    """
    require_extra("plots")
    from nemo_uecr.audit.runs import efficiency_audit
    from nemo_uecr.telemetry.run_folder import read_runs

    runs = read_runs([run] if baseline is None else [run, baseline])
    if baseline is not None and runs[-1].method != "grpo":
        raise DataError(f"{baseline} is a run of {runs[-1].method}; expected method grpo, which scores no teacher")
    audit = efficiency_audit(runs, None if baseline is None else runs[-1].label)
    for label, cost in audit.numbers["runs"].items():
        for note in cost["left_out"]:
            logging.getLogger(__name__).warning("%s: %s", label, note)
    _finish(audit, out, run)


def _read(scores: Path) -> Scored:
    require_extra("plots")
    from nemo_uecr.audit.store import read_scored

    return read_scored(scores)


def _uecr(scores: Path, run: Path | None, given: Sequence[str]) -> Uecr:
    from nemo_uecr.audit.store import PLAN
    from nemo_uecr.config.load import written_method

    if run is None and not (scores / PLAN).is_file() and not given:
        run = scores
    method, _ = method_settings("uecr", given, None if run is None else written_method(run / "config.yaml"))
    return cast("Uecr", method)


def _finish(audit: Audit, out: Path | None, source: Path) -> None:
    from nemo_uecr.audit.output import write_audit
    from nemo_uecr.audit.store import PLAN
    from nemo_uecr.tables import text_table

    beside, name = source, audit.name
    if (source / PLAN).is_file():  # a run may have several folders of scores
        beside, scores = source.resolve().parent, source.resolve().name
        audit, name = replace(audit, title_suffix=f", {scores}"), f"{name}-{scores}"
    folder = beside / "audits" / name if out is None else out
    write_audit(folder, audit)
    if audit.name == "teacher":
        _say_teacher(audit)
    else:
        say(audit.title, text_table(audit.columns, audit.rows), *([audit.remark] if audit.remark else []))
    say(f"audit: {folder}")


def _say_teacher(audit: Audit) -> None:
    """A line per number, and the advice with its reasons below each piece."""
    for name, value, meaning, sure in audit.rows:
        if sure:
            say(f"{name:<12}{value}", f"{'':<12}{meaning} ({sure})")
        else:
            say(f"{name:<27} {value:<21} {meaning}")
    if audit.remark:
        say(audit.remark)
