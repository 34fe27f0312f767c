"""Log-probability and full-vocabulary entropy of given tokens, in one pass over the logits.

`dense` starts from logits and is the definition; `fused_linear` starts from hidden states and the output weight and
never forms the `[N, V]` logits. Both take a `records.VocabShard` where a process group shards the vocabulary.
"""

from __future__ import annotations
