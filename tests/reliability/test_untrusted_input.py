"""What comes from somebody else is read as data: nothing in it is executed, looked up or written elsewhere."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from nemo_uecr.checkpoint.megatron_files import read_contents, read_megatron_files
from nemo_uecr.checkpoint.metadata_pickle import KNOWN, read_metadata
from nemo_uecr.config.load import load_config
from nemo_uecr.config.written import read_written
from nemo_uecr.errors import CheckpointError, ConfigError, RunFolderError, UecrError
from nemo_uecr.evaluation.tables import read_rows
from nemo_uecr.telemetry.run_folder import read_run
from tests.local import tiny
from tests.reliability.commands import complaint, refused

PACKAGE = Path(__file__).resolve().parents[2] / "nemo_uecr"
#: One text that makes the file `ran` when a reader constructs Python objects from YAML.
PYTHON_OBJECT = "!!python/object/apply:os.system ['touch {ran}']"


class Runs:
    """Unpickled, it calls the operating system."""

    def __init__(self, ran: Path) -> None:
        self.ran = ran

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.ran}",)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    one = ("train.steps=1", f"evaluation.benchmarks={{a: {tiny.assets().problems}}}", "evaluation.every=1")
    return tiny.run(tmp_path_factory.mktemp("finished") / "run", *one)


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A Megatron checkpoint of one tensor, as torch writes it."""
    from torch.distributed.checkpoint import save

    place = tmp_path / "iter_0000001"
    save({"decoder.final_layernorm.weight": torch.zeros(4)}, checkpoint_id=place, no_dist=True)
    (place / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    torch.save({"iteration": 1}, place / "common.pt")
    return place


def test_a_checkpoints_table_of_contents_runs_nothing(tmp_path: Path, weights: Path) -> None:
    """torch itself unpickles `.metadata` without a limit."""
    read_megatron_files(weights)
    ran = tmp_path / "ran"
    for protocol in (0, 2, 4):
        (weights / ".metadata").write_bytes(pickle.dumps([Runs(ran)], protocol=protocol))
        with pytest.raises(CheckpointError, match=r"asks to load '(posix|os)\.system', which is no part"):
            read_megatron_files(weights)
    assert not ran.exists()


@pytest.mark.parametrize(
    "name",
    [
        "builtins eval", "builtins getattr", "torch load", "torch.serialization load", "torch.storage _load_from_bytes",
        "pathlib Path", "pathlib Path.rmdir", "pathlib PosixPath.rmdir", "operator methodcaller", "functools partial",
        "collections namedtuple", "subprocess Popen", "importlib import_module", "os system", "posix system",
    ],
)  # fmt: skip
def test_what_lies_beside_the_allowed_names_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / ".metadata"
    path.write_bytes(f"c{name.replace(' ', chr(10))}\n.".encode())
    with pytest.raises(CheckpointError, match="no part of a checkpoint"):
        read_metadata(path)


def test_the_allowed_names_are_records_and_nothing_that_acts() -> None:
    """Whoever widens the list must look here: a pickle calls what it names. The one function looks a layout up."""
    assert {module.split(".")[0] for module in KNOWN} == {"builtins", "collections", "megatron", "pathlib", "torch"}
    for module, names in KNOWN.items():
        if importlib.util.find_spec(module.split(".")[0]) is None or module == "pathlib._local":  # of Python 3.13
            continue
        found = {name: getattr(importlib.import_module(module), name, None) for name in names}
        functions = {name for name, value in found.items() if value is not None and not isinstance(value, type)}
        assert functions <= {"_get_layout"}, (module, functions)


def test_a_damaged_table_of_contents_is_one_line(weights: Path) -> None:
    """Every prefix of the file, and every byte of it changed, at a stride that keeps this short."""
    whole = (weights / ".metadata").read_bytes()
    changed = [whole[:end] for end in range(0, len(whole), 17)]
    changed += [whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :] for at in range(0, len(whole), 7)]
    seen = 0
    for content in changed:
        (weights / ".metadata").write_bytes(content)
        message = complaint(lambda: read_megatron_files(weights))
        seen += message is not None
        assert "\n" not in (message or "")
    assert seen > len(changed) // 3


class WithState:
    """Pickled as torch's record of a tensor, with a state that torch does not write."""

    def __init__(self, *state: object) -> None:
        self.state = state

    def __reduce__(self) -> tuple[object, ...]:
        from torch.distributed.checkpoint.metadata import TensorProperties

        return TensorProperties, (), self.state


ODD_CONTENTS = {
    "no tensors": (5, {}, "'int' object has no attribute 'items'"),
    "no places": ({}, None, "'NoneType' object has no attribute 'values'"),
    "a memory format": ({"decoder.x": WithState(torch.float32, torch.strided, False, 7, False)}, {}, "memory_format"),
    "a type": ({"decoder.x": "@@"}, {}, "it has a tensor of '@@'"),
    "a size": ({"decoder.x": "##"}, {}, "'int' object is not iterable"),
    "a list in a list": ({"decoder.x": "@@"}, {}, "a tensor of [[[[[[[...]]]]]]]"),
}


@pytest.mark.parametrize(("tensors", "places", "said"), ODD_CONTENTS.values(), ids=ODD_CONTENTS)
def test_a_table_of_contents_of_odd_values_is_one_line(
    weights: Path, tensors: object, places: object, said: str
) -> None:
    """Behind a pickle that is whole: what torch's own classes refuse, and what they take without a look."""
    from torch.distributed.checkpoint.metadata import Metadata, TensorProperties, TensorStorageMetadata

    odd = {
        "@@": TensorStorageMetadata(TensorProperties(dtype="@@"), torch.Size([4]), []),  # type: ignore[arg-type]
        "##": TensorStorageMetadata(TensorProperties(dtype=torch.float32), 5, []),  # type: ignore[arg-type]
    }
    if isinstance(tensors, dict):
        tensors = {name: odd.get(entry, entry) for name, entry in tensors.items()}
    content = pickle.dumps(Metadata(tensors, None, places), protocol=2)  # type: ignore[arg-type]
    if "[[[" in said:  # a list in a list in a list, which pickle itself could not write
        content = content.replace(b"X\x02\x00\x00\x00@@", b"]" * 20_000 + b"a" * 19_999)
    (weights / ".metadata").write_bytes(content)
    message = complaint(lambda: read_megatron_files(weights)) or ""
    assert message.startswith(f"{weights / '.metadata'}: unreadable (")
    assert said in message
    assert "\n" not in message


def test_common_state_is_loaded_without_code(tmp_path: Path) -> None:
    """What Megatron reads from common.pt goes through torch.load, which by itself builds tensors only."""
    torch.save({"args": Runs(tmp_path / "ran")}, tmp_path / "common.pt")
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    from megatron.core.dist_checkpointing import load_common_state_dict
    from megatron.core.dist_checkpointing.core import CheckpointingException

    with pytest.raises((pickle.UnpicklingError, CheckpointingException)):
        load_common_state_dict(str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_yaml_builds_no_python_object(tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every reader of YAML: a configuration, an override, a study, and the configuration in a run folder."""
    attack = PYTHON_OBJECT.format(ran=tmp_path / "ran")
    path = tmp_path / "own.yaml"
    path.write_text(f"defaults: {tiny.BASE}\nrun:\n  folder: {attack}\n")
    for words in (("config", "check", path), ("train", path), ("plan", path), ("doctor", path), ("study", path)):
        assert "not valid YAML" in refused(capsys, *words)
    refused(capsys, "config", "check", tiny.BASE, f"train.steps={attack}")
    refused(capsys, "config", "check", tiny.BASE, f"evaluation.benchmarks={{a: {attack}}}")
    (folder / "config.yaml").write_text(f"method:\n  name: {attack}\n")
    for words in (
        ("report", folder, "--out", tmp_path / "r.html"),
        ("table", folder),
        ("train", folder / "config.yaml"),
    ):
        assert "not valid YAML" in refused(capsys, *words)
    assert not (tmp_path / "ran").exists()


def test_nemo_rls_step_and_megatrons_settings_build_no_python_object(tmp_path: Path, weights: Path) -> None:
    from nemo_uecr.checkpoint.megatron_files import _run_settings
    from nemo_uecr.checkpoint.source import find_source

    attack = PYTHON_OBJECT.format(ran=tmp_path / "ran")
    step = tmp_path / "step_1"
    (step / "policy" / "tokenizer").mkdir(parents=True)
    (step / "policy" / "weights").mkdir()
    (step / "training_info.json").write_text("{}")
    (step / "config.yaml").write_text(f"policy:\n  model_name: {attack}\n")
    with pytest.raises(CheckpointError, match=r"config\.yaml"):
        find_source(step)
    (weights / "run_config.yaml").write_text(f"model: {attack}\n")
    with pytest.raises(CheckpointError, match=r"run_config\.yaml"):
        _run_settings(weights)
    assert not (tmp_path / "ran").exists()


def test_a_run_folder_does_not_read_the_environment_of_its_reader(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder from elsewhere, `${oc.env:...}` would carry a secret of ours into a report that we hand on."""
    monkeypatch.setenv("UECR_SECRET", "hunter2")
    path = folder / "config.yaml"
    whole = path.read_text()
    assert read_written(path)["method"] == tiny.configured(folder).config.method.model_dump(mode="json")
    for text in ("${oc.env:UECR_SECRET}", "${method.name}", "a\\\\${oc.env:UECR_SECRET}"):
        path.write_text(whole.replace("name: uecr", f"name: {text}", 1))
        assert path.read_text() != whole
        for read in (read_run, lambda place: read_rows([str(place)])):
            with pytest.raises(RunFolderError, match="yet to be resolved") as caught:
                read(folder)
            assert "hunter2" not in str(caught.value)
    path.write_text("defaults: /etc/hostname\n" + whole)
    with pytest.raises(RunFolderError, match="inherits other files"):
        read_run(folder)


def test_scores_of_a_run_do_not_read_the_environment_either(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prompt with a secret in it would stand in the scores' token ids, which are handed on as well."""
    monkeypatch.setenv("UECR_SECRET", "hunter2")
    path = folder / "config.yaml"
    whole = path.read_text()
    template = next(line for line in whole.splitlines() if "prompt_template:" in line)
    path.write_text(whole.replace(template, "  prompt_template: '${oc.env:UECR_SECRET} {question}'"))
    for words in (
        ("score", folder, "--out", tmp_path / "scores"),
        ("audit", "batch", folder),
        ("report", "--verify", folder),
    ):
        assert "yet to be resolved" in refused(capsys, *words)
    assert not (tmp_path / "scores").exists()


def test_the_users_own_file_may_read_the_users_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever names the file on the command line wrote it, or read it: NeMo-RL's own files do the same."""
    monkeypatch.setenv("UECR_PLACE", str(tmp_path))
    path = tmp_path / "own.yaml"
    path.write_text(f"defaults: {tiny.assets().config}\nrun:\n  folder: ${{oc.env:UECR_PLACE}}/run\n")
    assert load_config(path, ["device=cpu"]).config.run.folder == f"{tmp_path}/run"
    monkeypatch.delenv("UECR_PLACE")
    with pytest.raises(ConfigError, match=r"run\.folder: .*UECR_PLACE"):
        load_config(path, ["device=cpu"])


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 3000 + "]" * 3000,
        "run: " + "{a: " * 200 + "1" + "}" * 200,
        "a: &a [x,x,x,x,x,x,x,x]\n" + "".join(
            f"{b}: &{b} [{','.join([f'*{a}'] * 8)}]\n" for a, b in zip("abcdef", "bcdefg", strict=True)
        ),
        "a: &a\n  b: *a\n",
    ],
    ids=["deep list", "deep mapping", "a hundred thousand from six lines", "a circle"],
)  # fmt: skip
def test_yaml_that_grows_is_one_line(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    assert "own.yaml" in refused(capsys, "config", "check", path)


def test_a_deep_override_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "not valid YAML" in refused(capsys, "config", "check", tiny.BASE, "train.steps=" + "[" * 3000 + "]" * 3000)


def test_chat_templates_run_in_a_sandbox(tmp_path: Path) -> None:
    """A template that reaches for Python's own objects is stopped by the sandbox that renders it."""
    from jinja2.exceptions import SecurityError

    from nemo_uecr.evaluation.engines import load_tokens

    place = Path(shutil.copytree(tiny.assets().student, tmp_path / "student"))
    attack = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    for path in place.glob("chat_template*"):
        path.unlink()
    settings = json.loads((place / "tokenizer_config.json").read_text()) | {"chat_template": attack}
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokens(str(place)).tokenizer
    with pytest.raises(SecurityError):
        tokenizer.apply_chat_template([{"role": "user", "content": "1"}], tokenize=False)
    with pytest.raises(UecrError, match="chat template") as caught:
        tiny.run(tmp_path / "run", f"student.model_name={place}")
    assert "\n" not in str(caught.value)


FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_NAMES = {
    "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads", "shelve.open", "joblib.load",
    "dill.load", "dill.loads", "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.unsafe_load_all",
    "yaml.full_load", "yaml.full_load_all", "os.system", "os.popen", "subprocess.getoutput", "runpy.run_path",
    "tarfile.extractall", "jinja2.Template", "jinja2.Environment",
}  # fmt: skip
FORBIDDEN_MODULES = {name.rpartition(".")[0] for name in FORBIDDEN_NAMES}


#: What may run a model's own code; left open, transformers asks on standard input. Said once, in data/pretrained.py.
LOADERS = {"from_pretrained", "from_hf_pretrained", "from_config", "LLM", "pipeline"}


def test_no_call_that_executes_input() -> None:
    """In the whole package: no eval, no pickle, no unsafe YAML, no shell, no code from a model folder."""
    faults = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call | ast.Import | ast.ImportFrom):
                faults += [f"{path.relative_to(PACKAGE)}:{node.lineno}: {why}" for why in _dangers(node)]
    assert faults == []


def _dangers(call: ast.Call | ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(call, ast.Import):  # under another name it would not be seen
        return [each.name for each in call.names if each.asname is not None and each.name in FORBIDDEN_MODULES]
    if isinstance(call, ast.ImportFrom):  # the same
        return [name for each in call.names if (name := f"{call.module}.{each.name}") in FORBIDDEN_NAMES]
    name = ast.unparse(call.func)
    options = {word.arg: ast.unparse(word.value) for word in call.keywords}
    found = [name] if name in FORBIDDEN_CALLS | FORBIDDEN_NAMES or name.endswith(".extractall") else []
    if name == "torch.load" and options.get("weights_only") != "True":
        found.append("torch.load without weights_only=True")
    if "shell" in options and options["shell"] != "False":
        found.append("a shell")
    if options.get("allow_pickle", "False") != "False":
        found.append("a pickle in an array")
    asked = name.split(".")[-1] in LOADERS
    if options.get("trust_remote_code", "left open" if asked else "False") != "False":
        found.append("code from a model folder")
    loads = name == "load_pretrained" and ast.unparse(call.args[0]).startswith("AutoModel")
    if (loads and options.get("use_safetensors") != "True") or (
        name.split(".")[-1] == "LLM" and options.get("load_format") != "'safetensors'"
    ):
        found.append("weights that may be pickled")
    return found


def test_the_search_finds_what_it_looks_for() -> None:
    for text in (
        "eval(x)", "torch.load(p)", "run(c, shell=True)", "yaml.load(t)", "f(trust_remote_code=True)", "LLM(model=m)",
        "AutoTokenizer.from_pretrained(p)", "AutoConfig.from_pretrained(p, trust_remote_code=None)",
        "vllm.LLM(m, trust_remote_code=wanted)", "AutoBridge.from_hf_pretrained(p)", "pickle.Unpickler(f).load()",
        "yaml.load_all(t, Loader=yaml.Loader)", "np.load(p, allow_pickle=True)", "from pickle import load as read",
        "import yaml as y", "from jinja2 import Template", "LLM(m, trust_remote_code=False)",
        "load_pretrained(AutoModel, p, local_files_only=True)",
        "load_pretrained(AutoModelForCausalLM, p, use_safetensors=None)",
    ):  # fmt: skip
        found = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call | ast.Import | ast.ImportFrom)]
        assert any(map(_dangers, found)), text
    for text in ("torch.load(p, weights_only=True)", "AutoConfig.from_pretrained(p, trust_remote_code=False)"):
        assert _dangers(ast.parse(text, mode="eval").body) == []  # type: ignore[arg-type]


def test_a_name_that_holds_its_own_parts_for_ever_is_not_written_out(tmp_path: Path) -> None:
    """Twenty lists, each four times in the next: a few bytes, and more letters than any memory holds."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

    name: object = "x"
    for _ in range(20):
        name = [name] * 4
    weights = tmp_path / "iter_0000001"
    weights.mkdir()
    place = _StorageInfo(name, 0, 1)  # type: ignore[arg-type]
    (weights / ".metadata").write_bytes(pickle.dumps(Metadata({}, None, {MetadataIndex("x"): place}), 4))
    message = complaint(lambda: read_contents(weights / ".metadata")) or ""
    assert "it names a shard [[[[" in message
    assert len(message) < 400
