"""Commands on finished runs: `report`, `replay`, `pack`, `convert` and `export`."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from nemo_uecr.cli.common import AboveZero, Words, method_settings, refuse_input, say
from nemo_uecr.errors import CheckpointError, ConfigError, DataError, RunFolderError, require_extra


def report(
    run: Path,
    /,
    *others: Path,
    out: Path | None = None,
    verify: bool = False,
    open_: Annotated[bool, Parameter(name="--open")] = False,
) -> int:
    """Write one self-contained HTML page about one or several runs, or check runs against their own record.

    `--verify` compares the run folder's files, the run's models and data, the code and the package versions with the
    run's record, and lists all changes. The exit code is 1 if there are any.

    Args:
        run: Run folder.
        others: Further runs, side by side.
        out: HTML file to write (default: report.html in the first run).
        verify: Check against the record instead of writing a page.
        open_: Open the page in the browser.
    """
    if verify:
        return max([_verify(folder) for folder in (run, *others)])
    from nemo_uecr.report.page import write_report

    written = write_report([run, *others], run / "report.html" if out is None else out)
    say(f"report: {written}")
    if open_:
        # Without a display, a text browser would take over a Linux terminal.
        screen = sys.platform != "linux" or os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"}
        address = written.resolve().as_uri()
        if not (screen and webbrowser.open(address)):
            say(f"no browser to open it in; its address is {address}")
    return 0


def _verify(folder: Path) -> int:
    require_extra("local")
    from nemo_uecr.local.provenance import verify_run

    verified = verify_run(folder)
    same, changed, unknown = (verified[kind] for kind in ("same", "changed", "unknown"))
    say(
        *(f"changed: {text}" for text in changed),
        *(f"not checked: {text}" for text in unknown),
        f"{folder}: {len(same)} as in the run, {len(changed)} changed, {len(unknown)} not checked",
    )
    return 1 if changed else 0


def replay(
    batch: Path, /, *, check: bool = False, method: str | None = None, words: Words = (), out: Path | None = None
) -> int:
    r"""Recompute a method's advantages from a saved batch, or check those that a run saved.

    BATCH is a table of responses (Parquet) with the columns reward, group, sampled, old_logp and, as far as the method
    reads them, teacher_logp, teacher_entropy, initial_logp and turn. OUT is the same table with the method's advantages
    and intermediate quantities.

        nemo-uecr replay runs/demo/batches/step-000010.parquet --method uecr \
            --set alpha=1 rho=.5 tau_delta=1 tau_entropy=1 --out advantages.parquet

    With `--check`, BATCH is a saved step, with the run's method and settings, or a run folder. Recomputing must
    reproduce the saved advantages: bit for bit with the run's package versions and kind of processor, within 1e-6
    elsewhere. Otherwise the exit code is 1.

        nemo-uecr replay runs/demo --check

    Args:
        batch: Saved batch; with `--check` also a run folder.
        check: Compare with the advantages that the run saved.
        method: Name of the method.
        out: File to write (Parquet).
    """
    if check and method is None and not words and out is None:
        return _check_steps(batch)
    if check or method is None or out is None:
        raise ConfigError("expected --check alone, or --method NAME and --out OUT; see nemo-uecr replay --help")
    _write_advantages(batch, method, words, out)
    return 0


def _write_advantages(path: Path, name: str, words: Sequence[str], out: Path) -> None:
    from nemo_uecr.core.functions import compute
    from nemo_uecr.responses.replay import naming_file, scored_batch, write_replayed
    from nemo_uecr.responses.table import read_responses

    refuse_input(out, path)
    method, run = method_settings(name, words)
    saved = read_responses(path)
    batch = replace(scored_batch(saved), run=run)
    with naming_file(path):
        advantages = compute(method, batch)
    write_replayed(saved, out, method, run, advantages)
    say(f"{name}: {len(saved)} responses in {out}")


def _check_steps(path: Path) -> int:
    """Print one line per step; return 1 if a step is not reproduced."""
    from nemo_uecr.local.provenance import of_other_code, package_source
    from nemo_uecr.responses.replay import TOLERANCE, recompute

    run = path if path.is_dir() else path.parent.parent
    old = sorted(path.glob("batches/step-*.safetensors"))[:1]  # which the reader refuses
    steps = (old or sorted(path.glob("batches/step-*.parquet"))) if path.is_dir() else [path]
    if not steps:
        raise DataError(f"{path} has no batches/step-*.parquet; expected a run with telemetry.save_batch_every > 0")
    failed = 0
    for step in steps:
        replayed = recompute(step)
        failed += not replayed.holds
        word = "bit for bit" if replayed.bitwise else f"differs by {replayed.difference:.3g}"
        want = "the run's own arithmetic" if replayed.same_arithmetic else f"other arithmetic, {TOLERANCE:g} allowed"
        say(f"{step.name}: {word} ({want}){'' if replayed.holds else ': NOT REPRODUCED'}")
    other = failed > 0 and of_other_code(run, package_source()[0]["package_sha256"])
    hint = "; the code is not the run's, see report --verify" if other else ""
    say(f"{len(steps) - failed} of {len(steps)} saved steps reproduced{hint}")
    return 1 if failed else 0


def pack(run: Path, out: Path, /, *, without_checkpoints: bool = False) -> None:
    """Pack a run folder into one archive (.tar.gz), which `tar` unpacks elsewhere.

    Equal folders give equal archives. `report --verify` compares the unpacked files with the run's record.

        nemo-uecr pack runs/demo demo.tar.gz --without-checkpoints
        mkdir there
        tar -xzf demo.tar.gz -C there
        nemo-uecr report there --verify

    Args:
        run: Run folder.
        out: Archive to write.
        without_checkpoints: Leave out checkpoints/.
    """
    from nemo_uecr.files import in_use
    from nemo_uecr.telemetry.archive import pack as write_archive

    if not (run / "config.yaml").is_file():
        raise RunFolderError(f"{run} has no config.yaml; expected the run folder that `nemo-uecr train` wrote")
    if in_use(run):
        raise RunFolderError(f"{run} is in use by a run; wait until it has ended, then pack again")
    files = write_archive(run, out, checkpoints=not without_checkpoints)
    say(f"{files} files, {out.stat().st_size / 1e6:.1f} MB: {out}")


def convert(
    ckpt: Path,
    /,
    *,
    to: Path | None = None,
    check: bool = False,
    dry_run: bool = False,
    hf: str | None = None,
    tokenizer: Path | None = None,
    tolerance: AboveZero = 1e-4,
    shard_gb: AboveZero = 4.0,
) -> None:
    """Convert a Megatron checkpoint to Hugging Face, and verify that the result is the same model.

    CKPT is a step that NeMo-RL saved (step_N) or a Megatron distributed checkpoint (iter_0000000 or its parent). Both
    models score fixed sequences in float32. OUT is created only if their log-probabilities
    agree; its conversion.json has the evidence.

        nemo-uecr convert runs/uecr/checkpoints/step_100 --to models/uecr-step-100
        nemo-uecr convert models/uecr-step-100 --check

    Args:
        ckpt: The checkpoint.
        to: Folder to create; it must not exist.
        check: Verify a converted folder again.
        dry_run: Check all arguments; write nothing.
        hf: Hugging Face model of CKPT's architecture (default: what CKPT names).
        tokenizer: Folder of the tokenizer (default: CKPT's, else the model's).
        tolerance: Largest allowed difference of two log-probabilities, nats.
        shard_gb: Largest weight file, GB.
    """
    from nemo_uecr.conversion.convert import check as check_again
    from nemo_uecr.conversion.convert import convert as run
    from nemo_uecr.conversion.convert import prepare, read_record
    from nemo_uecr.conversion.on_cpu import require_bridge

    if check == (to is not None):
        raise CheckpointError("expected either --to OUT, to convert, or --check, to verify a converted folder again")
    how: dict[str, Any] = {"model": hf, "tokenizer": tokenizer, "tolerance": tolerance}
    how["shard_bytes"] = int(shard_gb * 1e9)
    # First: report a wrong path before a missing package.
    job = None if to is None else prepare(ckpt, to, **how)
    if dry_run:
        if job is None:
            read_record(ckpt)
        settings = {"ckpt": ckpt} | ({} if job is None else {"weights": job.weights.folder, "out": job.out, **how})
        return say("# dry run: nothing is written", *(f"{name}: {value}" for name, value in settings.items()))
    require_extra("convert")
    require_bridge()
    agreement = check_again(ckpt, tolerance) if job is None else run(job)
    say(
        f"{to or ckpt}: the same model; log-probabilities of {agreement.tokens} tokens differ by at most "
        f"{agreement.largest:.2g} nats"
    )


def export(
    run: Path, /, *, merged: Path, dtype: Literal["float32", "bfloat16"] = "float32", tolerance: float = 1e-4
) -> None:
    """Write the model that a local run trained as an ordinary Hugging Face folder.

    An adapter is merged into a copy of its base, and both models are compared on the same tokens. Exports the run's
    best checkpoint if it kept one, else its newest.

        nemo-uecr export runs/lora --merged models/trained

    Args:
        run: Run folder, one of its checkpoints, or an adapter that peft saved.
        merged: Folder to create.
        dtype: Format of the weights; bfloat16 halves the size and rounds once more.
        tolerance: Largest allowed difference of two log-probabilities in float32, nats.
    """
    require_extra("local")
    from nemo_uecr.conversion.export import export as write

    source, agreement = write(run, merged.absolute(), dtype=dtype, tolerance=tolerance)
    say(
        f"{merged}: the model of {source}; log-probabilities of {agreement.tokens} tokens differ by at most "
        f"{agreement.largest:.2g} nats"
    )
    if (source / "adapter_config.json").is_file():
        say("in bfloat16 adapter and merged weights round differently: compare the two with evaluate --dtype float32")
