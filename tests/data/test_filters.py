"""Answer types."""

from __future__ import annotations

import pytest

from nemo_uecr.data.filters import answer_type


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        ("42", "integer"), ("-1{,}000", "integer"), ("3.5", "decimal"), (r"\frac{3}{4}", "fraction"),
        ("3/4", "fraction"),
        ("Yes", "yes_no"), (r"\text{No}", "yes_no"), ("B", "choice"),
        (r"\text{(C)}", "choice"), (r"\infty", "infinite"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "matrix"), ("(0, 1]", "interval"), (r"\{1, 2\}", "set"),
        ("y = 2x + 1", "equation"), (r"\text{ellipse}", "text"), ("hyperbola", "text"), (r"2\sqrt{3}", "expression"),
        ("x^2 - 1", "expression"),
    ],
)  # fmt: skip
def test_answer_types(answer: str, name: str) -> None:
    assert answer_type(answer) == name
