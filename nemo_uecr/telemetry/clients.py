"""TensorBoard, Weights & Biases and MLflow through their own clients, each imported only when it is asked for."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from nemo_uecr.errors import ConfigError, DependencyError
from nemo_uecr.files import replace_file

log = logging.getLogger(__name__)

OFF, OFFLINE = "off", "offline"
#: Names this run to the clients, so that a resumed run continues its own record there.
KEY_FILE = "tracking.key"
#: MLflow's tag for that name.
TAG = "nemo_uecr.key"
#: The longest parameter that every MLflow server takes.
MLFLOW_VALUE = 500


@dataclass(frozen=True)
class Choice:
    """Which clients a run uses.

    Attributes:
        tensorboard: "auto", "on" or "off".
        wandb: "off", "offline" or "online".
        mlflow: "off", "offline" or "online".
        project: W&B project and MLflow experiment.
        parameters: the resolved configuration, dotted keys.
    """

    tensorboard: str
    wandb: str
    mlflow: str
    project: str
    parameters: Mapping[str, object]


class Client(Protocol):
    """Something besides the metrics file that is told of every step."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take a step's metrics."""

    def close(self, *, failed: bool) -> None:
        """End the record."""


def open_clients(folder: Path, choice: Choice) -> list[Client]:
    """The clients that a run asks for.

    Raises:
        DependencyError: A client is not installed, or does not start.
        ConfigError: MLflow is asked for online and no server is named.
    """
    clients: list[Client] = []
    if choice.tensorboard != OFF:
        try:
            clients.append(TensorBoard(folder / "tensorboard"))
        except ImportError as missing:
            if choice.tensorboard == "on":
                raise DependencyError(
                    "telemetry.tensorboard is on, but TensorBoard is not installed; "
                    "pip install 'nemo-uecr[tensorboard]'"
                ) from missing
    if choice.wandb != OFF:
        clients.append(Wandb(folder, choice))
    if choice.mlflow != OFF:
        clients.append(Mlflow(folder, choice))
    return clients


def run_key(folder: Path) -> str:
    """The run's name for the clients: random, made once, kept in the run folder."""
    path = folder / KEY_FILE
    if not path.exists():
        replace_file(path, uuid.uuid4().hex.encode())
    return path.read_text(encoding="utf-8").strip()


class TensorBoard:
    """Event files in the run folder."""

    def __init__(self, folder: Path) -> None:
        """Open the event file."""
        from torch.utils.tensorboard import SummaryWriter

        self._folder = folder
        self._events = SummaryWriter(str(folder))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write scalars."""
        try:
            for name, value in metrics.items():
                self._events.add_scalar(name, value, step)
            self._events.flush()
        except OSError as error:  # raised by the writer's thread, without a name
            error.filename = str(self._folder)
            raise

    def close(self, *, failed: bool) -> None:
        """Close the event file."""
        self._events.close()


class Wandb:
    """A Weights & Biases run; offline it is a folder that `wandb sync` uploads."""

    def __init__(self, folder: Path, choice: Choice) -> None:
        """Start or continue the run."""
        wandb = _module("wandb", "telemetry.wandb")
        try:
            self._run = wandb.init(
                project=choice.project,
                name=folder.resolve().name,
                id=run_key(folder),
                resume="allow",
                mode=choice.wandb,
                dir=str(folder),
                config=dict(choice.parameters),
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.errors.Error as error:
            raise DependencyError(
                f"telemetry.wandb is {choice.wandb}, but W&B does not start ({' '.join(str(error).split())}); "
                "log in with `wandb login`, or set telemetry.wandb=offline"
            ) from error
        self._errors = wandb.errors.Error
        self._alive = True

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the step; a failing service is reported once and left alone, since the metrics file has everything."""
        if self._alive:
            try:
                self._run.log(dict(metrics), step=step)
            except self._errors as error:
                self._alive = False
                log.warning("W&B fails (%s); the run goes on without it", error)

    def close(self, *, failed: bool) -> None:
        """Finish the run."""
        self._run.finish(exit_code=int(failed))


class Mlflow:
    """An MLflow run; offline it is a database in the run folder."""

    def __init__(self, folder: Path, choice: Choice) -> None:
        """Start or continue the run."""
        mlflow = _module("mlflow", "telemetry.mlflow")
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it reports every table that it creates
        self._entities, self._errors = mlflow.entities, mlflow.exceptions.MlflowException
        address = os.environ.get("MLFLOW_TRACKING_URI", "")
        if choice.mlflow == OFFLINE:
            address = f"sqlite:///{(folder / 'mlflow.db').resolve()}"
        elif not address:
            raise ConfigError(
                "telemetry.mlflow is online, but MLFLOW_TRACKING_URI is not set; expected the server's address there. "
                "Set it, or set telemetry.mlflow=offline"
            )
        try:
            self._client = mlflow.MlflowClient(tracking_uri=address)
            self._id = self._find_or_make(folder, choice)
        except (self._errors, ImportError) as error:
            raise DependencyError(
                f"telemetry.mlflow is {choice.mlflow}, but MLflow does not start ({' '.join(str(error).split())}); "
                "pip install 'nemo-uecr[mlflow]', and online check MLFLOW_TRACKING_URI"
            ) from error
        self._alive = True

    def _find_or_make(self, folder: Path, choice: Choice) -> str:
        key = run_key(folder)
        experiment = self._client.get_experiment_by_name(choice.project)
        if experiment is None:
            place = (folder / "mlflow").resolve().as_uri() if choice.mlflow == OFFLINE else None
            number = self._client.create_experiment(choice.project, artifact_location=place)
        else:
            number = experiment.experiment_id
        found = self._client.search_runs([number], filter_string=f"tags.`{TAG}` = '{key}'")
        if found:
            self._client.update_run(found[0].info.run_id, status="RUNNING")
            return str(found[0].info.run_id)
        run = self._client.create_run(number, tags={TAG: key}, run_name=folder.resolve().name)
        parameters = [
            self._entities.Param(name, str(value)[:MLFLOW_VALUE]) for name, value in choice.parameters.items()
        ]
        self._client.log_batch(run.info.run_id, params=parameters)
        return str(run.info.run_id)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the step; a failing server is reported once and left alone, since the metrics file has everything."""
        if self._alive:
            now = int(1000 * time.time())
            values = [self._entities.Metric(name, float(value), now, step) for name, value in metrics.items()]
            try:
                self._client.log_batch(self._id, metrics=values)
            except self._errors as error:
                self._alive = False
                log.warning("MLflow fails (%s); the run goes on without it", error)

    def close(self, *, failed: bool) -> None:
        """Finish the run."""
        if self._alive:
            try:
                self._client.set_terminated(self._id, status="FAILED" if failed else "FINISHED")
            except self._errors as error:
                log.warning("MLflow fails (%s); the run itself has ended", error)


def _module(name: str, key: str) -> Any:
    try:
        return import_module(name)
    except ImportError as missing:
        raise DependencyError(
            f"{key} asks for {name}, which is not installed; pip install 'nemo-uecr[{name}]', or set {key}=off"
        ) from missing
