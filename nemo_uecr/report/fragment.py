"""What an audit's section may consist of; the page takes it over as it stands, whoever wrote the run folder.

It is read by a grammar of its own and not by one of HTML, so that a browser cannot see a tag where this saw none: a
sign `<` or `>` that does not belong to an allowed tag is refused.
"""

from __future__ import annotations

import re

#: Each tag with what may stand in it, letter by letter as `nemo-uecr audit` writes it.
ALLOWED = {
    "article": r' class="audit"',
    "h3": "",
    "p": r' class="note"',
    "img": r' alt="[^"<>]*" style="max-width:100%;background:#fff" src="data:image/svg\+xml;base64,[A-Za-z0-9+/=]*"',
    "div": r' class="scroll"',
    "table": r' style="white-space:nowrap"',
    "thead": "",
    "tbody": "",
    "tr": "",
    "th": "",
    "td": "",
}
#: The one tag of them that is not closed.
EMPTY = "img"
#: Characters of a foreign tag that the message repeats.
SHOWN = 40

_OPENING = "|".join(f"(?:{name}{inside})" for name, inside in ALLOWED.items())
_PART = re.compile(rf"<(?P<opened>{_OPENING})>|</(?P<closed>[a-z0-9]+)>|[^<>]+")


def fault_of(content: str) -> str | None:
    """What in an audit's section the page cannot take; None where it is one as `nemo-uecr audit` writes it.

    Args:
        content: the file `section.html`.
    """
    content, place, depth = content.strip(), 0, list[str]()
    while place < len(content):
        part = _PART.match(content, place)
        if part is None:
            return f"{content[place : place + SHOWN]!r} stands in it"
        if part["opened"]:
            name = part["opened"].split(" ", 1)[0]
            if (name == "article") != (not depth) or (name == "article" and place):
                return f"<{name}> stands outside its place"
            depth += [name] if name != EMPTY else []
        elif part["closed"]:
            if not depth or depth.pop() != part["closed"]:
                return f"</{part['closed']}> closes nothing"
        elif not depth:
            return "text stands outside <article>"
        place = part.end()
    return "<article> is not there whole" if depth or not content else None
