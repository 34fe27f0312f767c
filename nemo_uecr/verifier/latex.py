"""Pieces of LaTeX that several readers of an answer look for."""

from __future__ import annotations

import re

#: A command with its name, an escaped character, or a character.
TOKEN = re.compile(r"\\(?:[A-Za-z]+|.)|.", re.DOTALL)
#: A command for text or for upright letters, with what it holds.
TEXT = re.compile(r"\\(?:text|mbox|mathrm|textrm|textbf|mathbf|textit|mathit|operatorname)\s*\{([^{}]*)\}")
