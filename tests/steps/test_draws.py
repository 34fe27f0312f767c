"""Which problems a step draws."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nemo_uecr.steps.draws import step_indices


@given(
    problems=st.integers(1, 40),
    per_step=st.integers(1, 25),
    steps=st.integers(1, 12),
    seed=st.integers(0, 5),
    shuffle=st.booleans(),
)
def test_every_pass_is_a_permutation(problems: int, per_step: int, steps: int, seed: int, shuffle: bool) -> None:
    drawn = []
    for step in range(1, steps + 1):
        drawn += step_indices(problems=problems, per_step=per_step, step=step, seed=seed, shuffle=shuffle)
    assert len(drawn) == steps * per_step
    for start in range(0, len(drawn) - problems + 1, problems):
        assert sorted(drawn[start : start + problems]) == list(range(problems))
    if not shuffle:
        assert drawn == [place % problems for place in range(len(drawn))]


def test_order_is_fixed_for_good_and_differs_by_pass_and_seed() -> None:
    """Recorded once: a change would silently make old runs irreproducible."""
    places = [(1, 0), (2, 0), (1, 1)]
    orders = [step_indices(problems=5, per_step=5, step=step, seed=seed, shuffle=True) for step, seed in places]
    assert orders[0] == [0, 4, 1, 2, 3]
    assert len(set(map(tuple, orders))) == len(orders)
