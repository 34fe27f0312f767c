"""A self-contained HTML page about one or several runs."""

from __future__ import annotations
