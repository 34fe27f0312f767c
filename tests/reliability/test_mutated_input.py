"""Configurations and files changed at random, repeatably: valid, or one clear line with code 2; never a traceback."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nemo_uecr.cli.main import entry_point
from nemo_uecr.config.dotted import flattened
from nemo_uecr.config.keys import is_known
from nemo_uecr.config.load import load_config
from nemo_uecr.config.schema import Config
from nemo_uecr.data.batch_file import load_batch, save_batch
from nemo_uecr.data.problems import Problem, load_problems
from tests.local import tiny
from tests.reliability.commands import complaint

MUTATIONS = 200
NEMO = Path(__file__).resolve().parents[2] / "examples" / "configs" / "uecr_qwen3_1p7b.yaml"
#: Values that a hand, a script or another program may put where a number, a word or a section belongs.
ODD = (
    None, True, False, 0, -1, 1, 10**30, -0.0, 1e308, 1e-320, float("nan"), float("inf"), "", " ", "nan", "1e3", "0x10",
    "???", "${", "${}", "${train.steps}", "${nowhere}", "${mul:1}", "${oc.env:NOWHERE_AT_ALL}", "${div:1,0}", "\x00",
    "\ud800", "ü", "a\nb", [], [1, [2]], {}, {"a": {"b": 1}}, {"defaults": "x"}, {"_override_": True}, "x" * 5000,
)  # fmt: skip


def mutated(tree: dict[str, object], dice: random.Random) -> dict[str, object]:
    """One to three keys replaced, removed, renamed or added, at any depth."""
    tree = json.loads(json.dumps(tree))
    for _ in range(dice.randint(1, 3)):
        place: dict[str, object] = tree
        while True:
            name = dice.choice(sorted(place) or ["empty"])
            inner = place.get(name)
            if not isinstance(inner, dict) or not inner or dice.random() < 0.2:
                break
            place = inner
        change = dice.randrange(4)
        if change == 0:
            place.pop(name, None)
        elif change == 1:
            letters = "".join(dice.choices(string.printable, k=dice.randint(0, 6)))
            place[letters] = place.pop(name, 1)
        else:
            place[name] = dice.choice(ODD)
    return tree


def test_two_hundred_mutated_configurations(tmp_path: Path) -> None:
    base = tiny.configured(tmp_path / "run").config.model_dump(mode="json")
    dice, valid, path = random.Random(11), 0, tmp_path / "own.yaml"
    for number in range(MUTATIONS):
        tree = mutated(base, dice)
        text = yaml.safe_dump(tree, allow_unicode=number % 2 == 0)
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        message = complaint(lambda: load_config(path, []))
        valid += message is None
        if message is None:
            assert entry_point(["config", "check", str(path)]) == 0
            assert [name for name in flattened(tree) if not is_known(name.removesuffix("._override_"), Config)] == []
    assert 0 < valid < MUTATIONS // 2


def test_two_hundred_mutated_overrides(tmp_path: Path) -> None:
    dice = random.Random(12)
    keys = sorted(load_config(tiny.assets().config, tiny.SMALL).origins)
    refused = 0
    for _ in range(MUTATIONS):
        key = dice.choice(keys)
        if dice.random() < 0.2:
            key = "".join(dice.sample(key, len(key)))
        value = dice.choice([*map(str, ODD), "[", "{a: ", "'", "!!python/name:os.system", "&a *a", "\t", "- 1"])
        message = complaint(lambda: load_config(tiny.assets().config, [*tiny.SMALL, f"{key}={value}"]))  # noqa: B023
        assert message is not None or is_known(key, Config), key
        refused += message is not None
    assert refused > MUTATIONS // 2


def test_every_odd_value_at_every_word_of_a_method(tmp_path: Path) -> None:
    """The section is read before the schema sees it: a name may be a list or a mapping there."""
    from nemo_uecr.config.nemo_load import load_nemo_config

    base, path = tiny.configured(tmp_path / "run").config.model_dump(mode="json"), tmp_path / "own.yaml"
    inside = {"defaults": str(NEMO), "teacher": {"model_name": "a/b"}}
    for key in ("name", "parameters", "std", "alpha"):
        for odd in ODD:
            for load, tree in ((load_config, base), (load_nemo_config, inside)):
                method = {"method": {**tree.get("method", {}), key: odd}}
                path.write_text(yaml.safe_dump(tree | method), encoding="utf-8", errors="surrogatepass")
                message = complaint(lambda load=load: load(path, []))  # type: ignore[misc]
                assert message is not None or not isinstance(odd, (list, dict)) or key == "parameters"


#: YAML that is whole and no mapping of sections, which signs at random seldom are.
NO_SECTIONS = (
    "[1]",
    "- 1",
    "- a: 1",
    "7",
    "null",
    "text",
    "[[1]]",
    "? [a]\n: 1",
    "? {a: 1}\n: 1",
    "1: 2",
    "---\na: 1\n---\n",
)


@given(st.binary(max_size=300) | st.text(st.characters(codec="utf-8"), max_size=40).map(str.encode))
def test_any_bytes_as_a_configuration(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("yaml") / "own.yaml"
    path.write_bytes(content)
    assert (complaint(lambda: load_config(path, [])) or "").startswith(str(path))


@given(st.text(alphabet="{}[]:,&*!?|>-#%@'\"\\$ \nab1", max_size=60) | st.sampled_from(NO_SECTIONS))
def test_any_signs_as_a_configuration(tmp_path_factory: pytest.TempPathFactory, content: str) -> None:
    path = tmp_path_factory.mktemp("yaml") / "own.yaml"
    path.write_text(content)
    assert (complaint(lambda: load_config(path, [])) or "").startswith(str(path))


ROW = json.dumps({"id": "a", "question": "1", "answer": "1"}).encode()
#: JSON that is no problem, which bytes at random seldom are.
NO_ROWS = (b"7", b"[]", b"null", b'"question"', b"true", b"{}", b'["question", "answer", "id"]', b'{"question": 1}')
LINES = st.binary(max_size=60) | st.just(ROW) | st.sampled_from(NO_ROWS)


NO_PROBLEMS = "no problems in the file; expected at least one line of JSON"


def problems(path: Path) -> list[Problem]:
    return load_problems(path, question_key="question", answer_key="answer", id_key="id")


@given(st.lists(LINES, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_any_bytes_as_problems(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], dice: random.Random
) -> None:
    path = tmp_path_factory.mktemp("jsonl") / "train.jsonl"
    lines = [line if dice.random() < 0.5 else line[: dice.randint(0, len(line))] for line in lines]
    lines = b"\n".join(lines).split(b"\n")  # some of them were several
    path.write_bytes(b"\n".join(lines))
    message = complaint(lambda: problems(path))
    if message is None:
        assert len(problems(path)) == sum(line.strip() != b"" for line in lines)
    elif message != f"{path}: {NO_PROBLEMS}":
        number = int(message.removeprefix(f"{path}:").split(":")[0])
        path.write_bytes(b"\n".join(lines[: number - 1]))  # the line that it names is the first that cannot be read
        assert complaint(lambda: problems(path)) in (None, f"{path}: {NO_PROBLEMS}")
        path.write_bytes(b"\n".join(lines[:number]))
        assert (complaint(lambda: problems(path)) or "").startswith(f"{path}:{number}: ")


@given(
    cut=st.just(0) | st.integers(0, 4000),
    flips=st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 255)), max_size=4),
)
def test_any_damage_of_a_saved_batch(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flips: list[tuple[int, int]]
) -> None:
    """Damage is named, or the tensors have another value and nothing else: safetensors has no checksum of its own."""
    path = tmp_path_factory.mktemp("batch") / "step.safetensors"
    content = saved_batch(path)
    for at, by in flips:
        content[at % len(content)] ^= by
    path.write_bytes(bytes(content[: len(content) - cut % len(content)]))
    if refused_or_whole(path) is None:
        assert cut % len(content) == 0


def test_every_byte_of_the_header_of_a_saved_batch(tmp_path: Path) -> None:
    path = tmp_path / "step.safetensors"
    whole = bytes(saved_batch(path))
    refused = 0
    for at in range(8, 8 + int.from_bytes(whole[:8], "little")):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        refused += refused_or_whole(path) is not None
    assert refused > 100


BATCH = {
    "task_reward": torch.zeros(2), "group": torch.zeros(2, dtype=torch.int64),
    "mask": torch.ones(2, 3, dtype=torch.bool), "old_logp": torch.zeros(2, 3),
}  # fmt: skip


def saved_batch(path: Path) -> bytearray:
    settings = {"alpha": 1.0, "rho": 0.5, "tau_delta": 1.0, "tau_entropy": 1.0, "std_floor": 0.0, "opd_coef": 1.0}
    save_batch(path, BATCH, method="grpo", settings={**settings}, step=1)
    return bytearray(path.read_bytes())


def refused_or_whole(path: Path) -> str | None:
    """The line about a batch, which names it; where there is none, what every method reads is there."""
    message = complaint(lambda: load_batch(path))
    if message is None:
        found = load_batch(path)
        assert set(BATCH) <= set(found.tensors)
        assert isinstance(found.settings, dict)
    else:
        assert str(path) in message
    return message
