"""The command `nemo-uecr`, also as `python -m nemo_uecr`."""

from __future__ import annotations

import sys

from nemo_uecr.errors import as_dependency_error


def main() -> int:
    """Run the command line, or name the extra that it lacks: the functions alone need torch alone."""
    try:
        from nemo_uecr.cli.main import entry_point

        return entry_point()
    except ModuleNotFoundError as error:
        missing = as_dependency_error(error)
        if missing is None:
            raise
        sys.stderr.write(f"nemo-uecr: error: {missing}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
