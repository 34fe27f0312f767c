"""UECR-GRPO: on-policy distillation unified with GRPO.

Importing this package loads neither torch nor transformers; the sub-packages load what they need.
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.2.0.dev0"
