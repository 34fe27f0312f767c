"""One self-contained HTML page about one run, or several side by side."""

from __future__ import annotations
