"""The model that a run trained: which checkpoint it is, and whether it still is what was trained."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from nemo_uecr.errors import CheckpointError, DataError
from nemo_uecr.files import file_fault, file_sha256, read_object
from nemo_uecr.generation.adapter import CONFIG, base_of
from nemo_uecr.generation.engines import STATE

MANIFEST, OPTIMIZER, PROVENANCE = "manifest.json", "optimizer.pt", "provenance.json"


def trained_model(run: Path) -> Path:
    """The best checkpoint of a run folder if it kept one, else its newest; a checkpoint is returned as it is."""
    inside = sorted((run / "checkpoints").glob("step-*"))
    if not inside:
        if any((run / name).is_file() for name in ("config.json", CONFIG)):
            return run
        raise CheckpointError(
            f"{run}: no checkpoints/step-* and no config.json; expected a local run's folder or checkpoint. For a "
            "checkpoint of NeMo-RL, use `nemo-uecr convert`"
        )
    state = read_object(inside[-1] / STATE)
    best = state["position"]["best_step"] if state["config"]["checkpoint"]["keep_best"] else None
    chosen = inside[-1] if best is None else inside[0].with_name(f"step-{best:06d}")
    if chosen not in inside:
        names = ", ".join(path.name for path in inside)
        raise CheckpointError(f"{chosen}, the best of the run, is gone; name one that is there: {names}")
    return chosen


def check_trained(folder: Path) -> None:
    """Refuse a checkpoint whose files, or the base of its adapter, are not those of the training."""
    if (folder / MANIFEST).is_file():
        check_manifest(folder, unread=OPTIMIZER)
    base, record = base_of(folder), folder.resolve().parent.parent / PROVENANCE
    if base is None or not record.is_file():
        return
    known = read_object(record)["sha256"]
    for name, path in model_files("student", base).items():
        used = name in known and path.suffix in (".safetensors", ".json")  # the hub may renew a README
        if used and file_sha256(path) != known[name]:
            raise CheckpointError(f"{path} changed since {folder} was trained on it; put the old content back")


def check_manifest(folder: Path, *, unread: str = "") -> None:
    """Refuse a checkpoint whose files are not as they were saved, the ``unread`` one aside."""
    try:
        # Users correct an adapter's configuration when its base has moved.
        faults = [f"{folder / name}: {fault}" for name, fault in compare_manifest(folder, (unread, CONFIG)) if fault]
    except DataError as error:
        faults = [str(error)]
    if faults:
        raise CheckpointError(
            f"{faults[0]}; the checkpoint is corrupt. Delete {folder} and run again (train with --resume) to use an "
            "earlier one"
        )


def compare_manifest(folder: Path, unread: Collection[str] = ()) -> list[tuple[str, str | None]]:
    """Each file that a checkpoint's manifest lists, and what is wrong with it."""
    listed = read_object(folder / MANIFEST).items()
    return [(name, file_fault(folder / name, sha256)) for name, sha256 in listed if name not in unread]


def model_files(role: str, name: str) -> dict[str, Path]:
    """Files of a model's folder, or of the hub's copy in the cache, and of an adapter's base; none without a folder."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    folder = Path(name).expanduser()
    if not folder.is_dir():
        try:
            folder = Path(snapshot_download(name, local_files_only=True))
        except (LocalEntryNotFoundError, HFValidationError):
            return {}
    files, base = {f"{role}/{path.name}": path for path in sorted(folder.iterdir())}, base_of(folder)
    return files if base is None else files | model_files(f"{role}/base", base)
