"""Where a run's records go: JSONL files always, the clients that a run asks for, and progress for people.

TensorBoard, Weights & Biases and the others are written through their own clients, each imported only when it is asked
for; a tracker from a user's file is one more.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TextIO

from nemo_uecr import door
from nemo_uecr.config.schema import TelemetryConfig
from nemo_uecr.errors import ConfigError, DependencyError, RunFolderError, first_line
from nemo_uecr.files import append_whole, replace_file
from nemo_uecr.telemetry.metric_table import metric_of

log = logging.getLogger(__name__)

STEPS, EVALUATIONS = "metrics.jsonl", "evaluation.jsonl"
Record = dict[str, Any]
#: Names this run to the clients, so that a resumed run continues its own record there.
KEY_FILE = "tracking.key"
#: MLflow's tag for that name.
TAG = "nemo_uecr.key"
#: What a user's tracker is.
TRACKER = "a class with log(metrics, step) and finish(failed), made with folder, project, key and parameters"
#: The longest parameter that every MLflow server takes.
MLFLOW_VALUE = 500


def append_record(path: Path, record: Mapping[str, object]) -> None:
    """Append one JSON line, whole or not at all, and push it to disk; a kill leaves at most half of a last line."""
    append_whole(path, _line(record))


def read_records(path: Path) -> tuple[list[Record], bool]:
    """The records of a file in its order, and whether it ends in half of one; a missing file has none."""
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append({**json.loads(line)})
        except (ValueError, TypeError) as error:
            if not line.endswith(b"\n"):  # the run is writing it, or was killed while writing
                return records, True
            raise RunFolderError(f"{path}:{number}: not a record ({error}); the file is corrupt") from error
    return records, False


def truncate_records(path: Path, *, last_step: int) -> None:
    """Drop records after ``last_step``, and a half-written last line, by writing the file anew."""
    if path.exists():
        records, _ = read_records(path)
        replace_file(path, b"".join(_line(record) for record in records if record["step"] <= last_step))


def _line(record: Mapping[str, object]) -> bytes:
    return (json.dumps(record, allow_nan=False) + "\n").encode()


def finite_metrics(step: int, metrics: Mapping[str, float]) -> dict[str, float]:
    """A step's metrics without those that are not finite; warns of these, and of names that the table lacks."""
    for name, value in metrics.items():
        if metric_of(name) is None:
            log.warning("metric %r is not in the table of names; add it to telemetry/metric_table.py", name)
        if not math.isfinite(value):
            log.warning("metric %s is %s at step %d; it is left out of the record", name, value, step)
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


#: Share of responses at the length limit from which a step's line shows it.
MANY_CUT = 0.2


class Progress:
    """Reports steps and evaluations: below a bar on a terminal, as plain lines elsewhere."""

    def __init__(self, *, total: int, style: str, stream: TextIO | None = None) -> None:
        """Choose the form: ``style`` is "auto", "bar", "lines" or "off"."""
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        stream = sys.stderr if stream is None else stream
        with_bar = style == "bar" or (style == "auto" and stream.isatty())
        self._total = total
        self._console = Console(file=stream, force_terminal=with_bar, quiet=style == "off", highlight=False)
        columns = (BarColumn(24), TextColumn("{task.description}"), TimeRemainingColumn(compact=True))
        self._bar = Bar(*columns, console=self._console, auto_refresh=False, disable=not with_bar)
        self._task = self._bar.add_task(f"step 0/{total}", total=total, start=False)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report a finished step."""
        cut = metrics["response/truncated_share"]
        at_limit = f"cut off {cut:.0%}  " if cut >= MANY_CUT else ""
        shown = (
            f"step {step}/{self._total}  reward {metrics['reward/task_mean']:.3f}  "
            f"mixed groups {metrics['group/mixed_share']:.0%}  length {metrics['response/length_mean']:.1f}  {at_limit}"
            f"grad {metrics['policy/grad_norm']:.3f}  {metrics['time/step_s']:.2f} s"
        )
        if self._bar.disable:
            self._print(shown)
            return
        if not self._bar.live.is_started:
            self._bar.start()
            self._bar.reset(self._task, completed=step - 1)  # a resumed run does not begin at 0
        self._bar.update(self._task, completed=step, description=shown, refresh=True)

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Report an evaluation."""
        average = record["average"]
        sets = "  ".join(f"{name} {100 * each['avg']:.1f}" for name, each in record["sets"].items())
        self._print(
            f"step {record['step']}/{self._total}  avg@{record['samples']} {100 * average['avg']:.1f} "
            f"[{100 * average['low']:.1f}, {100 * average['high']:.1f}]  {sets}  {record['seconds']:.1f} s"
        )

    def close(self) -> None:
        """End the bar."""
        self._bar.stop()

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


# The clients


@dataclass
class Client:
    """What gets every step besides the metrics file; one that fails is reported once, and the run goes on."""

    name: str
    errors: type[Exception] | tuple[type[Exception], ...]  # of a service that may fail
    log: Callable[[dict[str, float], int], object]  # metrics, step
    finish: Callable[[bool], object]  # whether the run failed
    failed: bool = False

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the step, unless an earlier request failed."""
        if not self.failed:
            self._request(partial(self.log, dict(metrics), step))

    def close(self, *, failed: bool) -> None:
        """Finish the run, also where an earlier request failed."""
        self._request(partial(self.finish, failed))

    def _request(self, request: Callable[[], object]) -> None:
        try:
            request()
        except self.errors as error:
            if not self.failed:
                log.warning("%s fails (%s); the run goes on without it", self.name, error)
            self.failed = True


def open_clients(folder: Path, wanted: TelemetryConfig, parameters: Mapping[str, object]) -> list[Client]:
    """The clients that a run asks for; ``parameters`` are its resolved configuration, dotted keys."""
    kinds: dict[str, Callable[..., Client]] = {
        "tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio, "swanlab": _swanlab,
    }  # fmt: skip
    clients = []
    for name, opened in kinds.items():
        mode = getattr(wanted, name)
        if mode == "off":
            continue
        try:
            clients.append(opened(folder, wanted, parameters))
        except ImportError as missing:
            if mode != "auto":
                raise DependencyError(
                    f"telemetry.{name} is {mode}, but {missing.name or name} is not installed; "
                    f"pip install 'nemo-uecr[{name}]', or set telemetry.{name}=off"
                ) from missing
        except Exception as error:
            # The client's own errors, none of which is imported here.
            if type(error).__module__.partition(".")[0] != name:
                raise
            raise DependencyError(
                f"telemetry.{name} is {mode}, but {name} does not start ({first_line(error)}); repair that, or set "
                f"telemetry.{name}=off"
            ) from error
    if wanted.tracker is not None:
        clients.append(_own(wanted.tracker, folder, wanted, parameters))
    return clients


def run_key(folder: Path) -> str:
    """The run's name for the clients: random, made once, kept in the run folder."""
    path = folder / KEY_FILE
    if not path.exists():
        replace_file(path, uuid.uuid4().hex.encode())
    return path.read_text(encoding="utf-8").strip()


def _tensorboard(folder: Path, wanted: TelemetryConfig, parameters: Mapping[str, object]) -> Client:
    """Event files in the run folder."""
    from torch.utils.tensorboard import SummaryWriter

    events: SummaryWriter | None = None

    def write(metrics: Mapping[str, float], step: int) -> None:
        nonlocal events
        # What an earlier attempt wrote for the first step here, or later ones, is no longer shown.
        events = events or SummaryWriter(str(folder / "tensorboard"), purge_step=step)
        for name, value in metrics.items():
            events.add_scalar(name, value, step)
        events.flush()

    def finish(failed: bool) -> None:
        if events is not None:
            events.close()

    return Client("TensorBoard", (), write, finish)


def _named(folder: Path, wanted: TelemetryConfig, parameters: Mapping[str, object]) -> dict[str, Any]:
    """What W&B, Trackio and SwanLab call by the same names."""
    name = folder.resolve().name
    return {"project": wanted.project, "name": name, "resume": "allow", "config": dict(parameters)}


def _wandb(folder: Path, wanted: TelemetryConfig, parameters: Mapping[str, object]) -> Client:
    """A Weights & Biases run; offline it is a folder that `wandb sync` uploads."""
    import wandb

    own = {"id": run_key(folder), "mode": wanted.wandb, "dir": str(folder)}
    quiet = wandb.Settings(console="off", silent=True)
    run = wandb.init(**_named(folder, wanted, parameters), **own, settings=quiet)
    return Client("Weights & Biases", wandb.errors.Error, run.log, lambda failed: run.finish(exit_code=int(failed)))


def _trackio(folder: Path, wanted: TelemetryConfig, parameters: Mapping[str, object]) -> Client:
    """A Trackio run; offline it is a database in the run folder, online a Space of the hub."""
    if wanted.trackio == "online" and not {"TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"} & set(os.environ):
        raise ConfigError(
            "telemetry.trackio is online, but neither TRACKIO_SPACE_ID nor TRACKIO_SERVER_URL is set; expected the "
            "run's place there. Set one, or set telemetry.trackio=offline"
        )
    os.environ.setdefault("TRACKIO_DIR", str((folder / "trackio").resolve()))  # read when it is imported
    import trackio

    quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
    run = trackio.init(**_named(folder, wanted, parameters), **quiet)
    return Client("Trackio", Exception, run.log, lambda _: run.finish())  # it has no errors of its own


def _swanlab(folder: Path, wanted: TelemetryConfig, parameters: Mapping[str, object]) -> Client:
    """A SwanLab run; offline it is a folder that `swanlab sync` uploads."""
    import swanlab
    from swanlab.exceptions import ApiError, AuthenticationError

    (folder / "swanlab").mkdir(exist_ok=True)
    own = {"id": run_key(folder), "mode": wanted.swanlab, "log_dir": str(folder / "swanlab")}
    quiet = swanlab.Settings(terminal={"proxy_type": "none"})
    run = swanlab.init(**_named(folder, wanted, parameters), **own, settings=quiet)
    errors = (ApiError, AuthenticationError)
    return Client("SwanLab", errors, run.log, lambda failed: run.finish(state="crashed" if failed else "success"))


def _mlflow(folder: Path, wanted: TelemetryConfig, parameters: Mapping[str, object]) -> Client:
    """An MLflow run; offline it is a database in the run folder."""
    import mlflow
    from mlflow.entities import Metric, Param

    logging.getLogger("mlflow").setLevel(logging.WARNING)  # it reports every table that it creates
    offline = wanted.mlflow == "offline"
    address = f"sqlite:///{(folder / 'mlflow.db').resolve()}" if offline else os.environ.get("MLFLOW_TRACKING_URI")
    if not address:  # MLflow would write into the working folder
        raise ConfigError(
            "telemetry.mlflow is online, but MLFLOW_TRACKING_URI is not set; expected the server's address there. "
            "Set it, or set telemetry.mlflow=offline"
        )
    client, key = mlflow.MlflowClient(tracking_uri=address), run_key(folder)
    experiment = client.get_experiment_by_name(wanted.project)
    if experiment is None:
        place = (folder / "mlflow").resolve().as_uri() if offline else None
        number = client.create_experiment(wanted.project, artifact_location=place)
    else:
        number = experiment.experiment_id
    begun = client.search_runs([number], filter_string=f"tags.`{TAG}` = '{key}'")
    if begun:
        run = begun[0].info.run_id
        client.update_run(run, status="RUNNING")
    else:
        run = client.create_run(number, tags={TAG: key}, run_name=folder.resolve().name).info.run_id
        values = {name: str(value)[:MLFLOW_VALUE] for name, value in parameters.items()}
        client.log_batch(run, params=[Param(*pair) for pair in values.items()])

    def write(metrics: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        client.log_batch(run, metrics=[Metric(name, float(value), now, step) for name, value in metrics.items()])

    def finish(failed: bool) -> None:
        client.set_terminated(run, status="FAILED" if failed else "FINISHED")

    return Client("MLflow", mlflow.exceptions.MlflowException, write, finish)


def own_tracker(named: str) -> Callable[..., Any]:
    """The class that `telemetry.tracker` names."""
    try:
        made: Callable[..., Any] = door.load(named, expected=TRACKER, fits=_is_tracker).value
    except ConfigError as error:
        raise ConfigError(f"telemetry.tracker: {error}") from error
    return made


def _own(named: str, folder: Path, wanted: TelemetryConfig, parameters: Mapping[str, object]) -> Client:
    """A tracker from a user's file; any of its errors is a service's that may fail."""
    made = own_tracker(named)
    try:
        tracker = made(folder=folder, project=wanted.project, key=run_key(folder), parameters=dict(parameters))
    except (Exception, SystemExit) as error:
        fault = door.failed_at(error, door.file_of(named).resolve())
        raise DependencyError(
            f"telemetry.tracker: {named} does not start ({fault}); repair that, or set telemetry.tracker=null"
        ) from error
    return Client(named, Exception, tracker.log, tracker.finish)


def _is_tracker(value: object) -> bool:
    return isinstance(value, type) and all(callable(getattr(value, name, None)) for name in ("log", "finish"))


# All of them


@dataclass(frozen=True)
class StepLog:
    """Writes a run's steps under the names of `telemetry.metric_table`, as a context manager."""

    folder: Path
    clients: Sequence[Client]
    progress: Progress

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.progress.close()
        for client in self.clients:
            client.close(failed=kind is not None)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's metrics into ``metrics.jsonl``."""
        finite = finite_metrics(step, metrics)
        append_record(self.folder / STEPS, {"step": step, **finite})
        for client in self.clients:
            client.write(step, finite)
        self.progress.step(step, metrics)

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Write an evaluation's record into ``evaluation.jsonl``; the clients get the average."""
        append_record(self.folder / EVALUATIONS, record)
        average = {f"evaluation/{name}": record["average"][name] for name in ("avg", "low", "high")}
        for client in self.clients:
            client.write(record["step"], average)
        self.progress.evaluation(record)
