"""A study file to one validated study."""

from __future__ import annotations

import os
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nemo_uecr.config.load import read_chain
from nemo_uecr.config.schema import nearest_name
from nemo_uecr.errors import ConfigError
from nemo_uecr.study.schema import StudyConfig


def load_study(path: str | os.PathLike[str]) -> StudyConfig:
    """Read a study file with what it inherits.

    Raises:
        ConfigError: with one line that says what was got and what was expected.
    """
    shown = os.fspath(path)
    try:
        values = OmegaConf.to_container(OmegaConf.create(read_chain(shown).values), resolve=True)
        study = StudyConfig.model_validate(values)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{shown}: {str(error).splitlines()[0]}") from error
    except ValidationError as error:
        raise ConfigError(_explain(error, shown)) from error
    return study.model_copy(update={"config": str(Path(shown).parent / study.config)})


def _explain(error: ValidationError, path: str) -> str:
    """The first fault; an unknown key comes before a missing one, because a misspelt key is both."""
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    others = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return _line(details[0], path) + others


def _line(detail: ErrorDetails, path: str) -> str:
    name = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        legal = _fields(StudyConfig, detail["loc"][:-1])
        return f"{path}: unknown key {name}; the nearest known key is {nearest_name(str(detail['loc'][-1]), legal)}"
    if detail["type"] == "missing":
        return f"{path}: missing {name}; write it in the file"
    if detail["type"] == "value_error":
        return f"{path}: {detail['ctx']['error']}"
    return f"{path}: {name}: got {detail['input']!r}; {detail['msg'].lower()}"


def _fields(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Legal keys of the section that a location leads to; names in a mapping of sections are skipped."""
    for part in loc:
        field = model.model_fields.get(str(part))
        if field is None:  # the name of an arm, a table or a variant
            continue
        inner = _section(field.annotation)
        if inner is None:
            break
        model = inner
    return list(model.model_fields)


def _section(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _section(argument)
        if found is not None:
            return found
    return None
