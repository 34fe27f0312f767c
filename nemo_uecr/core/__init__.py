"""The mathematics: pure functions of tensors that import only torch.

Shape letters: B = responses, P = prompts (groups), T = tokens (padded), N = tokens (packed), b x t = a block.
Log-probabilities and entropies are in nats. Group statistics are computed in float64 and stored as the scores are.
"""
