"""Momentum with orthogonalised updates: the supervised courses need about half the steps that AdamW needs.

Method: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MOMENTUM = 0.95
WEIGHT_DECAY = 0.01
# Coefficients of the quintic Newton-Schulz iteration given by the method's author.
LINEAR, CUBIC, QUINTIC = 3.4445, -4.7750, 2.0315
ITERATIONS = 5
SMALLEST_NORM = 1e-7


class Muon:
    """Nesterov momentum whose direction is replaced by a nearly semi-orthogonal matrix of the same singular vectors.

    M ← m·M + (1 − m)·G;   U = orthogonalise((1 − m)·G + m·M);
    W ← (1 − lr·decay)·W − lr·√max(1, rows/columns)·U

    Args:
        matrices: two-dimensional parameters, each with a gradient at every step.
    """

    def __init__(self, matrices: Iterable[torch.nn.Parameter]) -> None:
        import torch

        self._matrices = list(matrices)
        self._momenta = [torch.zeros_like(matrix) for matrix in self._matrices]

    def step(self, learning_rate: float) -> None:
        """Update every matrix from its gradient."""
        import torch

        with torch.no_grad():
            for matrix, momentum in zip(self._matrices, self._momenta, strict=True):
                if matrix.grad is None:
                    raise ValueError("a matrix has no gradient; run backward before the step")
                momentum.lerp_(matrix.grad, 1.0 - MOMENTUM)
                update = orthogonalise(matrix.grad.lerp(momentum, MOMENTUM))
                rows, columns = matrix.shape
                matrix.mul_(1.0 - learning_rate * WEIGHT_DECAY)
                matrix.add_(update, alpha=-learning_rate * float(max(1.0, rows / columns)) ** 0.5)


def orthogonalise(matrix: torch.Tensor) -> torch.Tensor:
    """Return a matrix with the singular vectors of `matrix` and singular values near one.

    X ← a·X + (b·XXᵀ + c·(XXᵀ)²)·X, repeated, from X = matrix / ‖matrix‖_F. The singular values end between
    about 0.7 and 1.2, except that those far below the largest are left smaller.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x: torch.Tensor = wide / wide.norm().clamp(min=SMALLEST_NORM)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = LINEAR * x + (CUBIC * gram + QUINTIC * gram @ gram) @ x
    return x if matrix.shape[0] <= matrix.shape[1] else x.T
