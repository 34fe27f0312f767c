"""The start of a run of the local back end."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from nemo_uecr.config.load import check_same_configuration, written_config
from nemo_uecr.config.schema import Config
from nemo_uecr.core.methods import check_revision
from nemo_uecr.files import locked, read_object
from nemo_uecr.local import run as local
from nemo_uecr.local.episodes import playing
from nemo_uecr.start import folders
from nemo_uecr.start.checks import TRAIN, require
from nemo_uecr.start.facts import of_local, size_of
from nemo_uecr.start.seen import Caution
from nemo_uecr.stopping import StopRequest
from nemo_uecr.verifier.pool import SHARED
from nemo_uecr.verifier.rewards import Rewards


def train(config: Config, *, resume: bool, origins: Mapping[str, str], stop: StopRequest) -> Path:
    """Check a run and run it to its last step; returns the run folder. Asked by ``stop`` it saves and raises.

    ``resume`` continues from the newest checkpoint; ``origins``, where each value came from, are for the run folder.
    """
    folder = Path(config.run.folder)

    def check_same(written: Path) -> None:
        check_same_configuration(written, config, written_config(written).model_dump(mode="json"))
        check_revision(written.parent, config.method, read_object(written.with_name("provenance.json")))

    rewards = closing(Rewards(config.reward, correct_at=config.correct_at, pool=SHARED))
    with local.writing(folder), rewards as started, playing(config) as environment, locked(folder):
        folders.free_folder(folder, check_same, resume=resume)
        run = of_local(config, size_of, ray_port=0, resources=None, started=environment)
        seen = require(run, TRAIN)  # a malformed row is found before the models are loaded
        warnings = [each.message for each in seen.values() if isinstance(each, Caution)]
        local.train(
            config, resume=resume, origins=origins, stop=stop, rewards=started, environment=environment,
            warnings=warnings,
        )  # fmt: skip
    return folder
