"""The mathematics: pure functions of tensors that import only torch; this package itself loads it on first use.

Legend: B responses, P prompts (groups), T tokens (padded). Log-probabilities and entropies are in nats. Group
statistics are computed in float64; results have the dtype of the scores.
"""

from __future__ import annotations

#: Added to every group standard deviation (the paper's audits state the value).
EPSILON = 1e-6
#: R^T and the OPD advantage clip the gap to this many nats on both sides.
GAP_CLIP = 5.0
#: The teacher distinguishes the responses of a group if its R^T ranges over more than this, nats (the paper's eps_gap).
GAP_RANGE = 0.05
