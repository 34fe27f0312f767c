"""The objective of a configuration as one equation, and the settings that its method does not read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields

from nemo_uecr.config.load import DEFAULT, flat_values
from nemo_uecr.config.schema import Config
from nemo_uecr.core.methods import Method

#: The keys that name a teacher.
TEACHER = re.compile(r"(teacher|teachers\..+)\.(model_name|self)")


def objective(config: Config) -> str:
    """The loss of a local run on one line; see `objective_of`."""
    loss = config.loss
    clipped = f"clip {loss.clip_low:g}/{loss.clip_high:g}"
    return objective_of(config.method, clipped=clipped, kl="KL3", kl_coef=loss.reference_kl)


def objective_of(method: Method, *, clipped: str, kl: str, kl_coef: float) -> str:
    """The loss, the token advantage and the method's settings on one line.

    PG is the surrogate, ``clipped`` as these words say, averaged over the valid tokens of the optimizer step; KL3 is
    the low-variance estimate of the KL to the reference policy. Settings that the equation does not name appear if they
    differ from the default.

    References:
        eq:final-objective.
    """
    equation = method.equation()
    second = "" if method.opd_coef is None else f" + {method.opd_coef:g} PG(A_opd; {clipped})"
    reference = f" + {kl_coef:g} {kl}(ref)" if kl_coef > 0 else ""
    advantage = equation if equation.startswith("A = ") else f"A: {equation}"
    shown = {
        each.name: getattr(method, each.name)
        for each in fields(method)
        if each.name in re.findall(r"\w+", equation) or getattr(method, each.name) != each.default
    }
    settings = ", ".join(
        f"{key} = {value:g}" if isinstance(value, float) else f"{key} = {value!r}" for key, value in shown.items()
    )
    return "; ".join(part for part in (f"loss = PG(A; {clipped}){second}{reference}", advantage, settings) if part)


def unused_line(config: Config, origins: Mapping[str, str]) -> str | None:
    """The stated settings that the method does not use, on one line; None if it uses all."""
    own = {"method.name", *(f"method.{key}" for key in config.method.settings())}
    stated = [key for key, at in origins.items() if key.startswith("method.") and key not in own and at != DEFAULT]
    if not config.method.needs_teacher():
        values = flat_values(config)
        stated = [key for key in values if TEACHER.fullmatch(key) and values[key] is not None] + stated
    return f"not used by method {config.method.name}: {', '.join(stated)}" if stated else None
