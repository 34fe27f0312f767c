"""NeMo-RL asks for Python 3.13; on 3.11, pydantic needs the backport of TypedDict before NeMo-RL is imported."""

import sys
import typing

import typing_extensions

if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict
