"""What the overrides of a study may say, checked before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nemo_uecr.config.load import load_config, override_layer
from nemo_uecr.config.schema import Config
from nemo_uecr.errors import ConfigError
from nemo_uecr.study.cells import Cell
from nemo_uecr.study.schema import StudyConfig

#: What every run gets from the study itself; an override would be overruled, and nobody would see it.
OWN = (
    "run.folder",
    "run.seed",
    "student.model_name",
    "teacher.model_name",
    "data.train",
    "train.learning_rate",
    "threads",
    "telemetry.progress",
)
OWN_MAPPING = "evaluation.benchmarks"


def check_overrides(study: StudyConfig, cells: Sequence[Cell]) -> None:
    """Load the configuration of each arm in each variant and stage.

    Args:
        study: the study.
        cells: its runs; of those that share their stated overrides one is loaded.

    Raises:
        ConfigError: an override is faulty, or says what the study says itself.
    """
    for where, overrides in _stated(study):
        for text in overrides:
            _leaves_ours(where, text)
    for cell in {(cell.variant, cell.arm, cell.selection): cell for cell in cells}.values():
        load_config(study.config, cell.overrides)


def _stated(study: StudyConfig) -> Iterator[tuple[str, Sequence[str]]]:
    yield "overrides", study.overrides
    yield "selection.overrides", study.selection.overrides
    yield from ((f"variants.{name}", texts) for name, texts in study.variants.items())
    yield from ((f"arms.{name}.overrides", arm.overrides) for name, arm in study.arms.items())


def _leaves_ours(where: str, text: str) -> None:
    for key in override_layer(text, Config).origins:
        own = next((name for name in (*OWN, OWN_MAPPING) if f"{name}.".startswith(f"{key}.")), None)
        if key.startswith(f"{OWN_MAPPING}."):
            own = key
        if own is not None:  # a whole section, as student=null, takes away what stands below it
            raise ConfigError(f"{where}: got {text}; every run gets its {own} from the study. Leave it out")
