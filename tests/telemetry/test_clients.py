"""TensorBoard, W&B, MLflow, Trackio and SwanLab: the real clients, offline; skipped where one is not installed."""

from __future__ import annotations

import json
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nemo_uecr.config.schema import TelemetryConfig
from nemo_uecr.errors import ConfigError, DependencyError, InvariantError
from nemo_uecr.telemetry.sinks import Progress, StepLog, open_clients, run_key
from tests.telemetry.records import EVALUATION, STEP


def log_of(folder: Path, **wanted: Any) -> StepLog:
    """The log of a run that asks for these clients."""
    modes = {"tensorboard": "off", "project": "project", "save_batch_every": 0, "progress": "off"} | wanted
    clients = open_clients(folder, TelemetryConfig(**modes), {"run.seed": 7, "threads": None})
    return StepLog(folder, clients, Progress(total=4, style="off"))


def two_steps(folder: Path, **wanted: Any) -> None:
    with log_of(folder, **wanted) as log:
        log.step(1, STEP | {"policy/loss": 0.5})
        log.evaluation(EVALUATION | {"step": 2})
        log.step(2, STEP | {"policy/loss": 0.25})


def test_tensorboard_events_can_be_read(tmp_path: Path) -> None:
    two_steps(tmp_path, tensorboard="on")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("policy/loss")] == [(1, 0.5), (2, 0.25)]
    assert [(event.step, event.value) for event in events.Scalars("evaluation/avg")] == [(2, 0.5)]
    with log_of(tmp_path, tensorboard="on") as resumed:
        resumed.step(2, STEP | {"policy/loss": 0.75})
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("policy/loss")] == [(1, 0.5), (2, 0.75)]


def test_missing_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(DependencyError, match=r"pip install 'nemo-uecr\[tensorboard\]'"):
        log_of(tmp_path, tensorboard="on")
    two_steps(tmp_path, tensorboard="auto")
    assert sorted(found.name for found in tmp_path.iterdir()) == ["evaluation.jsonl", "metrics.jsonl"]


def wandb_records(folder: Path) -> tuple[list[dict[str, float]], dict[str, object], list[int]]:
    """History, configuration and exit codes in an offline run's file: LevelDB's log of protocol buffers."""
    import wandb
    from wandb.proto import wandb_internal_pb2 as messages

    wandb.teardown()  # Its service may hold the last records back until it ends, as it does when a run's process ends.
    history, config, codes = [], {}, []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        raw, at = path.read_bytes(), 7
        while at + 7 <= len(raw):
            (length,) = struct.unpack_from("<H", raw, at + 4)
            record = messages.Record()
            record.ParseFromString(raw[at + 7 : at + 7 + length])
            at += 7 + length
            if record.HasField("history"):
                items = record.history.item
                history.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
            if record.HasField("run"):
                config |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
            if record.HasField("exit"):
                codes.append(record.exit.exit_code)
    return history, config, codes


@pytest.mark.real
def test_wandb_offline_run_can_be_read(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    two_steps(tmp_path, wandb="offline")
    history, config, codes = wandb_records(tmp_path)
    assert [(line["_step"], line["policy/loss"]) for line in history] == [(1, 0.5), (2, 0.25)]
    assert history[1]["evaluation/avg"] == 0.5
    assert config["run.seed"] == 7
    assert codes == [0]
    (folder,) = tmp_path.glob("wandb/offline-run-*")
    assert folder.name.endswith(run_key(tmp_path))
    with pytest.raises(ZeroDivisionError), log_of(tmp_path / "failed", wandb="offline"):
        raise ZeroDivisionError
    assert wandb_records(tmp_path / "failed")[2] == [1]


def continued(folder: Path) -> None:
    """A third step, and an error that stops the run."""
    with log_of(folder, mlflow="offline") as log:
        log.step(3, STEP | {"policy/loss": 0.125})
        raise InvariantError


@pytest.mark.real
def test_mlflow_offline_run_can_be_read_and_continued(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    two_steps(tmp_path, mlflow="offline")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("project").experiment_id
    (run,) = client.search_runs([experiment])
    assert (run.info.status, run.data.params["run.seed"], run.data.params["threads"]) == ("FINISHED", "7", "None")
    history = client.get_metric_history(run.info.run_id, "policy/loss")
    assert [(point.step, point.value) for point in history] == [(1, 0.5), (2, 0.25)]
    assert run.data.metrics["evaluation/high"] == 0.75
    with pytest.raises(InvariantError):
        continued(tmp_path)
    (run,) = client.search_runs([experiment])
    assert run.info.status == "FAILED"
    assert [point.step for point in client.get_metric_history(run.info.run_id, "policy/loss")] == [1, 2, 3]


@pytest.mark.real
def test_trackio_offline_run_can_be_read_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio")
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    script = f"""
from {__name__} import *
folder = Path({str(tmp_path)!r})
two_steps(folder, trackio="offline")
with log_of(folder, trackio="offline") as log:
    log.step(3, STEP)
"""
    subprocess.run([sys.executable, "-c", script], check=True)  # the client reads its folder once per process
    (database,) = tmp_path.glob("trackio/*.db")
    with sqlite3.connect(database) as store:
        rows = store.execute("select run_name, step, metrics from metrics order by id").fetchall()
        [(config,)] = store.execute("select config from configs").fetchall()
    assert {name for name, _, _ in rows} == {tmp_path.name}
    losses = [(step, json.loads(values)["policy/loss"]) for _, step, values in rows if b"policy/loss" in values]
    assert losses == [(1, 0.5), (2, 0.25)]
    assert rows[-1][1] == 3
    assert json.loads(config)["run.seed"] == 7


def test_trackio_online_needs_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="TRACKIO_SPACE_ID"):
        log_of(tmp_path, trackio="online")


@pytest.mark.real
def test_swanlab_offline_run_can_be_read(tmp_path: Path) -> None:
    pytest.importorskip("swanlab")
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    two_steps(tmp_path, swanlab="offline")
    (file,) = tmp_path.glob("swanlab/run-*/run-*.swanlab")
    assert file.stem == f"run-{run_key(tmp_path)}"
    reader, records = DataStoreReader(), []
    reader.open(file)
    while (raw := reader.scan()) is not None:
        record = Record()
        record.ParseFromString(raw)
        records.append(record)
    scalars = [(one.scalar.step, one.scalar.value.number) for one in records if one.scalar.key == "policy/loss"]
    assert scalars == [(1, 0.5), (2, 0.25)]
    [finish] = [one.finish for one in records if one.HasField("finish")]
    assert finish.state == 1  # finished, not crashed
    assert "run.seed" in next(tmp_path.glob("swanlab/run-*/files/config.yaml")).read_text()


@pytest.mark.real
def test_a_server_that_fails_does_not_stop_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    with log_of(tmp_path, mlflow="offline") as log:
        with sqlite3.connect(tmp_path / "mlflow.db") as store:
            store.execute("delete from runs")
        log.step(1, STEP)
        log.step(2, STEP)
    assert [record.message.partition(" (")[0] for record in caplog.records if "MLflow" in record.message] == [
        "MLflow fails"
    ]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
