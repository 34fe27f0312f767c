"""TensorBoard, Weights & Biases and MLflow through their own clients, each imported only when it is asked for."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from nemo_uecr.config.schema import TelemetryConfig
from nemo_uecr.errors import ConfigError, DependencyError, first_line
from nemo_uecr.files import replace_file

log = logging.getLogger(__name__)

#: Names this run to the clients, so that a resumed run continues its own record there.
KEY_FILE = "tracking.key"
#: MLflow's tag for that name.
TAG = "nemo_uecr.key"
#: The longest parameter that every MLflow server takes.
MLFLOW_VALUE = 500


def open_clients(folder: Path, wanted: TelemetryConfig, parameters: Mapping[str, object]) -> list[Client]:
    """The clients that a run asks for; ``parameters`` are its resolved configuration, dotted keys."""
    kinds: dict[str, type[Client]] = {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": Mlflow}
    clients = []
    for name, kind in kinds.items():
        mode = getattr(wanted, name)
        if mode == "off":
            continue
        try:
            clients.append(kind(folder, wanted, parameters))
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
    return clients


def run_key(folder: Path) -> str:
    """The run's name for the clients: random, made once, kept in the run folder."""
    path = folder / KEY_FILE
    if not path.exists():
        replace_file(path, uuid.uuid4().hex.encode())
    return path.read_text(encoding="utf-8").strip()


class TensorBoard:
    """Event files in the run folder."""

    def __init__(self, folder: Path, wanted: TelemetryConfig, parameters: Mapping[str, object]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._events = SummaryWriter(str(folder / "tensorboard"))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write scalars."""
        for name, value in metrics.items():
            self._events.add_scalar(name, value, step)
        self._events.flush()

    def close(self, *, failed: bool) -> None:
        """Close the event file."""
        self._events.close()


class _Service:
    """A tracker that may fail: said once, and then left alone, since the metrics file has everything."""

    _name: str
    _errors: type[Exception]
    _alive = True

    def _tell(self, request: Callable[[], object]) -> None:
        if self._alive:
            try:
                request()
            except self._errors as error:
                self._alive = False
                log.warning("%s fails (%s); the run goes on without it", self._name, error)


class Wandb(_Service):
    """A Weights & Biases run; offline it is a folder that `wandb sync` uploads."""

    _name = "Weights & Biases"

    def __init__(self, folder: Path, wanted: TelemetryConfig, parameters: Mapping[str, object]) -> None:
        import wandb

        self._errors = wandb.errors.Error
        self._run = wandb.init(
            project=wanted.project,
            name=folder.resolve().name,
            id=run_key(folder),
            resume="allow",
            mode=wanted.wandb,
            dir=str(folder),
            config=dict(parameters),
            settings=wandb.Settings(console="off", silent=True),
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the step; W&B's own process retries where the service does not answer."""
        self._tell(lambda: self._run.log(dict(metrics), step=step))

    def close(self, *, failed: bool) -> None:
        """Finish the run."""
        self._run.finish(exit_code=int(failed))


class Mlflow(_Service):
    """An MLflow run; offline it is a database in the run folder."""

    _name = "MLflow"

    def __init__(self, folder: Path, wanted: TelemetryConfig, parameters: Mapping[str, object]) -> None:
        import mlflow

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it reports every table that it creates
        self._entities, self._errors = mlflow.entities, mlflow.exceptions.MlflowException
        offline = wanted.mlflow == "offline"
        address = f"sqlite:///{(folder / 'mlflow.db').resolve()}" if offline else os.environ.get("MLFLOW_TRACKING_URI")
        if not address:  # MLflow would write into the working folder
            raise ConfigError(
                "telemetry.mlflow is online, but MLFLOW_TRACKING_URI is not set; expected the server's address there. "
                "Set it, or set telemetry.mlflow=offline"
            )
        self._client, key = mlflow.MlflowClient(tracking_uri=address), run_key(folder)
        experiment = self._client.get_experiment_by_name(wanted.project)
        if experiment is None:
            place = (folder / "mlflow").resolve().as_uri() if offline else None
            number = self._client.create_experiment(wanted.project, artifact_location=place)
        else:
            number = experiment.experiment_id
        begun = self._client.search_runs([number], filter_string=f"tags.`{TAG}` = '{key}'")
        if begun:
            self._id = begun[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._client.create_run(number, tags={TAG: key}, run_name=folder.resolve().name).info.run_id
            values = {name: str(value)[:MLFLOW_VALUE] for name, value in parameters.items()}
            self._client.log_batch(self._id, params=[self._entities.Param(*pair) for pair in values.items()])

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the step."""
        now = int(1000 * time.time())
        values = [self._entities.Metric(name, float(value), now, step) for name, value in metrics.items()]
        self._tell(lambda: self._client.log_batch(self._id, metrics=values))

    def close(self, *, failed: bool) -> None:
        """Finish the run."""
        self._tell(lambda: self._client.set_terminated(self._id, status="FAILED" if failed else "FINISHED"))


#: Something besides the metrics file that is told of every step.
Client = TensorBoard | Wandb | Mlflow
