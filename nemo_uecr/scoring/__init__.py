"""Log-probability and full-vocabulary entropy of given tokens, in one pass over the logits.

`dense` is the definition; it takes a `records.VocabShard` where a process group shards the vocabulary.
"""

from __future__ import annotations
