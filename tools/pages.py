"""Write the pages that come from the code: configuration, commands and metrics. Tests hold them current.

python tools/pages.py configuration > docs/configuration.md
python tools/pages.py configuration-nemo-rl > docs/configuration-nemo-rl.md
python tools/pages.py cli > docs/cli.md
python tools/pages.py metrics > docs/metrics.md
python tools/pages.py cluster    # the written page, its planned times renewed
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_origin

sys.path.append(str(Path(__file__).resolve().parents[1]))

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nemo_uecr.cli.main import app
from nemo_uecr.config.load import sections_of
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.config.schema import OPTIONAL_SETTINGS, REQUIRED_SETTINGS, Config, Section
from nemo_uecr.method_registry import REGISTRY
from nemo_uecr.telemetry.metric_table import METRICS

ROOT = Path(__file__).resolve().parents[1]
WORDS = {
    "integer": "an integer", "number": "a number", "string": "a text", "boolean": "true or false", "null": "null",
}  # fmt: skip
SIGNS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
#: A key of a section in the source, with the comment above it and the one behind it.
KEY = re.compile(r"((?:^    # .*\n)*)^    (\w+): [^#\n]*(?:# (.*))?$", re.M)

_OPENING = """\
# Configuration

A run is described by one YAML file. This page lists every key of the local back end, to look things up; those of
`backend: nemo_rl` are in [configuration-nemo-rl.md](configuration-nemo-rl.md). It is written from the schema
(`nemo_uecr/config/schema.py`) by `python tools/pages.py`; edit the schema, not the page.

```
nemo-uecr config show CONFIG [key=value ...]    # every value and the file it comes from
nemo-uecr config check CONFIG [key=value ...]   # validate, and print the objective as one equation
```

## Files

- `defaults:` names a file, or a list of files, that this file builds on. Names are relative to the file that
  has them, or else to the shipped configurations. They are read depth first and the later value wins.
- Sections merge key by key. `_override_: true` in a section replaces the inherited section instead.
- `${rollout.prompts_per_step}` takes the value of another key. `${mul:a,b}`, `${div:a,b}` and `${max:a,b}`
  compute. Write `\\${` for a literal `${`.
- `???` marks a value that a file further down must give.
- Repeated keys, unknown keys and files that inherit themselves are errors.

## Command line

`key=value` changes one value and wins over every file, for example `nemo-uecr train CONFIG train.steps=10`.
The value is read as YAML (`1e-6` is a number, `[0.9, 0.99]` a list, `null` nothing), except where the key
expects a text: there it is taken as written. `+key=value` and `++key=value` mean the same. A whole mapping,
`evaluation.benchmarks={}`, replaces the one in the files; `evaluation.benchmarks.NAME=FILE` adds to it.

Types are strict: `"0.5"` is a text, `true` is no number, `1.0` is no integer, and NaN and infinity are refused.
YAML 1.1 reads `010` as 8 and `1:30` as 90.

Keys of `method` and `teacher` say which methods read them; every method reads the keys of the other sections.

"""

_NEMO_OPENING = """\
# Configuration of a run inside NeMo-RL

Every key of `backend: nemo_rl`, to look things up. Files, inheritance and the command line work as in
[configuration.md](configuration.md), which also has the table of methods and their settings. The page is written from
`nemo_uecr/config/nemo_schema.py` by `python tools/pages.py`. What every shipped run shares is in
`examples/configs/nemo_rl_base.yaml`.

"""

_METHODS = """

## Which method uses what

Settings that a method does not use are accepted, and reported when the run starts. The settings alpha, rho,
tau_delta and tau_entropy have no default: a method that uses one refuses to start without it. The last column has
the method's own parameters, `method.parameters.NAME`, with their defaults.

"""

_METRICS = """\
# Metrics

Every metric of a training step, by its name in `metrics.jsonl`, TensorBoard, Weights & Biases and MLflow; NeMo-RL's
own logger puts `train/` before it. `python tools/pages.py metrics` writes this page from
`nemo_uecr/telemetry/metric_table.py`: edit the table, not the page.

A metric that a run does not have is absent, never zero: `grpo` has no line under `teacher/` or `ecr/`, a step without
mixed groups has no `advantage/sign_flip_share`, and a part of a split without tokens has no mean. In the local back
end a value that is not finite stops the run.

`telemetry.tensorboard`, `telemetry.wandb` and `telemetry.mlflow` choose further clients
([configuration.md](configuration.md)). With `offline` nothing leaves the machine: W&B writes
`RUN/wandb/offline-run-*`, which `wandb sync` uploads later; MLflow writes `RUN/mlflow.db`, which
`mlflow ui --backend-store-uri sqlite:///RUN/mlflow.db` shows.
"""
#: Prefix -> when its metrics are there.
_PRESENCE = {
    "reward": "The verifier's reward always; the teacher's and the unified one where the method has them.",
    "group": "Prompt groups, each counted once.",
    "advantage": "The final token advantage, and PUU's components where the method has them.",
    "policy": "The actor update. `policy/ref_kl` where the reference KL has a weight.",
    "response": "Lengths and truncation.",
    "count": "Batch facts; `nemo-uecr audit batch` checks that they agree.",
    "teacher": "Only for methods that read the teacher; `teacher/entropy_*` where the method reads its entropy.",
    "ecr": "Only for methods with token credit.",
    "identity": "Residuals of the identities that the method declares; a violation stops the run.",
    "evaluation": "Told to the clients only; the file has `evaluation.jsonl`, with every set by itself.",
    "memory": "Memory; `memory/peak_gpu_mb` on a GPU.",
    "time": "Seconds of each phase; a phase that did not run is absent.",
    "throughput": "Tokens by time.",
    "outcome": "The tokens of rewarded responses apart from the others.",
    "position": "The quarters of a response apart: token i of L (from 0) lies in quarter floor(4 i / L).",
    "entropy_bin": "Where the teacher is sure and where it is not; only where the method reads the teacher's entropy.",
}


def configuration() -> str:
    """Every key of the local back end, and what each method reads."""
    return _OPENING + "\n".join(_tables(Config)) + _METHODS + "\n".join(_methods()) + "\n"


def configuration_nemo_rl() -> str:
    """Every key of the NeMo-RL back end."""
    return _NEMO_OPENING + "\n".join(_tables(NemoConfig)) + "\n"


def cli() -> str:
    """Every command, from its own help."""
    sys.argv = ["nemo-uecr"]  # cyclopts asks how the program was started
    return app.generate_docs(usage_name="nemo-uecr").replace("```console", "```text")


def metrics() -> str:
    """Every metric of a training step."""
    return _METRICS + "".join(f"{line}\n" for line in _metric_lines())


def cluster() -> str:
    """The page as it stands, with the planned times renewed."""
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")

    def in_row(found: re.Match[str]) -> str:
        nodes, overrides = found[2], found[3].replace("`(none)`", "").strip("`").split()
        student = ("teacher.model_name=Qwen/Qwen3-8B", "data.subset=20000", f"cluster.nodes={nodes}")
        return f"{found[1]} {_planned('uecr_qwen3_4b', *student, *(word for word in overrides if '=' in word)):,.0f} |"

    page = re.sub(r"^(\| (\d+) \| [^|]*\| ([^|]*) \| \d+ \|) [\d,]+ \|$", in_row, page, flags=re.M)
    step = _planned("uecr_qwen3_4b", "teacher.model_name=Qwen/Qwen3-8B", "data.subset=20000")
    hours = 160 * step / 3600
    attempts = math.ceil(hours / (4 - 1200 / 3600))  # the notice is lost in each
    said = {
        r"(estimates\s)[\d,]+(\ss\sper\sstep)": f"{step:,.0f}", r"(: )\d+(\shours\sfor\s160)": f"{hours:.0f}",
        r"(160\ssteps,\sor\s)\d+(\sattempts)": str(attempts),
        r"(takes\s)[\d,]+(\ss\sas\splanned)": f"{_planned('grpo_teacher_qwen3_8b'):,.0f}",
    }  # fmt: skip
    for pattern, value in said.items():
        page, count = re.subn(pattern, rf"\g<1>{value}\g<2>", page)
        assert count == 1, pattern
    return page


def _planned(config: str, *overrides: str) -> float:
    """Seconds a step on H100, as the page's `plan` says."""
    from nemo_uecr.config.load import load_nemo_config
    from nemo_uecr.plan.nemo import nemo_plan
    from nemo_uecr.plan.records import GPUS, Lengths

    loaded = load_nemo_config(ROOT / "examples" / "configs" / f"{config}.yaml", overrides)
    return nemo_plan(loaded, GPUS["h100"], Lengths(prompt=200, response=5357, sigma=0.9)).seconds


PAGES = {
    "configuration": configuration, "configuration-nemo-rl": configuration_nemo_rl, "cli": cli, "metrics": metrics,
    "cluster": cluster,
}  # fmt: skip


def meanings(schema: type[BaseModel]) -> dict[str, str]:
    """What the comments of a section and of its bases say of each key; a section within has its own docstring."""
    found: dict[str, str] = {}
    for kind in (kind for kind in reversed(schema.__mro__) if issubclass(kind, Section)):
        for above, name, behind in KEY.findall(inspect.getsource(kind)):
            found[name] = behind or " ".join(re.findall(r"# (.*)", above))
    return found


def _tables(schema: type[BaseModel], section: str = "") -> Iterator[str]:
    """A table of a section's own keys, then those of the sections within."""
    if section:
        yield from ("", f"## `{section}`", "", (schema.__doc__ or "").strip(), "")
    else:
        yield from ("## Top level", "", "What executes the run, and where.", "")
    by_method = section.partition(".")[0] in ("method", "teacher")
    prefix = f"{section}." if section else ""
    nodes, meaning = schema.model_json_schema()["properties"], meanings(schema)
    within = {
        name: sections_of(field.annotation)
        for name, field in schema.model_fields.items()
        if get_origin(field.annotation) is not dict
    }
    fields = {name: field for name, field in schema.model_fields.items() if not within.get(name)}
    if fields:
        yield "| key | expects | default | meaning |" + (" read by |" if by_method else "")
        yield "|---|---|---|---|" + ("---|" if by_method else "")
    for name, field in fields.items():
        cells = [f"`{prefix}{name}`", _words(nodes[name]), _default(name, field), meaning[name]]
        cells += [_readers(section, name)] if by_method else []
        yield _row(cells)
    for name, sections in within.items():
        for inner in sections:
            yield from _tables(inner, f"{prefix}{name}")


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _words(node: Mapping[str, Any]) -> str:
    """What a JSON schema expects, in words: `an integer >= 1`."""
    if "anyOf" in node:
        return ", or ".join(map(_words, node["anyOf"]))
    if "const" in node:
        return str(node["const"])
    if "enum" in node:
        return f"one of {', '.join(node['enum'])}"
    if node["type"] == "array":
        fixed = node.get("prefixItems")
        return f"a list of {len(fixed)}, each {_words(fixed[0])}" if fixed else f"a list, each {_words(node['items'])}"
    if node["type"] == "object":
        if not isinstance(node.get("additionalProperties"), dict):
            return "a mapping of names to " + ("values" if "additionalProperties" in node else "sections")
        return f"a mapping of names to {WORDS[node['additionalProperties']['type']].removeprefix('a ')}s"
    limits = [f"{sign} {node[name]:.10g}" for name, sign in SIGNS.items() if name in node]
    limits += ["that is not empty"] if node.get("minLength") == 1 else []
    return " ".join([WORDS[node["type"]], " and ".join(limits)]).strip()


def _default(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if name in REQUIRED_SETTINGS:
        return "by method"
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _readers(section: str, name: str) -> str:
    """The methods that read a key of `method` or `teacher`."""
    if section.startswith("teacher"):
        readers = [entry.name for entry in REGISTRY.values() if entry.needs_teacher]
    elif name in (*REQUIRED_SETTINGS, *OPTIONAL_SETTINGS):
        readers = [entry.name for entry in REGISTRY.values() if name in entry.config_settings]
    elif name == "parameters":
        readers = [entry.name for entry in REGISTRY.values() if entry.parameters]
    else:
        return "all"
    others = [name for name in REGISTRY if name not in readers]
    return f"all but {', '.join(others)}" if len(others) < len(readers) else ", ".join(readers)


def _methods() -> Iterator[str]:
    settings = (*REQUIRED_SETTINGS, *OPTIONAL_SETTINGS)
    yield f"| method | teacher | {' | '.join(settings)} | parameters |"
    yield "|---" * (len(settings) + 3) + "|"
    for name, entry in REGISTRY.items():
        used = ["yes" if setting in entry.config_settings else "" for setting in settings]
        own = ", ".join(f"{key} = {parameter.default:g}" for key, parameter in entry.parameters.items())
        yield f"| {name} | {'yes' if entry.needs_teacher else 'no'} | {' | '.join(used)} | {own} |"


def _metric_lines() -> Iterator[str]:
    for prefix in dict.fromkeys(name.partition("/")[0] for name in METRICS):
        yield from ("", f"## `{prefix}/`", "", _PRESENCE[prefix], "")
        yield from ("| metric | unit | reduction | meaning |", "|---|---|---|---|")
        for name, metric in METRICS.items():
            if name.startswith(f"{prefix}/"):
                yield _row((f"`{name}`", metric.unit, metric.reduction, metric.meaning))


if __name__ == "__main__":
    sys.stdout.write(PAGES[sys.argv[1]]())
