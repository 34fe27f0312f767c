"""`plan --fit`: the order of its changes, what they make room for, and that what it prints is what it planned."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from nemo_uecr.cli.look import sizes
from nemo_uecr.cli.main import entry_point
from nemo_uecr.config.load import load_config
from nemo_uecr.plan.contents import GIB, GPUS, Lengths, Plan, typed
from nemo_uecr.plan.fit import Attempt, attempts_to_fit, gpu_of_size
from nemo_uecr.plan.local import local_plan
from tests.config.shipped import CONFIGS
from tests.plan.subjects import sizes_of

READY = sorted((CONFIGS / "one_gpu").glob("qwen3_*.yaml"))
PAGE = CONFIGS.parents[1] / "docs" / "one-gpu.md"
EIGHT = CONFIGS / "one_gpu" / "qwen3_4b_8b.yaml"
LENGTHS = Lengths(200, 2000, 0.9)
#: As someone writes it who has not thought of memory.
PLAIN = ("offload=none", "train.microbatch_responses=8", "train.activation_checkpointing=false")


def planned(path: Path, overrides: Sequence[str], gigabytes: float) -> Plan:
    gpu = gpu_of_size(gigabytes, GPUS["a100"])
    return local_plan(load_config(path, overrides).config, gpu, LENGTHS, sizes=sizes)


def attempts(gigabytes: float, *overrides: str, path: Path = EIGHT) -> list[Attempt]:
    gpu = gpu_of_size(gigabytes, GPUS["a100"])
    return attempts_to_fit(lambda more: load_config(path, [*overrides, *more]).config, gpu, LENGTHS, sizes=sizes)


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_what_changes_no_number_comes_first_and_each_change_makes_room(engine: str) -> None:
    tried = attempts(9, *PLAIN, f"rollout.engine={engine}")
    exact = [not attempt.changes or attempt.changes.startswith("no number") for attempt in tried]
    assert exact == sorted(exact, reverse=True)
    assert exact.count(True) == 5
    assert [word.partition("=")[0] for attempt in tried[2:] for word in attempt.added[:1]] == [
        "train.activation_checkpointing", "offload", "offload", "train.optimizer", "train.optimizer", "train.optimizer",
        "teacher.quantize", "teacher.quantize",
    ]  # fmt: skip
    for name in ("update", "score teacher"):
        peaks = [sum(sizes_of(attempt.plan, name).values()) for attempt in tried]
        assert peaks == sorted(peaks, reverse=True)
        assert peaks[0] > 3 * peaks[-1]
    assert tried[-1].plan.misfits


@pytest.mark.parametrize(("pair", "gigabytes"), [("1p7b_8b", 18), ("0p6b_4b", 13)])
def test_a_change_that_shrinks_no_phase_at_fault_is_left_out(pair: str, gigabytes: int) -> None:
    """The teacher alone is too big: an adapter would change what is trained for nothing."""
    path = CONFIGS / "one_gpu" / f"qwen3_{pair}.yaml"
    tried = attempts(gigabytes, path=path)
    keys = tried[-1].keys
    assert (keys["teacher.quantize"], "student.lora_rank" in keys, tried[-1].plan.misfits) == ("int8", False, False)
    needed = {key: keys[key] for key in keys.keys() - {"train.optimizer"}}
    assert planned(path, typed(needed), gigabytes).faults


def test_what_fits_as_written_is_left_alone() -> None:
    (attempt,) = attempts(700, *PLAIN)
    assert attempt.keys == {}


def test_what_is_written_is_never_taken_back() -> None:
    """Neither an adapter nor weights in bfloat16 turn into something that needs more."""
    assert all("student.lora_rank" not in attempt.keys for attempt in attempts(9, *PLAIN, "student.lora_rank=8"))
    tried = attempts(9, *PLAIN, "train.optimizer=adamw8bit_sr")
    assert {attempt.keys.get("train.optimizer") for attempt in tried} == {None, "adamw"}  # the adapter's


@pytest.mark.parametrize("gigabytes", [24, 48, 80])
def test_the_printed_command_gives_the_same_plan(
    gigabytes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fit.json"
    entry_point(["plan", str(EIGHT), *PLAIN, "--fit", str(gigabytes), "--json", str(out)])
    command = re.search(r"nemo-uecr train (.*)", capsys.readouterr().out)
    path, *overrides = shlex.split(command[1])
    written = json.loads(out.read_text())
    plan = planned(Path(path), overrides, gigabytes)
    assert not plan.faults
    assert plan.fullest.size == max(phase["size"] for phase in written["plan"]["phases"])
    assert plan.fullest.size <= (0.925 * gigabytes - 1.5) * GIB
    assert plan.host_bytes == sum(item["size"] for item in written["plan"]["host"])


def table() -> list[tuple[str, int, str]]:
    """(student and teacher, GB, what stands in the cell) of docs/one-gpu.md."""
    rows = re.findall(r"^\| ([\d.]+B) \+ ([\d.]+B) \| (.*) \| (.*) \| (.*) \|$", PAGE.read_text(), re.M)
    sizes = (24, 48, 80)
    return [(f"{row[0]}_{row[1]}", size, cell) for row in rows for size, cell in zip(sizes, row[2:], strict=True)]


@pytest.mark.parametrize(("pair", "gigabytes", "cell"), table())
def test_the_table_of_the_page(pair: str, gigabytes: int, cell: str) -> None:
    student, teacher = (f"Qwen/Qwen3-{name}" for name in pair.split("_"))
    models = (f"student.model_name={student}-Base", f"teacher.model_name={teacher}")
    tried = attempts(gigabytes, *models, "offload=none", "rollout.gpu_memory=0.9")
    shown = re.compile("offload|train.optimizer|student.lora_rank|teacher.quantize")
    last = [key for key in typed(tried[-1].keys) if shown.match(key)]
    room = re.search(r"values of (\d+) responses", " ".join(tried[-1].plan.facts))
    assert cell == f"{f'`{last[-1]}`' if last else 'as written'}, {room[1]}"


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_a_ready_configuration_fits_its_gpu(path: Path) -> None:
    """With the fewest bytes that a card of so many GB has, and 1.5 GiB of them left free."""
    stated = re.match(r"# One GPU of (\d+) GB", path.read_text())
    assert planned(path, [], int(stated[1])).faults == ()
