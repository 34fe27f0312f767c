"""Numbers that YAML 1.1 reads otherwise than people do: `010` is 8 and `1:30` is 90."""

from __future__ import annotations

import re

import yaml

from nemo_uecr.errors import ConfigError

__all__ = ["refuse_old_numbers"]

#: Characters of a number that the message repeats.
SHOWN = 40
_OLD = re.compile(r"[-+]?(?:0[0-7_]+|[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?)")


def refuse_old_numbers(text: str, where: str) -> None:
    """Refuse octal numbers with a leading zero and numbers of base 60; in quotes they are texts.

    Args:
        text: YAML that was read without an error.
        where: begins the message.

    Raises:
        ConfigError: naming the first of them.
    """
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, yaml.ScalarToken) and token.plain and _OLD.fullmatch(token.value):
            read = yaml.safe_load(token.value)
            if not isinstance(read, str):
                means = f"reads as {read}" if len(token.value) <= SHOWN else "reads in base 8 or 60"
                raise ConfigError(
                    f"{where}: got {token.value[:SHOWN]}, which YAML 1.1 {means}; expected a decimal number without "
                    "leading zeros or colons. Put a text into quotes"
                )
