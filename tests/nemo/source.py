"""Where NeMo-RL's source tree is; CONTRIBUTING.md says how to unpack one."""

from __future__ import annotations

import os
from pathlib import Path

TREES = Path("~/.cache/nemo_uecr/nemo_rl").expanduser()
#: The tree that NEMO_RL_SOURCE names, else the last of `TREES`; None where there is none.
SOURCE = os.environ.get("NEMO_RL_SOURCE") or next(
    (str(tree) for tree in sorted(TREES.glob("*/"), reverse=True) if (tree / "nemo_rl").is_dir()), None
)
MISSING = f"no source of NeMo-RL in NEMO_RL_SOURCE or {TREES}/*/ (CONTRIBUTING.md)"
