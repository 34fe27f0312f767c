"""Overrides in the spelling of NeMo-RL's recipes, which is Hydra's: `key=`, `+key=`, `++key=` and `~key`.

Hydra itself is not required: it pins a parser runtime under which math-verify reads no percentages. The tests compare
both on many values. Sweeps (`a,b`) and functions (`choice(...)`) have no place in one run and are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from nemo_uecr.errors import ConfigError

Kind = Literal["change", "add", "set", "delete"]
MARKS: dict[str, Kind] = {"++": "set", "+": "add", "~": "delete", "": "change"}
KEY = re.compile(
    r"(\+\+|\+|~|)([A-Za-z_$][\w$-]*(?:\.(?:[A-Za-z_$][\w$-]*|0|[1-9](?:_?\d)*))*)(?:(=)[ \t]*(.*))?", re.DOTALL
)

_INT = r"(?:0|[1-9](?:_?\d)*)"
_POINT = rf"(?:{_INT}?\.\d(?:_?\d)*|{_INT}\.)"
#: Tokens of a value; the longest wins, and the first of equally long ones.
TOKENS = {
    "(": r"[ \t]*\([ \t]*", ",": r"[ \t]*,[ \t]*", ")": r"[ \t]*\)", "[": r"\[[ \t]*", "]": r"[ \t]*\]",
    "{": r"\{[ \t]*", "}": r"[ \t]*\}", ":": r"[ \t]*:[ \t]*", "=": r"[ \t]*=[ \t]*",
    "float": rf"[+-]?(?:(?:{_INT}|{_POINT})[eE][+-]?\d(?:_?\d)*|{_POINT}|[Ii][Nn][Ff]|[Nn][Aa][Nn])",
    "int": rf"[+-]?{_INT}",
    "bool": r"[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]",
    "null": r"[Nn][Uu][Ll][Ll]",
    "char": r"[/\-\\+.$%*@?|]",
    "id": r"[A-Za-z_][A-Za-z0-9_-]*",
    "escaped": r"(?:\\[\\()\[\]{}:=, \t])+",
    "blank": r"[ \t]+",
    "quoted": r'"(?:[^"\\]|\\.)*"|' + r"'(?:[^'\\]|\\.)*'",
    "interpolation": r"\$\{[^}]+\}",
}  # fmt: skip
PATTERNS = {name: re.compile(pattern, re.DOTALL) for name, pattern in TOKENS.items()}
#: What a text without quotes is made of; within a mapping's key, colons and interpolations are not.
KEY_PARTS = {"id", "null", "int", "float", "bool", "char", "escaped", "blank"}
PARTS = KEY_PARTS | {"interpolation", ":"}


@dataclass(frozen=True)
class Override:
    """One word of the command line."""

    text: str
    kind: Kind
    key: str
    value: Any  # None for `~key` alone


def parsed(text: str) -> Override:
    """The override that a word of the command line spells; ConfigError in one line for any other word."""
    found = KEY.fullmatch(text)
    if found is None or (found[3] is None and found[1] != "~"):
        raise ConfigError(
            f"override {text!r}: expected key=value, +key=value, ++key=value or ~key, without blanks around ="
        )
    mark, key, equals, written = found.groups()
    return Override(text, MARKS[mark], key, value_of(written, text) if equals and written else "" if equals else None)


def value_of(written: str, text: str) -> Any:
    """The value that is written after the equals sign of the override ``text``."""
    tokens = list(_tokens(written, text))
    reader = _Reader(tokens, text)
    value = reader.element()
    if reader.place < len(tokens):
        raise reader.fault()
    return value


def _tokens(written: str, text: str) -> Iterator[tuple[str, str]]:
    place = 0
    while place < len(written):
        matches = [(found.end(), name) for name, each in PATTERNS.items() if (found := each.match(written, place))]
        if not matches:
            raise ConfigError(f"override {text!r}: {written[place:]!r:.40} is not readable; put the value in quotes")
        end = max(end for end, _ in matches)
        yield next(name for at, name in matches if at == end), written[place:end]
        place = end


class _Reader:
    """Reads elements from tokens, one after the other."""

    def __init__(self, tokens: list[tuple[str, str]], text: str) -> None:
        self._tokens, self._text, self.place = tokens, text, 0

    def _kind(self, ahead: int = 0) -> str:
        at = self.place + ahead
        return self._tokens[at][0] if at < len(self._tokens) else ""

    def fault(self) -> ConfigError:
        kind = self._kind()
        if kind == ",":
            return ConfigError(
                f"override {self._text!r}: a run has one value; write [a,b] for a list, or quote the text"
            )
        if kind == "(":
            return ConfigError(f"override {self._text!r}: functions are not read here; put the value in quotes")
        rest = "".join(text for _, text in self._tokens[self.place :]) or "its end"
        return ConfigError(
            f"override {self._text!r}: unexpected {rest!r:.40}; put a text with such characters in quotes"
        )

    def _expect(self, kind: str) -> None:
        if self._kind() != kind:
            raise self.fault()
        self.place += 1

    def element(self) -> Any:
        if self._kind() == "[":
            return self._several("[", "]", self.element)
        if self._kind() == "{":
            return dict(self._several("{", "}", self._pair))
        if self._kind() == "quoted":
            self.place += 1
            return _unquoted(self._tokens[self.place - 1][1])
        return self._text_of(PARTS)

    def _several(self, first: str, last: str, read: Any) -> list[Any]:
        self._expect(first)
        found: list[Any] = []
        while self._kind() != last:
            if found:
                self._expect(",")
            found.append(read())
        self.place += 1
        return found

    def _pair(self) -> tuple[Any, Any]:
        key = self._text_of(KEY_PARTS)
        self._expect(":")
        return key, self.element()

    def _text_of(self, parts: set[str]) -> Any:
        """Tokens side by side: one is read as what it is, several are a text."""
        found = []
        while self._kind() in parts:
            found.append(self._tokens[self.place])
            self.place += 1
        if found and found[0][0] == "blank":
            found = found[1:]
        if found and found[-1][0] == "blank":
            found = found[:-1]
        if not found:
            raise self.fault()
        if len(found) == 1:
            return _single(*found[0])
        return "".join(text[1::2] if kind == "escaped" else text for kind, text in found)


def _single(kind: str, text: str) -> Any:
    match kind:
        case "int":
            return int(text)
        case "float":
            return float(text)
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case _:
            return text[1::2] if kind == "escaped" else text


def _unquoted(text: str) -> str:
    """The text between quotes: a backslash escapes such a quote, and itself before one and before the end."""
    halved = re.sub(rf"\\+{text[0]}", lambda found: found[0][1::2], text[1:])
    return halved.removesuffix(text[0])
