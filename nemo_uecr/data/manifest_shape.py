"""The shape of a manifest: which keys it has and what stands in them, so that nobody trips over an altered one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping

#: The manifest's own key for the digest of the rest of it.
OWN_DIGEST = "sha256"

Check = Callable[[object], bool]


def content_digest(manifest: Mapping[str, object]) -> str:
    """Digest of everything in a manifest but the digest itself, however it is laid out as text."""
    content = {key: value for key, value in manifest.items() if key != OWN_DIGEST}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def shape_fault(manifest: Mapping[str, object]) -> str | None:
    """The first key that is missing or holds something else than `prepare` writes there; None when all is well."""
    return next(_faults(manifest, _SHAPE, ""), None)


def _faults(found: object, expected: object, place: str) -> Iterator[str]:
    if isinstance(expected, dict):
        if not isinstance(found, Mapping):
            yield f"{place.rstrip('.')} is {found!r:.60}, expected an object"
            return
        for key, inner in expected.items():
            if key not in found:
                yield f"no {place + key!r}"
            else:
                yield from _faults(found[key], inner, f"{place}{key}.")
    elif callable(expected) and not expected(found):
        yield f"{place.rstrip('.')} is {found!r:.60}"


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _text(value: object) -> bool:
    return isinstance(value, str)


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _range(value: object) -> bool:
    """Two numbers, or none."""
    if value is None:
        return True
    return isinstance(value, list) and len(value) == 2 and all(isinstance(each, int | float) for each in value)


def _each(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(check(inner) for inner in value.values())


def _having(**expected: Check) -> Check:
    return lambda value: isinstance(value, dict) and next(_faults(value, expected, ""), None) is None


def _stages(value: object) -> bool:
    screen = _having(screen=_having(rows=_count, held=_count, model=_text))
    apply = _having(apply=_having(kept=_count, dropped=_count, sha256=_text))
    return (
        isinstance(value, list) and value[:1] == ["prepare"] and all(screen(each) or apply(each) for each in value[1:])
    )


_FILE = _having(bytes=_count, sha256=_text)
_ROW_SET = {"rows": _count, "sha256": _text}
_SHAPE = {
    OWN_DIGEST: _text,
    "files": _each(_FILE),
    "counts": {**dict.fromkeys(("read", "kept", "held", "removed"), _count), "reasons": _each(_count)},
    "row_sets": dict.fromkeys(("source", "kept", "held", "removed"), _ROW_SET),
    "source": {"name": _text, "files": lambda value: isinstance(value, list)},
    "settings": {"difficulty": _range, "answer_types": _texts},
    "screens": _each(_having(problems=_count)),
    "stages": _stages,
}
