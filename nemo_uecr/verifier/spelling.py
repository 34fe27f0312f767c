r"""One spelling of an answer: LaTeX for typed signs, plain digits for numbers, and no layout."""

# ruff: noqa: RUF001 - the signs that look alike are what this file is about

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Iterator

#: A LaTeX command, an escaped character (the end of a matrix row is one), or a character.
TOKEN = re.compile(r"\\(?:[A-Za-z]+|.)|.", re.DOTALL)
_FONT = r"\\(?:text|mbox|mathrm|textrm|textbf|mathbf|textit|mathit|operatorname)\s*\{"
TEXT = re.compile(rf"{_FONT}([^{{}}]*)\}}")
_IN_GROUP = r"(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*"
#: A group in braces, three deep.
GROUP = rf"\{{{_IN_GROUP}\}}"
_GREEK = """alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau
    phi varphi chi psi omega ell Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega"""
GREEK_LETTER = rf"\\(?:{'|'.join(_GREEK.split())})(?![A-Za-z])"
_UNKNOWNS = frozenset(string.ascii_letters) - {"e", "i"} | {f"\\{name}" for name in _GREEK.split()}

# The spelling ---------------------------------------------------------------------------------------------------------

#: Signs that people type for what LaTeX writes.
_TYPED = {
    "−–—‐‑": "-", "、": ",", "∶": ":", "≠": r"\ne ",
    "×": r"\times ", "·⋅": r"\cdot ", "÷": r"\div ", "≤⩽": r"\le ", "≥⩾": r"\ge ",
    "±": r"\pm ", "∞": r"\infty ", "π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "∠": r"\angle ",
    "≈": r"\approx ", "⟨〈": r"\langle ", "⟩〉": r"\rangle ", "°º": r"^{\circ}", "√": r"\sqrt ", "∖": r"\setminus ",
    "σ": r"\sigma ", "ρ": r"\rho ", "φ": r"\phi ", "ω": r"\omega ", "γ": r"\gamma ", "δ": r"\delta ", "μ": "µ",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "⁄": "/", "∘": r"^{\circ}",
    "¢": r"\text{ cent }", "€": r"\text{ euro }", "£": r"\text{ sterling }", "¥": r"\text{ yen }",
    "₹": r"\text{ rupee }",
}  # fmt: skip
_SIGNS = {sign: latex for signs, latex in _TYPED.items() for sign in signs}


def _sign(found: re.Match[str]) -> str:
    """A sign as keyboards have it: wide, small and bold forms, digits of other scripts, blanks, fractions."""
    sign = found[0]
    if sign in _SIGNS:
        return _SIGNS[sign]
    kind, form = unicodedata.category(sign), unicodedata.decomposition(sign).partition(" ")[0]
    if kind in ("Cf", "Zs"):  # invisible, or a blank
        return " " * (kind == "Zs")
    if kind == "Nd":
        return str(unicodedata.decimal(sign))
    plain = unicodedata.normalize("NFKC", sign)
    if form == "<fraction>":
        return r"\frac{{{}}}{{{}}}".format(*plain.split("⁄"))
    if kind == "No" and form not in ("<super>", "<sub>"):  # numbers of statements, ① or ⑵
        return sign
    return "".join(_SIGNS.get(each, each) for each in plain)


#: Commands for the same thing, and those for layout.
_COMMANDS = {
    r"\ge \geq \geqslant": r"\ge ", r"\le \leq \leqslant": r"\le ", r"\ne \neq": r"\ne ", r"\lbrace": r"\{",
    r"\rbrace": r"\}", r"\langle": "(", r"\rangle": ")", r"\varnothing": r"\emptyset ", r"\degree": r"^{\circ}",
    r"\R \Reals": r"\mathbb{R}", r"\mbox \textrm \textnormal \mathrm": r"\text",
    r"\dots \cdots": r"\ldots ", r"\backslash": r" \setminus ",
    r"\dfrac \tfrac \cfrac": r"\frac", r"\pounds \textsterling": r"\text{ sterling }",
    r"\euro \texteuro": r"\text{ euro }", r"\lor \vee \land \wedge": " , ", r"\quad \qquad \; \:": " ",
    r"\bm \boldsymbol \pmb \mathsf \underline \displaystyle \textstyle \large \Large \huge \bf \rm": " ",
    r"\therefore \checkmark": " ",
}  # fmt: skip
_ALIASES = {name: latex for names, latex in _COMMANDS.items() for name in names.split()} | {"\\ ": " "}
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_BASES |= {"eleven": 11, "twelve": 12, "sixteen": 16}
_POWERS_OF_TEN = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
#: Any words after a number name what it counts, but these change it, hedge or add another.
_MODIFIERS = """or and not nor but are was were than minus plus times over mod modulo base squared cubed
    factorial below negative about around approximately roughly nearly almost half third double triple dozen
    hundred thousand million billion zero one two three four five six seven eight nine ten eleven twelve
    thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty
    ninety mega giga kilo milli micro nano grand halve quarter fourth fifth sixth seventh eighth ninth tenth
    eleventh twelfth hundredth thousandth millionth trillion quadrillion lakh crore score gross fold repeating
    recurring periodic binary octal hex hexadecimal decimal less inverse reciprocal percentage permille
    above beyond thou mil septillion gazillion googol sixteenth twentieth doubled tripled halved ish approx maybe
    perhaps unsure incorrect rejected extraneous undefined except impossible excluded without unless likely circa
    never none infinity alpha choose divided modulus thereabouts counting forward backward"""
#: After "or" or "and" these words bound a number.
_BOUNDS = ("more", "fewer", "less", "above", "below", "greater", "higher", "lower", "over", "under")
MODIFIERS = frozenset(_MODIFIERS.split()) | {f"or{word}" for word in _BOUNDS}
#: Letters of other languages, but for Greek and the fonts of mathematics.
FOREIGN = "À-ÖØ-öø-\u017f\u0400-\u04ff\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3"
#: Their words that change a number, hedge or add another.
FOREIGN_MODIFIER = (
    "[万亿千百十兆萬億仟佰拾半倍成折打多余餘以约約近超或和与與几幾一二三四五六七八九零两兩]|分之|左右|上下|大于|小于|不足|未満"
    "|만|억|천|백|십|이상|이하|미만|또는|절반|(?i:тыс|млн|млрд|милли|половин|дюжин|процент|или|больше|меньше|менее"
    "|mill[oó]n|millième|centième|dixième|moitié|mitad|más|über|hälfte)"
)
_FOREIGN_WORD = rf"(?:[A-Za-zÀ-ſ]*[À-ÖØ-öø-ſ][A-Za-zÀ-ſ]*|[{FOREIGN}]+)"
_ARGUMENT = rf"\s*(?:\{{({_IN_GROUP})\}}|(\\pi(?![A-Za-z])|{GREEK_LETTER}|[0-9A-Za-z]))"


def _base(match: re.Match[str]) -> str:
    base = match[match.lastindex or 0]
    return f"_{{{_BASES.get(base, base)}}}"


def _as_fraction(match: re.Match[str]) -> str:
    r"""``0.1\overline{6}`` and ``0.1\dot{6}`` are (16 - 1) / 90."""
    whole, fixed, *periods = match.groups(default="")
    period = "".join(periods)
    top = int(whole + fixed + period) - int((whole + fixed) or "0")
    return rf"\frac{{{top}}}{{{'9' * len(period) + '0' * len(fixed)}}}"


_ADJECTIVE = r"(?:(?:final|correct|required|desired|maximum|minimum|largest|smallest|exact)\s+)?"


def _ordinal(match: re.Match[str]) -> str:
    """An ordinal as its number."""
    number, ending = match.groups()
    ending_of = {"1": "st", "2": "nd", "3": "rd"}
    right = "th" if number[-2:-1] == "1" else ending_of.get(number[-1], "th")
    return number if ending == right else match[0]


_RULES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(pattern, re.DOTALL), latex)
    for pattern, latex in (
        # Layout and signs
        (r"(?<=[\w)])\*\*(\d+)(?!\d|\*\*)", r"^{\1}"),  # a power in a program's spelling, and no bold
        (r"\*\*", " "),
        (r"^\s*\$*\s*\{(?!\s*\d{1,3}(?:,\d{3})+\s*\})"
         r"([^{}]*,[^{}]*|\s*[A-Za-z]\s*[|:][^{}]*)\}\s*\$*\s*$", r"\\{\1\\}"),
        (r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![A-Za-z\\])(?:(ln|log|sin|cos|tan)(?=\s*\(|\s+(?:[A-Za-z](?![A-Za-z])|\d|\\)|_)|(pi)(?![^\W\d_]))",
         r"\\\1\2 "),
        (r"^\s*\$(?=\s*[\d.,]*\d\s*$)", r"\\$"),  # dollars, and no mathematics
        (r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\s*", ""),
        (r"^\s*(?:\\[(\[]|[`$]+)?\s*|\s*(?:\\[)\]]|(?<![^\\]\\)[`$]+)?\s*$", ""),
        (r"√\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[A-Za-z]))", r"\\sqrt{\1\2}"),  # of the whole number after it
        (r"\{\s*\\rm\s+([A-Za-z]{2,})\s*\}", r"\\text{\1}"),
        (r"[⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ⁺⁻]+", r"^{\g<0>}"),
        (r"[₀-₉]+", r"_{\g<0>}"),
        (r"[^\x00-\x7f]", _sign),
        (r"\\(?:[A-Za-z]+|.)", lambda match: _ALIASES.get(match[0], match[0])),
        (r"(?<=\d)\s*x\s*(?=10\s*\^)", r"\\times "),
        (r"(?<![\d.])\.\.\.(?!\.)", r"\\ldots "),
        # Thin spaces that set no thousands apart
        (r"(?<!\\)\\,(?!\d{3}(?!\d))|(?<![\d,}\\])\\[,!]", " "),
        # Words around a value
        (rf"^\s*{_FONT}\s*(?i:(?:the\s+)?{_ADJECTIVE}(?:answer|value|result)\s*(?:is|:|is:))\s*\}}\s*(?=\S)", ""),
        (r"^\s*(?:\\text(?:bf)?\s*\{\s*)?(\d+)(?:\s|\\text|[\^{])*(st|nd|rd|th)[\s}]*$", _ordinal),
        (rf"(?i)\b(?:or|and)\s+({'|'.join(_BOUNDS)})\b", r"or\1"),
        (r"(\\text\s*\{[^{}]*[A-Za-z]{3})\.\s*\}\s*$", r"\1}"),
        (rf"\\(?:mathbf|textbf)\s*\{{\s*(\\frac\s*{GROUP}\s*{GROUP}|\\sqrt\s*{GROUP})\s*\}}", r"\1"),
        (r"\^\s*\{\s*(T|\\top)\s*\}", r"^\1"),
        (r"^\s*e\s*=(?=[^=e]*\\(?:frac|sqrt)[^=e]*$)", r"\\varepsilon ="),  # an eccentricity
        # Relations and sets
        (r"(?<![=<>])>=", r"\\ge "),
        (r"(?<![=<>])<=(?!>)", r"\\le "),
        (r"\\not\s*=|!=|=/=|<>", r"\\ne "),
        (r"\\\{\s*\\\}", r"\\emptyset "),
        (rf"^(?i:(?:{_FONT})?\s*all\s+real(?:s|\s+numbers?)?[\s.]*\}}?)$", r"\\mathbb{R}"),
        (rf"^(?i:(?:{_FONT})?\s*no(?:\s+real)?\s+solutions?[\s.]*\}}?)$", r"\\emptyset "),
        (r"\\mathbb\s+R", r"\\mathbb{R}"),
        (r"(?<=\\mathbb\{R\})\s*-(?=\s*\\\{)", r" \\setminus "),
        # Units, and layout once more
        (r"\\text\s+\{", r"\\text{"),
        (r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})", r"^{\\circ}"),
        (r"(\\text\{[^{}^]*[A-Za-z~ ])\^\s*(?:\{(\d)\}|(\d))\s*", r"\1}^{\2\3}\\text{"),  # ``\text{m^2/s}``
        (rf"\\text\{{[\s~]*((?i:{'|'.join(_POWERS_OF_TEN)})s?)(?![A-Za-z])[\s~]*", r" \1 \\text{"),
        (r"\\text\{\}", ""),
        (r"(?<!\\)%", r"\\%"),
        (r"(?i)\bper\s+cent\b", "percent"),
        (r"\\text\{\s*percent\s*\}|(?<=\d)\s*percent$", r"\\%"),
        (r"(\\text\{ (?:euro|sterling|yen|rupee) \})\s*([\d.,]*\d)", r"\2\1"),
        (r"^\s*<([^<>]*,[^<>]*)>\s*$", r"(\1)"),
        (r"\(\s*(\\approx[^()]*)\)$", r"\1"),
        (r"\((\d+)\)(?=\s*_)", r"\1"),
        (r"(?<!\\)\$", " "),
        (r"(?<=[A-Za-z}])\s*_\s*([A-Za-z0-9])(?!\d)", r"_{\1}"),
        (r"(?:\s|(?<!\\)\\[,!])+$", ""),
        (r"\\(?:textcolor|colorbox)\s*\{[^{}]*\}\s*(?=\{)|\\color\s*(?:\{[^{}]*\}|[a-z]+\s)", ""),
        (r"\\[hv]?phantom\s*(?:\{[-+=\s]*\}|[-+=])", " "),
        (r"\s*\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![A-Za-z]))", "'"),
        # In brackets after a number the name of what was counted
        (rf"^([+-]?[\d.,/]*\d)\s+\((?!.*\b(?:{'|'.join(MODIFIERS)})\b)([A-Za-z][A-Za-z ]+)\)$", r"\1\\text{ \2 }"),
        # What a number counts in other languages, and words there that change it
        (rf"(?:(?<=[\d}}])|(?<=\\pi)|(?<=\\pi ))\s*"
         rf"((?!.*(?:{FOREIGN_MODIFIER})){_FOREIGN_WORD}(?: [A-Za-z{FOREIGN}]+)*)$", r"\\text{\1}"),
        (rf"\\text\{{\s*([{FOREIGN}]*(?:{FOREIGN_MODIFIER})[{FOREIGN}]*)\s*\}}", r" \1 "),
        # Words: a letter alone is an unknown unless a font makes it a unit, as in ``5\mathrm{m}``
        (r"\\(?:text|mathbf|mathit|mathcal|operatorname)\s*\{\s*((?![mgshdlLNJWVCF])[A-Za-z])\s*\}", r"\1"),
        (rf"{_FONT}\s*(?i:,?\s*(?:or|and)|,)\s*\}}", ", "),
        # A number in a text is a number: ``7\text{8}`` are two, and ``\text{12 cm}`` is one with its unit
        (rf"{_FONT}\s*([+-]?[\d.,]*\d)\s*\}}", r" \1 "),
        (rf"{_FONT}\s*([+-]?[\d.,]*\d)(?![\d.,])\s*([^{{}}]*)\}}", r" \1 \\text{ \2 }"),
        (r"[~\s]+", " "),
        (r"^ | $", ""),
        (r";|(?<![A-Za-z\\{])(?:or|and)(?![A-Za-z}])", " , "),
        (r",(?:\s*,)+", ","),
        # Numbers
        (r"^[+-]?[1-9]\d{0,2}(?: \d{3})+(?=$| ?\\text| ?\\%| [A-Za-z])", lambda match: match[0].replace(" ", "")),
        (r"_\s*\{?\s*(?:\(|\\text\{\s*(?:base\s*)?)(\w+)\s*[)}]\s*\}?$"
         r"|\\text\{\s*\(?base\s*(\w+)\)?\s*\}$", _base),
        (rf"\\frac(?![A-Za-z]){_ARGUMENT}{_ARGUMENT}", r"\\frac{\1\2}{\3\4}"),
        (r"(?<![\w.}^)\\])(\d+)(?:\s|\\,)+(\d+)\s*/\s*(\d+)(?![\w.])", r"\1\\frac{\2}{\3}"),
        (r"(?<![\w.\\])(\d+\.?\d*|\.\d+)[eE](?:\+|(-?))0*(\d{1,3})(?![\w.])", r"(\1\\times 10^{\2\3})"),
        # Numbers of statements, which are no product
        (r"^(?:\(\d\)\s*){2,}$", lambda match: re.sub(r"\)\s*(?=\()", ") , ", match[0])),
        (r"(?<![\d.])(\d*)\.(\d*)(?:\\(?:overline|bar)\s*(?:\{(\d+)\}|(\d))"
         r"|\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?)", _as_fraction),
        (r"(?<![\d.,(\[{])(?<![(\[{][-+])[1-9]\d{0,2}(?:(?:\{,\}|,\\!|\\,|,)\d{3})+(?![\d,])"
         r"|(?<![\d.,])[1-9]\d{0,2}(?:(?:\{,\}|,\\!)\d{3})+(?![\d,])", lambda match: re.sub(r"\D", "", match[0])),
        (rf"(?<![\w.,/\\])(\d+(?:\.\d*)?|\.\d+)(?:\s|\\,)*((?i:{'|'.join(_POWERS_OF_TEN)}))s?(?![A-Za-z])\s*",
         lambda match: rf"({match[1]}\times 10^{{{_POWERS_OF_TEN[match[2].lower()]}}}) "),
    )
]  # fmt: skip


def spelled(text: str) -> str:
    """The text in the spelling that the comparison reads; "or", "and" and semicolons are commas."""
    for pattern, latex in _RULES:
        text = pattern.sub(latex, text)
    return text


# Numbers in digits, and the parts of a text -------------------------------------------------------------------------

_BLANKS = re.compile(r"((?<=[0-9A-Za-z.])\s+(?=[0-9A-Za-z.]))|\s+")
#: Digits, thousands set off by commas or not at all. `1,2` is a list, and no thousands follow a leading zero.
DIGITS = r"(?:[1-9]\d{0,2}(?:,\d{3})+|\d+|(?=\.\d))(?:\.\d*)?"
#: LaTeX raises a single digit unless there are braces, so `2 \times 10^34` is left to those who read LaTeX.
_POWER = r"[eE]([+-]?\d{1,12})|(?:\\times|\\cdot|\*) ?10\^(?:\{([+-]?\d{1,12})\}|(\d)(?!\d))"
NUMBER = re.compile(rf"([+-]?)({DIGITS})(?:{_POWER})?")
#: What sets thousands apart in LaTeX: a braced comma, a comma with negative space, a thin space.
_SEPARATOR = re.compile(r"\{,\}(?:\\!)?|,\\!|(?<=\d)\\,(?=\d{3}(?!\d))")
_OPENING, _CLOSING = ("(", "[", "{", r"\{"), (")", "]", "}", r"\}")
_PARTS = re.compile(rf"\\(?:begin|end)\{{[^{{}}]*\}}|{TOKEN.pattern}", re.DOTALL)
_COMPARING = ("=", "<", ">", r"\le", r"\ge", r"\ne", r"\lt", r"\gt")


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


def nested(text: str) -> Iterator[tuple[str, int]]:
    """The LaTeX tokens of a text, the ends of an environment as one each, and the open brackets after each."""
    depth = 0
    for token in _PARTS.findall(text):
        depth += (token in _OPENING or token.startswith(r"\begin{")) - (token in _CLOSING or token.startswith(r"\end{"))
        yield token, depth


def top_level(text: str, *separators: str) -> list[str]:
    """The text split at separators outside all brackets and environments."""
    parts = [""]
    for token, depth in nested(text):
        if token in separators and depth <= 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def closes_at_end(text: str) -> bool:
    """Whether the bracket at the start is the one at the end."""
    depths = [depth for _, depth in nested(text)]
    return depths.index(0) == len(depths) - 1 if 0 in depths else False


def is_relation(text: str) -> bool:
    """Whether there is a sign of comparison outside brackets."""
    return len(top_level(text, *_COMPARING)) > 1


def letters(text: str) -> frozenset[str]:
    """The letters that are unknowns, without those of commands, texts and the constants e and i."""
    return _UNKNOWNS & set(TOKEN.findall(TEXT.sub(" ", text)))
