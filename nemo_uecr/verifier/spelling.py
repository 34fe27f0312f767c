r"""One spelling of an answer: LaTeX for typed signs, plain digits for numbers, and no layout."""

# ruff: noqa: RUF001 - the signs that look alike are what this file is about

from __future__ import annotations

import re
import string
import unicodedata

#: A LaTeX command, an escaped character (the end of a matrix row is one), or a character.
TOKEN = re.compile(r"\\(?:[A-Za-z]+|.)|.", re.DOTALL)
_FONT = r"\\(?:text|mbox|mathrm|textrm|textbf|mathbf|textit|mathit|operatorname)\s*\{"
TEXT = re.compile(rf"{_FONT}([^{{}}]*)\}}")
#: A group in braces, three deep.
GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
#: Letters that a font makes units: ``5\mathrm{m}``.
UNIT_LETTERS = frozenset("mgshdlLNJWVCF")
#: A mixed number, the one form that looks like a product and that people mean as a sum.
MIXED = re.compile(
    r"(?<!frac)(?<![\d.}])(\d+)(?:\s|\\[,!])*\\frac\s*(?:\{\s*(\d+)\s*\}|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))"
)

# Signs that people type for what LaTeX writes -------------------------------------------------------------------------

_TYPED = {
    "−–—": "-", "×": r"\times ", "·⋅": r"\cdot ", "÷": r"\div ", "≤⩽": r"\le ", "≥⩾": r"\ge ", "≠": r"\ne ",
    "±": r"\pm ", "∞": r"\infty ", "π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "∠": r"\angle ",
    "≈": r"\approx ", "⟨〈": r"\langle ", "⟩〉": r"\rangle ", "°º": r"^{\circ}", "√": r"\sqrt ", "∖": r"\setminus ",
    "，": ",", "（": "(", "）": ")", "€": r"\text{ euro }",
    "£": r"\text{ sterling }", "¥": r"\text{ yen }", "₹": r"\text{ rupee }",
}  # fmt: skip
_TYPED_SIGN = {ord(sign): latex for signs, latex in _TYPED.items() for sign in signs}
_TYPED_SIGN |= {
    ord(sign): r"\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", sign).split("⁄"))
    for sign in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
}
_TEXTS = re.compile(rf"({_FONT}[^{{}}]*\}})")
_RADICAND = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[A-Za-z]))")
_SCRIPT = re.compile("(?P<raised>[⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ⁺⁻]+)|[₀-₉]+")
#: Words in brackets after a number that are no name of what was counted.
_NO_THING = "or|and|not|mod|base|dozen|hundred|thousand|million|billion|times"
_COMMANDS = [
    (re.compile(pattern), latex)
    for pattern, latex in (
        (r"\\geq?(?:slant)?(?![A-Za-z])|(?<![=<>])>=", r"\\ge "),
        (r"\\leq?(?:slant)?(?![A-Za-z])|(?<![=<>])<=(?!>)", r"\\le "),
        (r"\\neq?(?![A-Za-z])|\\not\s*=|!=|=/=|<>", r"\\ne "),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\langle(?![A-Za-z])", "("),
        (r"\\rangle(?![A-Za-z])", ")"),
        (r"\\varnothing(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset "),
        (r"\\degree(?![A-Za-z])", r"^{\\circ}"),
        (rf"^(?i:(?:{_FONT})?\s*all(?:\s|\\ )+real(?:s|(?:\s|\\ )+numbers?)?[\s.]*\}}?)$", r"\\mathbb{R}"),
        (rf"^(?i:(?:{_FONT})?\s*no(?:(?:\s|\\ )+real)?(?:\s|\\ )+solutions?[\s.]*\}}?)$", r"\\emptyset "),
        (r"(\\(?:text|mathrm)\s*\{[A-Za-z~/ ]+)\^\s*(?:\{(\d)\}|(\d))\s*\}", r"\1}^{\2\3}"),
        (r"\\R(?![A-Za-z])|\\Reals(?![A-Za-z])|\\mathbb\s+R", r"\\mathbb{R}"),
        (r"\\backslash(?![A-Za-z])|(?<=\\mathbb\{R\})\s*-(?=\s*\\\{)", r" \\setminus "),
        (r"\\(?:text|mathrm)\s*\{\s*(?:percent|per cent)\s*\}|(?<=\d)\s*percent$", r"\\%"),
        (r"\\(?:pounds|textsterling)(?![A-Za-z])", r"\\text{ sterling }"),
        (r"\\(?:euro|texteuro)(?![A-Za-z])", r"\\text{ euro }"),
        (r"(\\text\{ (?:euro|sterling|yen|rupee) \})\s*([\d.,]*\d)", r"\2\1"),
        (r"^\s*<([^<>]*,[^<>]*)>\s*$", r"(\1)"),
        (r"\(\s*(\\approx[^()]*)\)$", r"\1"),
        (r"\((\d+)\)(?=\s*_)", r"\1"),
        (r"(?<!\\)\$", " "),
        (r"(?<=[A-Za-z}])\s*_\s*([A-Za-z0-9])(?!\d)", r"_{\1}"),
        (r"(?:\s|(?<!\\)\\[,!])+$", ""),
        (r"\\(?:textcolor|colorbox)\s*\{[^{}]*\}\s*(?=\{)|\\color\s*(?:\{[^{}]*\}|[a-z]+\s)", ""),
        (r"\\[hv]?phantom\s*(?:\{[-+=\s]*\}|[-+=])", " "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\s*\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![A-Za-z]))", "'"),
        (rf"^([+-]?[\d.,/]*\d)\s+\((?!.*\b(?:{_NO_THING})\b)([A-Za-z][A-Za-z ]+)\)$", r"\1\\text{ \2 }"),
        (r"\\(?:bm|boldsymbol|underline|displaystyle|textstyle|large|Large|bf|rm)(?![A-Za-z])", " "),
    )
]  # fmt: skip

# Words ----------------------------------------------------------------------------------------------------------------

_ONE_LETTER = re.compile(r"\\(?:mathrm|mathbf|mathit|mathcal|operatorname)\s*\{\s*([A-Za-z])\s*\}")
_OR = re.compile(r"\\(?:lor|vee|land|wedge)(?![A-Za-z])|;|(?<![A-Za-z\\{])(?:or|and)(?![A-Za-z}])")
_OR_WORD = re.compile(r"\s*(?:,?\s*(?:or|and)|,)\s*", re.IGNORECASE)
#: A number in a text is a number: ``7\text{8}`` are two, and ``\text{12 cm}`` is one with its unit.
_COUNTED = re.compile(r"\s*([+-]?[\d.,]*\d)(?![\d.,])\s*(.*)", re.DOTALL)
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_BASES |= {"eleven": 11, "twelve": 12, "sixteen": 16}
_BASE = re.compile(
    r"_\s*\{?\s*(?:\(|\\(?:text|mathrm)\s*\{\s*(?:base\s*)?)(\w+)\s*[)}]\s*\}?$|\\text\{\s*\(?base\s*(\w+)\)?\s*\}$"
)

# Numbers --------------------------------------------------------------------------------------------------------------

_SPACES = frozenset((r"\quad", r"\qquad", r"\ ", r"\;", r"\:", "~"))
_REPEATING = re.compile(
    r"(?<![\d.])(\d*)\.(\d*)(?:\\(?:overline|bar)\s*(?:\{(\d+)\}|(\d))|\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?)"
)
_SCIENTIFIC = re.compile(r"(?<![\w.\\])(\d+\.?\d*|\.\d+)[eE]([+-]?)0*(\d{1,3})(?![\w.])")
_SLASHED = re.compile(r"(?<![\w.}^)\\])(\d+)(?:\s|\\,)+(\d+)\s*/\s*(\d+)(?![\w.])")
#: Numbers of statements, which are no product.
_NUMBERED = re.compile(r"(\(\d\))\s*(?=\()")
_NUMBERED_ALONE = re.compile(r"(?:\(\d\)\s*){2,}")
_THOUSANDS = re.compile(
    r"(?<![\d.,(\[{])(?<![(\[{][-+])[1-9]\d{0,2}(?:(?:\{,\}|,\\!|\\,|,)\d{3})+(?![\d,])"
    r"|(?<![\d.,])[1-9]\d{0,2}(?:(?:\{,\}|,\\!)\d{3})+(?![\d,])"
)


def spelled(text: str) -> str:
    """The text in the spelling that the comparison reads; "or", "and" and semicolons are commas."""
    text = _within_delimiters(SIZED.sub("", text.replace("**", " ")))
    text = "".join(_typed(part) if place % 2 == 0 else part for place, part in enumerate(_TEXTS.split(text)))
    for pattern, latex in _COMMANDS:
        text = pattern.sub(latex, text)
    text = _ONE_LETTER.sub(lambda match: match[1] if match[1] not in UNIT_LETTERS else match[0], text)
    text = TEXT.sub(_freed, text)
    text = "".join(" " if token in _SPACES or token.isspace() else token for token in TOKEN.findall(text))
    text = " ".join(text.split())
    text = re.sub(r",(?:\s*,)+", ",", _OR.sub(" , ", text))
    text = _BASE.sub(lambda match: rf"_{{{_BASES.get(match[1] or match[2], match[1] or match[2])}}}", text)
    text = _ARGUMENTS.sub(lambda match: rf"\frac{_braced(match[1])}{_braced(match[2])}", text)
    text = _SLASHED.sub(r"\1\\frac{\2}{\3}", text)
    text = _SCIENTIFIC.sub(lambda match: rf"({match[1]}\times 10^{{{match[2].strip('+')}{match[3]}}})", text)
    text = _NUMBERED.sub(r"\1 , ", text) if _NUMBERED_ALONE.fullmatch(text) else text
    return _THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), _REPEATING.sub(_as_fraction, text))


def _braced(argument: str) -> str:
    return argument if argument.startswith("{") else f"{{{argument}}}"


def _within_delimiters(text: str) -> str:
    text = text.strip()
    for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("`", "`")):
        if text.startswith(opening) and text.endswith(closing) and len(text) > len(opening + closing):
            return text[len(opening) : -len(closing)].strip()
    return text


def _typed(text: str) -> str:
    """A part outside text commands, with LaTeX for typed signs; a radical sign covers the whole number after it."""
    text = _RADICAND.sub(r"\\sqrt{\1\2}", text)
    text = _SCRIPT.sub(lambda m: f"{'^' if m['raised'] else '_'}{{{unicodedata.normalize('NFKC', m[0])}}}", text)
    return text.translate(_TYPED_SIGN)


def _freed(match: re.Match[str]) -> str:
    """A text command without the joining word or the number that it holds."""
    if _OR_WORD.fullmatch(match[1]):
        return ", "
    number = _COUNTED.fullmatch(match[1])
    if number is None:
        return match[0]
    return f" {number[1]} " + (rf"\text{{ {number[2]} }}" if number[2] else "")


def _as_fraction(match: re.Match[str]) -> str:
    r"""``0.1\overline{6}`` and ``0.1\dot{6}`` are (16 - 1) / 90."""
    whole, fixed, *periods = match.groups(default="")
    period = "".join(periods)
    top = int(whole + fixed + period) - int((whole + fixed) or "0")
    return rf"\frac{{{top}}}{{{'9' * len(period) + '0' * len(fixed)}}}"


# Numbers in digits, and the parts of a text -------------------------------------------------------------------------

_BLANKS = re.compile(r"((?<=[0-9A-Za-z.])\s+(?=[0-9A-Za-z.]))|\s+")
#: Digits, thousands set off by commas or not at all. `1,2` is a list, and no thousands follow a leading zero.
DIGITS = r"(?:[1-9]\d{0,2}(?:,\d{3})+|\d+|(?=\.\d))(?:\.\d*)?"
#: LaTeX raises a single digit unless there are braces, so `2 \times 10^34` is left to those who read LaTeX.
_POWER = r"[eE]([+-]?\d{1,12})|(?:\\times|\\cdot|\*) ?10\^(?:\{([+-]?\d{1,12})\}|(\d)(?!\d))"
NUMBER = re.compile(rf"([+-]?)({DIGITS})(?:{_POWER})?")
#: What sets thousands apart in LaTeX: a braced comma, a comma with negative space, a thin space.
_SEPARATOR = re.compile(r"\{,\}(?:\\!)?|,\\!|(?<=\d)\\,(?=\d{3}(?!\d))")
SIZED = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\s*")
OPENING, CLOSING = ("(", "[", "{", r"\{"), (")", "]", "}", r"\}")
_COMPARING = ("=", "<", ">", r"\le", r"\ge", r"\ne", r"\lt", r"\gt")
GREEK = """alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau
    phi varphi chi psi omega ell Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega"""
_ARGUMENT = rf"\s*({GROUP}|\\(?:pi|{'|'.join(GREEK.split())})(?![A-Za-z])|[0-9A-Za-z])"
_ARGUMENTS = re.compile(rf"\\frac(?![A-Za-z]){_ARGUMENT}{_ARGUMENT}")
_UNKNOWNS = frozenset(string.ascii_letters) - {"e", "i"} | {"\\" + name for name in GREEK.split()}


def plain_number(text: str) -> tuple[str, str, int] | None:
    """Sign, digits and power of ten of a number written in digits; None for anything else.

    value = sign · digits · 10^power,   digits without zeros at either end, so that equal values are equal tuples
    """
    plain = _SEPARATOR.sub(",", text).strip("$")
    match = NUMBER.fullmatch(plain) if plain.isascii() else None
    if match is None:
        return None
    sign, digits, *powers = match.groups(default="")
    whole, _, fraction = digits.replace(",", "").partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return "", "", 0
    bare = digits.rstrip("0")
    return sign.strip("+"), bare, int("".join(powers) or 0) - len(fraction) + len(digits) - len(bare)


def without_point(answer: str) -> str:
    """The answer without the full stop of its sentence; ``...`` stays."""
    bare = answer.rstrip()
    return bare if bare.endswith("..") else bare.removesuffix(".")


def squeezed(text: str) -> str:
    """The text without blanks, but for those that keep two digits, points or letters apart."""
    return _BLANKS.sub(lambda blanks: " " if blanks[1] else "", text.strip())


def tokens_of(text: str) -> list[str]:
    """The LaTeX tokens of a text, the ends of an environment as one each."""
    return re.findall(rf"\\(?:begin|end)\{{[^{{}}]*\}}|{TOKEN.pattern}", text, re.DOTALL)


def top_level(text: str, *separators: str) -> list[str]:
    """The text split at separators outside all brackets and environments."""
    parts, depth = [""], 0
    for token in tokens_of(text):
        depth += (token in OPENING or token.startswith(r"\begin{")) - (token in CLOSING or token.startswith(r"\end{"))
        if token in separators and depth <= 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def closes_at_end(text: str) -> bool:
    """Whether the bracket at the start is the one at the end."""
    depth = 0
    tokens = tokens_of(text)
    for place, token in enumerate(tokens):
        depth += (token in OPENING) - (token in CLOSING)
        if depth == 0:
            return place == len(tokens) - 1
    return False


def is_relation(text: str) -> bool:
    """Whether there is a sign of comparison outside brackets."""
    return len(top_level(text, *_COMPARING)) > 1


def letters(text: str) -> frozenset[str]:
    """The letters that are unknowns, without those of commands, texts and the constants e and i."""
    return _UNKNOWNS & set(TOKEN.findall(TEXT.sub(" ", text)))
