"""Write the pages that come from the code: configuration, commands and metrics. Tests hold them current.

python tools/pages.py configuration > docs/configuration.md
python tools/pages.py cli > docs/cli.md
python tools/pages.py metrics > docs/metrics.md
python tools/pages.py cluster    # the written page, its planned times renewed
python tools/pages.py responses    # the written page, its tables of columns renewed
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

sys.path.append(str(Path(__file__).resolve().parents[1]))

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nemo_uecr.cli.main import app
from nemo_uecr.config.load import sections_of
from nemo_uecr.config.schema import Config, RecipeDataConfig, Section
from nemo_uecr.core.methods import METHODS, Method
from nemo_uecr.nemo.recipe import TeacherSection, UecrSection
from nemo_uecr.plan.contents import Plan
from nemo_uecr.responses.table import ANCHOR_LOGP, PART_OF_REWARD, ROWS, TOKENS
from nemo_uecr.tables import markdown_row
from nemo_uecr.telemetry.metric_table import METRICS

ROOT = Path(__file__).resolve().parents[1]
WORDS = {
    "integer": "an integer", "number": "a number", "string": "a text", "boolean": "true or false", "null": "null",
}  # fmt: skip
#: Keys of the section `uecr` whose sections are those of the local back end, or have rows of their own.
SHARED = {"environment", "method", "tolerances", "routing", "evaluation", "reward", "data", "teacher", "teachers"}
JSON_TYPES = {float: "number", int: "integer", bool: "boolean", str: "string", NoneType: "null"}
SIGNS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
#: A key of a section in the source, with the comment above it and the one behind it.
KEY = re.compile(r"((?:^    # .*\n)*)^    (\w+): [^#\n]*(?:# (.*))?$", re.M)

_OPENING = """\
# Configuration

One YAML file describes a run. This page lists every key of the local back end, and at its end
[the section `uecr`](#uecr) of a [recipe of NeMo-RL's](nemo-rl.md). `python tools/pages.py` writes it from the schema
(`nemo_uecr/config/schema.py`): edit the schema, not the page.

```
nemo-uecr config show CONFIG [key=value ...]    # every value and the file it comes from
nemo-uecr config check CONFIG [key=value ...]   # validate, and print the objective as one equation
```

## Files

- `defaults:` names the file, or a list of files, that this file inherits. Names are relative to the file itself, or
  else to the shipped configurations (in a recipe of NeMo-RL's: to the file alone). Files are read depth first; the
  later value wins.
- Sections merge key by key. `_override_: true` in a section replaces the inherited section instead;
  an empty one, `benchmarks: {}`, empties it.
- `${rollout.prompts_per_step}` takes the value of another key. `${mul:a,b}`, `${div:a,b}` and `${max:a,b}`
  compute. Write `\\${` for a literal `${`.
- `???` marks a value that an inheriting file must set.
- Repeated keys, unknown keys and files that inherit themselves are errors.

## Command line

`key=value` changes one value and wins over every file, for example `nemo-uecr train CONFIG train.steps=10`.
The value is read as YAML (`1e-6` is a number, `[0.9, 0.99]` a list, `null` nothing), unless the key expects a text:
then it is taken as written. `+key=value` and `++key=value` mean the same. A whole mapping,
`evaluation.benchmarks={}`, replaces the one in the files; `evaluation.benchmarks.NAME=FILE` adds to it.

Types are strict: `"0.5"` is a text, `true` is not a number, `1.0` is not an integer, and NaN and infinity are refused.
YAML 1.1 reads `010` as 8 and `1:30` as 90.

"""

_UECR = """

# The section `uecr` of a recipe { #uecr }

All other keys of a [recipe](nemo-rl.md) are NeMo-RL's, and its files and overrides are as NeMo-RL reads them.
`uecr.method` is the section [`method`](#method), `uecr.tolerances`, `uecr.routing`, `uecr.evaluation`, `uecr.reward`
and `uecr.environment` are those above, and `uecr.data` has the keys of `data` without `id_key` and `system_prompt`,
and these.

"""

_SETTINGS = """

## `method`

Which [method](#methods) computes the advantage, and its settings. Settings of other methods are accepted, and reported
when the run starts.

"""

_METHODS = """

## Methods

The token advantage of each method and the scores that it reads, from the classes in `nemo_uecr/core/methods`.
[One of your own](add-a-method.md) is a class in a file that `method.name` names.
delta is log pi_T(y_t) - log pi_old(y_t) at temperature 1. A method that reads no teacher score loads no teacher.

"""

_METRICS = """\
# Metrics

Every metric of a training step, by its name in `metrics.jsonl` and the trackers; NeMo-RL's
own logger puts `train/` before it. `python tools/pages.py metrics` writes this page from
`nemo_uecr/telemetry/metric_table.py`: edit the table, not the page.

A metric that a run does not have is absent, never zero: `grpo` has no line under `teacher/` or `ecr/`, a step without
mixed groups has no `advantage/sign_flip_share`, and a part of a split without tokens has no mean. A value
that is not finite is left out with a warning.

`telemetry.tensorboard`, `wandb`, `mlflow`, `trackio` and `swanlab` choose further clients
([configuration.md](configuration.md)). With `offline` nothing leaves the machine. `wandb sync` uploads
`RUN/wandb/offline-run-*` later, and `swanlab sync` uploads `RUN/swanlab/run-*`.
`mlflow ui --backend-store-uri sqlite:///RUN/mlflow.db` and `TRACKIO_DIR=RUN/trackio trackio show` show theirs.

## A tracker of your own

`telemetry.tracker=FILE.py:NAME` sends the metrics of a local run anywhere else, through a class in a file of yours:

```python
# my_tracker.py
import json
import urllib.request


class Board:
    def __init__(self, folder, project, key, parameters):
        # The key is the same after a resume; the parameters are the configuration's values by dotted key.
        self.url = f"http://board.example/{project}/{key}"

    def log(self, metrics, step):
        self._send({"step": step, **metrics})

    def finish(self, failed):
        self._send({"state": "failed" if failed else "finished"})

    def _send(self, record):
        urllib.request.urlopen(self.url, json.dumps(record).encode(), timeout=10)
```

A tracker that cannot be made is refused at the start. One that fails later is reported once, gets no more steps but
still the end, and the run goes on. After a resume, `log` gets steps again that a killed attempt had logged.
"""
#: Prefix -> when its metrics are present.
_PRESENCE = {
    "reward": "The verifier's reward always; the teacher's and the unified reward if the method has them.",
    "group": "Prompt groups, each counted once.",
    "advantage": "The final token advantage, and PUU's components if the method has them.",
    "policy": "The policy update. `policy/ref_kl` only if the reference KL has a weight.",
    "response": "Lengths and truncation.",
    "turns": "Only where an environment answers the student; `turns/first_gap_mean` in a step with a second turn.",
    "count": "Batch facts; `nemo-uecr audit batch` checks that they agree.",
    "teacher": "Only for methods that read the teacher; `teacher/entropy_*` if the method reads its entropy.",
    "ecr": "Only for methods with token credit.",
    "trust": "Only for `uecr_trust`; docs/method.md has the rule.",
    "identity": "Residuals of the method's identities; a violation stops the run.",
    "evaluation": "Sent only to the clients; `evaluation.jsonl` has every set separately.",
    "memory": "Memory; `memory/peak_gpu_mb` on a GPU.",
    "time": "Seconds of each phase; a phase that did not run is absent.",
    "throughput": "Tokens per second.",
    "outcome": "Tokens of rewarded responses, and of the others.",
    "position": "By quarter of the response: token i of L (from 0) is in quarter floor(4 i / L).",
    "entropy_bin": "By the teacher's entropy; only if the method reads it.",
}


def configuration() -> str:
    """Every key of the local back end, every method, and the section of a recipe."""
    parts = (*_tables(Config), *_METHODS.splitlines(), *_methods(), *_UECR.splitlines(), *_recipe_keys())
    return _OPENING + "\n".join(parts) + "\n"


def _recipe_keys() -> Iterator[str]:
    """The keys of the section `uecr` that are not those of the local back end."""
    yield from ("| key | expects | default | meaning |", "|---|---|---|---|")
    own = {name for base in RecipeDataConfig.__bases__ for name in base.model_fields}
    for place, schema, known in (
        ("uecr", UecrSection, SHARED), ("uecr.teacher", TeacherSection, set()), ("uecr.data", RecipeDataConfig, own),
    ):  # fmt: skip
        nodes, meaning = schema.model_json_schema()["properties"], meanings(schema)
        for name, field in schema.model_fields.items():
            if name not in known:
                yield markdown_row((f"`{place}.{name}`", _words(nodes[name]), _default(field), meaning[name]))


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
        student = (*GIVEN, f"cluster.num_nodes={nodes}")
        return f"{found[1]} {_planned('uecr_qwen3_4b', *student, *(word for word in overrides if '=' in word)):,.0f} |"

    def in_mixtures_row(found: re.Match[str]) -> str:
        plan = _plan(found[2], GIVEN[-1])
        return f"{found[1]} {plan.seconds:,.0f} | {plan.fullest.size / 2**30:.0f} GiB |"

    page = re.sub(r"^(\| (\d+) \| [^|]*\| ([^|]*) \| \d+ \|) [\d,]+ \|$", in_row, page, flags=re.M)
    page = re.sub(r"^(\| `(uecr_\w+)\.yaml` \|.*\| \d+ \|) [\d,]+ \| \d+ GiB \|$", in_mixtures_row, page, flags=re.M)
    step = _planned("uecr_qwen3_4b", *GIVEN)
    hours = 160 * step / 3600
    attempts = math.ceil(hours / (4 - 1200 / 3600))  # the notice is lost in each
    said = {
        r"(estimates\s)[\d,]+(\ss\sper\sstep)": f"{step:,.0f}", r"(: )\d+(\shours\sfor\s160)": f"{hours:.0f}",
        r"(160\ssteps,\sor\s)\d+(\sattempts)": str(attempts),
        r"(takes\s)[\d,]+(\ss\sby\sthe\splan)": f"{_planned('grpo_teacher_qwen3_8b'):,.0f}",
    }  # fmt: skip
    for pattern, value in said.items():
        page, count = re.subn(pattern, rf"\g<1>{value}\g<2>", page)
        assert count == 1, pattern
    return page


def responses() -> str:
    """The page as it stands, with the columns of a table of responses renewed."""
    page = (ROOT / "docs" / "responses.md").read_text(encoding="utf-8")
    chosen = {"`reward/NAME`": PART_OF_REWARD}, {"`anchor_NAME`": ANCHOR_LOGP}
    for head, columns, others in zip(("type", "type of a value"), (ROWS, TOKENS), chosen, strict=True):
        named = {f"`{name}`": column for name, column in columns.items()} | others
        rows = [markdown_row((name, each.type, each.unit or "-", each.meaning)) for name, each in named.items()]
        table = re.compile(rf"(\| column \| {head} \| unit \| content \|\n\|[-|]+\n)(\|.*\n)*")
        page, count = table.subn(lambda found, rows=rows: found[1] + "".join(f"{row}\n" for row in rows), page)
        assert count == 1, head
    return page


GIVEN = ("uecr.teacher.model_name=Qwen/Qwen3-8B", "uecr.data.subset=20000")


def _planned(config: str, *overrides: str) -> float:
    """Seconds a step on H100, as the page's `plan` says."""
    return _plan(config, *overrides).seconds


def _plan(config: str, *overrides: str) -> Plan:
    """The plan on H100 with the page's lengths."""
    from nemo_uecr.config.recipes import load_recipe
    from nemo_uecr.plan.contents import GPUS, Lengths
    from nemo_uecr.plan.nemo import nemo_plan
    from nemo_uecr.start.recipe_form import accepted

    job = accepted(load_recipe(ROOT / "examples" / "configs" / f"{config}.yaml", overrides))
    return nemo_plan(job, GPUS["h100"], Lengths(prompt=200, response=5357, sigma=0.9))


PAGES = {
    "configuration": configuration, "cli": cli, "metrics": metrics, "cluster": cluster,
    "responses": responses,
}  # fmt: skip


def meanings(schema: type[BaseModel | Method]) -> dict[str, str]:
    """What the comments of a section or method and of its bases say of each key; a section within has a docstring."""
    found: dict[str, str] = {}
    for kind in (kind for kind in reversed(schema.__mro__) if issubclass(kind, Section | Method)):
        for above, name, behind in KEY.findall(inspect.getsource(kind)):
            found[name] = behind or " ".join(re.findall(r"# (.*)", above))
    return found


def _tables(schema: type[BaseModel], section: str = "") -> Iterator[str]:
    """A table of a section's own keys, then those of the sections within."""
    if section:
        yield from ("", f"## `{section}`", "", (schema.__doc__ or "").strip(), "")
    else:
        yield from ("## Top level", "", "What executes the run, and where.", "")
    prefix = f"{section}." if section else ""
    nodes, meaning = schema.model_json_schema()["properties"], meanings(schema)
    within = {
        name: sections_of(field.annotation)
        for name, field in schema.model_fields.items()
        if get_origin(field.annotation) is not dict
    }
    fields = {
        name: field
        for name, field in schema.model_fields.items()
        if not within.get(name) and field.annotation is not Method
    }
    if fields:
        yield from ("| key | expects | default | meaning |", "|---|---|---|---|")
    for name, field in fields.items():
        yield markdown_row((f"`{prefix}{name}`", _words(nodes[name]), _default(field), meaning[name]))
    for name, field in schema.model_fields.items():
        if schema is Config and field.annotation is Method:
            yield from _settings()
        for inner in within.get(name, ()):
            yield from _tables(inner, f"{prefix}{name}")


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
        inner = node["additionalProperties"]
        kind = inner.get("type", "several")
        one = {"array": "list", "several": "value"}.get(kind) or WORDS[kind].removeprefix("a ")
        return f"a mapping of names to {one}s"
    limits = [f"{sign} {node[name]:.10g}" for name, sign in SIGNS.items() if name in node]
    limits += ["that is not empty"] if node.get("minLength") == 1 else []
    return " ".join([WORDS[node["type"]], " and ".join(limits)]).strip()


def _default(field: FieldInfo) -> str:
    return "required" if field.is_required() else _written(field.default)


def _written(value: object) -> str:
    """A default, as YAML has it."""
    value = list(value) if isinstance(value, tuple) else value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _settings() -> Iterator[str]:
    """A row for each setting of the methods, and one more for each other meaning of it."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for name, method in METHODS.items():
        kinds, meaning = get_type_hints(method), meanings(method)
        for each in dataclasses.fields(method):
            inside = [WORDS[JSON_TYPES[kind]] for kind in get_args(kinds[each.name]) or (kinds[each.name],)]
            allowed = method.ranges()[each.name]
            expects = ", or ".join((inside[0] if allowed is None else str(allowed), *inside[1:]))
            default = "required" if each.default is dataclasses.MISSING else _written(each.default)
            found.setdefault((f"`method.{each.name}`", expects, default, meaning[each.name]), []).append(name)
    yield from (*_SETTINGS.splitlines(), "| key | expects | default | meaning | of |", "|---|---|---|---|---|")
    yield markdown_row(
        ("`method.name`", "a name in the table of methods, or `FILE.py:NAME`", "required", "The method.", "all")
    )
    for cells, of in found.items():
        others = [name for name in METHODS if name not in of]
        yield markdown_row((*cells, f"all but {', '.join(others)}" if len(others) < len(of) else ", ".join(of)))


def _methods() -> Iterator[str]:
    yield from ("| method | token advantage | reads | source |", "|---|---|---|---|")
    for name, method in METHODS.items():
        reads = ", ".join(f"`{score}`" for score in sorted(method.reads)) or "none"
        yield markdown_row((f"`{name}`", f"`{method.equation()}`", reads, method.source))


def _metric_lines() -> Iterator[str]:
    for prefix in dict.fromkeys(name.partition("/")[0] for name in METRICS):
        yield from ("", f"## `{prefix}/`", "", _PRESENCE[prefix], "")
        yield from ("| metric | unit | reduction | meaning |", "|---|---|---|---|")
        for name, metric in METRICS.items():
            if name.startswith(f"{prefix}/"):
                yield markdown_row((f"`{name}`", metric.unit, metric.reduction, metric.meaning))


if __name__ == "__main__":
    sys.stdout.write(PAGES[sys.argv[1]]())
