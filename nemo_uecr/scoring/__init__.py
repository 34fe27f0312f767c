"""Log-probability and full-vocabulary entropy of given tokens, in one pass over the logits.

`dense` is the definition. `vocab_parallel` is the same over a process group that shards the vocabulary.
`fused_linear` starts from hidden states and the output weight and never forms the `[N, V]` logits.
"""

from __future__ import annotations
