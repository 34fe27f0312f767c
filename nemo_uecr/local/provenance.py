"""What a run is made of, what it reads and what it writes, each with its sha256; and whether all of that still holds.

``provenance.json`` is written before the first step: code, versions, conventions, and the hash of every input file.
``artifacts.jsonl`` gets a line for every file that the run completes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import nemo_uecr
from nemo_uecr import door
from nemo_uecr.config.load import dump_config, flattened, written_config
from nemo_uecr.config.schema import CallReward, Config, teacher_models, url_teachers
from nemo_uecr.data.manifest import KEPT
from nemo_uecr.data.manifest import MANIFEST as DATA_MANIFEST
from nemo_uecr.data.problems import rows_sha256
from nemo_uecr.data.sources import Role, find_source
from nemo_uecr.errors import CheckpointError, ConfigError, DataError, RunFolderError
from nemo_uecr.files import describe_file, digest_of, file_fault, file_sha256, read_object, replace_file
from nemo_uecr.generation.environments import tools_of
from nemo_uecr.generation.models import load_tokenizer
from nemo_uecr.generation.prompts import prompts_sha256
from nemo_uecr.generation.trained import MANIFEST, PROVENANCE, compare_manifest, model_files
from nemo_uecr.local.sequences import Prompt, encoded_problems
from nemo_uecr.paths import locate_path
from nemo_uecr.reproducible import installed
from nemo_uecr.responses.replay import arithmetic
from nemo_uecr.steps.draws import run_provenance
from nemo_uecr.telemetry.run_folder import write_first_files
from nemo_uecr.telemetry.sinks import EVALUATIONS, STEPS, append_record, read_records

log = logging.getLogger(__name__)

DIFF, ARTIFACTS = "source.diff", "artifacts.jsonl"
PACKAGE = Path(nemo_uecr.__file__).resolve().parent
PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "pyarrow",
    "safetensors",
    "omegaconf",
    "pydantic",
    "math-verify",
)
#: What the difference to the commit is taken over.
WATCHED = ("nemo_uecr", "pyproject.toml")
GIT_SECONDS = 20
#: Files that grow: a line of the list holds for the part that was there.
APPEND_ONLY = (STEPS, EVALUATIONS)

#: A comparison's outcome, and what it is about.
InputCheck = tuple[Literal["same", "changed", "unknown"], str]


# --- what a run is made of


def _statement(config: Config, source: Mapping[str, object]) -> dict[str, Any]:
    """Code, versions and conventions: what follows from the configuration and this environment."""
    drawing = {"temperature", "top_p", "top_k", "stop"}
    best = "best: highest mean of avg@k over the benchmarks; the earlier checkpoint of equal ones"
    last = "last: the checkpoint of the last step, whatever it scores"
    versions = {package: installed(package) or "not installed" for package in PACKAGES}
    return run_provenance(config, versions) | {
        "arithmetic": arithmetic(),
        "decoding": {
            "rollout": config.rollout.model_dump(
                mode="json", include=drawing | {"max_response_tokens", "responses_per_prompt"}
            ),
            "evaluation": config.evaluation.model_dump(mode="json", include=drawing | {"max_tokens", "samples"}),
            "enable_thinking": config.data.enable_thinking,
        },
        "selection": best if config.checkpoint.keep_best else last,
        "tolerances": config.tolerances.model_dump(),
        "source": dict(source),
    }


def package_source() -> tuple[dict[str, object], bytes]:
    """The package's code on disk: commit, whether it differs, a digest of its files; and the difference itself."""
    files = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}
    # A package that was installed into a folder of somebody's checkout is not in that checkout's history.
    tracked = _git("ls-files", f"{PACKAGE.name}/__init__.py")
    commit = _git("rev-parse", "HEAD").decode().strip() if tracked else ""
    diff = b""
    if commit:
        diff = _git("diff", "--no-ext-diff", "--no-color", "HEAD", "--", *WATCHED)
        others = _git("ls-files", "--others", "--exclude-standard", "-z", "--", *WATCHED)  # else names are quoted
        for name in filter(None, others.decode().split("\0")):
            diff += _git("diff", "--no-ext-diff", "--no-color", "--no-index", "--", "/dev/null", name)
    dirty = bool(diff) if commit else None
    return {"commit": commit or None, "dirty": dirty, "package_sha256": digest_of(files)}, diff


def _git(*words: str) -> bytes:
    """Output of a git command on the package's checkout; empty where git is missing or refuses."""
    command = ["git", "-C", str(PACKAGE.parent), *words]
    try:
        done = subprocess.run(command, capture_output=True, timeout=GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return done.stdout if done.returncode in (0, 1) else b""  # 1: the two files of `--no-index` differ


# --- what it reads


def input_hashes(config: Config) -> dict[str, str]:
    """sha256 of every input file that is on this machine.

    Names are `train`, `train/manifest.json`, `train/rows` (what a reader of the user's yields), `benchmark NAME`,
    `reward NAME`, `environment`, and `student/FILE`, `teacher/FILE` or `teachers.NAME/FILE` for each file of a model:
    weights, configuration, tokenizer, chat template.
    """
    train = Path(locate_path(config.data.train))
    train = train / KEPT if (train / DATA_MANIFEST).is_file() else train
    files = _source_files("train", str(train), "train") | {f"train/{DATA_MANIFEST}": train.with_name(DATA_MANIFEST)}
    benchmarks = {f"benchmark {name}": locate_path(given) for name, given in config.evaluation.benchmarks.items()}
    for name, given in benchmarks.items():
        files |= _source_files(name, given, "test")
    readers = {name: given for name, given in ({"train": str(train)} | benchmarks).items() if door.is_own(given)}
    files |= {f"reward {each.label}": Path(each.path) for each in config.reward if isinstance(each, CallReward)}
    files |= {"environment": Path(config.environment.path)} if config.environment else {}
    models = {"student": config.student.model_name} | teacher_models(config)
    for role, model in models.items():
        files |= model_files(role, locate_path(model))
    for role, teacher in url_teachers(config).items():  # its server has the weights, whatever lies beside the tokenizer
        beside = model_files(f"{role} tokenizer", locate_path(teacher.tokenizer))
        files |= {name: path for name, path in beside.items() if "token" in path.name}
    hashes = {name: file_sha256(path) for name, path in files.items() if path.is_file()}
    return hashes | {f"{name}/rows": rows_sha256(find_source(given, "train")) for name, given in readers.items()}


def prompt_hashes(training: Sequence[Prompt], benchmarks: Mapping[str, Sequence[Prompt]]) -> dict[str, str]:
    """A digest of the prompts' token ids, `prompts of data.train` and `prompts of NAME` for each benchmark."""
    every = {"data.train": training, **benchmarks}
    return {f"prompts of {name}": prompts_sha256(each.token_ids for each in prompts) for name, prompts in every.items()}


def _prompt_hashes_here(config: Config) -> dict[str, str]:
    """The same as they would be now; none where tokenizer or problems are not on this machine."""
    try:
        tokenizer = load_tokenizer(locate_path(config.student.model_name), local_files_only=True)
        return prompt_hashes(*encoded_problems(config, tokenizer, locate_path, tools_of(config.environment)))
    except (ConfigError, DataError):
        return {}


def _source_files(name: str, given: str, role: Role) -> dict[str, Path]:
    """The one file of a source of problems under its name, or each of several; none where it is not on this machine."""
    try:
        files = find_source(given, role).files
    except DataError:
        return {}
    return {name: files[0]} if len(files) == 1 else {f"{name}/{n}-{file.name}": file for n, file in enumerate(files)}


def compare_inputs(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[InputCheck]:
    """Compare the input files of two starts; of an input that one of them did not see, nothing is known."""

    def inputs(hashes: Mapping[str, str]) -> set[str]:
        return {name.partition("/")[0] for name in hashes}

    for name in sorted(inputs(before) ^ inputs(now)):
        yield "unknown", f"input {name!r}: {'not here' if name in inputs(before) else 'not recorded in the run'}"
    for name in sorted(before.keys() | now.keys()):
        if name.partition("/")[0] in inputs(before) & inputs(now):
            ours, theirs = before.get(name, "no such file"), now.get(name, "no such file")
            text = f"input {name!r}: sha256 {ours[:12]} in the run, {theirs[:12]} here"
            yield ("same", name) if ours == theirs else ("changed", text)


def check_same_inputs(folder: Path, inputs: Mapping[str, str]) -> None:
    """Refuse to continue a run on data or models whose content changed under the same name."""
    if (folder / PROVENANCE).is_file():
        for kind, text in compare_inputs(read_object(folder / PROVENANCE)["sha256"], inputs):
            if kind == "changed":
                raise CheckpointError(f"{text}; put the old content back or choose another run.folder than {folder}")


# --- what it writes


def write_run_files(
    folder: Path, config: Config, *, origins: Mapping[str, str], inputs: Mapping[str, str], warnings: Sequence[str]
) -> None:
    """Write the files that come before the first step; an earlier record that differs is kept beside the new one."""
    source, diff = package_source()
    record = _statement(config, source) | {
        "config_sha256": hashlib.sha256(dump_config(config).encode()).hexdigest(),
        "sha256": dict(inputs),
        "command": sys.argv,
        "warnings": list(warnings),
    }
    path = folder / PROVENANCE
    if path.is_file():
        if of_other_code(folder, source["package_sha256"]):
            log.warning("%s: earlier steps ran on different code of this package", folder)
        if read_object(path) | {"command": None} != json.loads(json.dumps(record | {"command": None})):
            number = 1 + sum(1 for _ in folder.glob("provenance-*.json"))
            for kept in (path, folder / DIFF):
                replace_file(kept.with_stem(f"{kept.stem}-{number}"), kept.read_bytes())
    replace_file(folder / DIFF, diff)
    write_first_files(folder, config, origins, record)


def of_other_code(folder: Path, package_sha256: object) -> bool:
    """True where any part of the run was made by other code of the package."""
    starts = map(read_object, folder.glob("provenance*.json"))
    return any(start["source"]["package_sha256"] != package_sha256 for start in starts)


def list_files(folder: Path, step: int, *names: str) -> None:
    """Add to the run folder's list those of these files that exist, each complete."""
    for name in names:
        path = folder / name
        if path.is_file():
            append_record(folder / ARTIFACTS, {"step": step, "path": name} | describe_file(path))


def _fault(path: Path, entry: Mapping[str, Any]) -> str | None:
    if path.name in APPEND_ONLY and path.is_file():
        digest = hashlib.sha256(path.read_bytes()[: entry["bytes"]]).hexdigest()
        return None if digest == entry["sha256"] else "content changed"
    return file_fault(path, entry["sha256"])


# --- whether it still holds


def verify_run(folder: Path) -> dict[str, list[str]]:
    """Check a run folder's files, its inputs and its environment against its record: findings by their kind."""
    if not (folder / PROVENANCE).is_file():
        raise RunFolderError(f"{folder} has no {PROVENANCE}; expected the run folder that `nemo-uecr train` wrote")
    record, config = read_object(folder / PROVENANCE), written_config(folder / "config.yaml")
    now = _statement(config, package_source()[0])
    findings: Iterable[InputCheck] = chain(
        _compare_files(folder),
        compare_inputs(record["sha256"], input_hashes(config) | _prompt_hashes_here(config)),
        _compare_values(flattened({name: record.get(name) for name in now}), flattened(now)),
    )
    by_kind: dict[str, list[str]] = {"same": [], "changed": [], "unknown": []}
    for kind, text in findings:
        by_kind[kind].append(text)
    return by_kind


def _compare_files(folder: Path) -> Iterator[InputCheck]:
    if not (folder / ARTIFACTS).is_file():
        yield "changed", f"{ARTIFACTS}: missing, so no file of the run can be compared"
        return
    listed = {entry["path"]: entry for entry in read_records(folder / ARTIFACTS)[0]}  # the newest entry of each file
    checkpoints = sorted(name for name in listed if name.startswith("checkpoints/"))
    gone = {name for name in checkpoints if not (folder / name).parent.is_dir()}
    if gone and not (folder / "checkpoints").is_dir():
        yield "unknown", "checkpoints: not here"  # packed without them
    elif gone:
        gone.discard(checkpoints[-1])  # the newest is never pruned
    for name in (name for name in listed if name not in gone):
        fault = _fault(folder / name, listed[name])
        yield ("changed", f"{name}: {fault}") if fault else ("same", name)
        if name in checkpoints and not fault:
            for file, damage in compare_manifest((folder / name).parent):
                path = Path(name).parent / file
                yield ("changed", f"{path}: {damage}") if damage else ("same", file)
    present = (folder.glob(pattern) for pattern in ("batches/*", "evaluations/*", f"checkpoints/*/{MANIFEST}"))
    for path in sorted(chain.from_iterable(present)):
        if str(path.relative_to(folder)) not in listed:
            yield "unknown", f"{path.relative_to(folder)}: not in {ARTIFACTS}"


def _compare_values(before: Mapping[str, object], now: Mapping[str, object]) -> Iterator[InputCheck]:
    for name in sorted(before.keys() | now.keys()):
        ours, theirs = (str(values.get(name, "not recorded")) for values in (before, now))
        width = 12 if name.endswith("sha256") or name == "source.commit" else None
        text = f"{name}: {ours[:width]} in the run, {theirs[:width]} here"
        yield ("same", name) if ours == theirs else ("changed", text)
