"""The second pass: the exact rank of every token under the teacher.

Legend: N tokens, V vocabulary columns, b responses of one part.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from nemo_uecr.audit.encoding import id_sequences
from nemo_uecr.audit.part_files import part_table, part_tensors
from nemo_uecr.audit.parts import record_files
from nemo_uecr.audit.progress import ProgressLine
from nemo_uecr.audit.schema import FORMAT, part_numbers, rank_path
from nemo_uecr.files import replace_file
from nemo_uecr.local.models import TokenModel
from nemo_uecr.local.scores import token_logits
from nemo_uecr.local.sequences import Sequences, micro_slices


def rank_parts(folder: Path, teacher: TokenModel, *, batch: int) -> None:
    """Rank the tokens of every part that has no ranks yet.

    ``rank_t = 1 + #{v : z_v > z_{y_t}}``, so that a top-1 match is rank 1 and ties share the better rank.

    Args:
        folder: the folder of scores.
        teacher: the model that scored them.
        batch: responses of one forward pass.
    """
    from safetensors.torch import save

    missing = [number for number in part_numbers(folder) if not rank_path(folder, number).is_file()]
    with ProgressLine("parts ranked", len(missing)) as progress:
        for number in missing:
            rank_N = torch.cat([_ranks(teacher, *each) for each in _micro_batches(folder, number, batch)])
            content = save({"rank": rank_N.int().contiguous()}, metadata={"format": FORMAT})
            record_files(folder, {rank_path(folder, number): content})
            replace_file(rank_path(folder, number), content)
            progress.advance(1)


def _micro_batches(folder: Path, number: int, batch: int) -> list[tuple[Sequences, slice]]:
    prompts = part_table(folder, number, ["prompt_ids"])["prompt_ids"]
    tensors = part_tensors(folder, number, ("offsets", "token_ids"))
    ids = torch.tensor_split(tensors["token_ids"], tensors["offsets"][1:-1])
    sequences = id_sequences(prompts, [own.tolist() for own in ids])
    groups = micro_slices(len(prompts), minibatch=len(prompts), microbatch=batch)
    return [(sequences, rows) for group in groups for rows in group]


@torch.no_grad()
def _ranks(teacher: TokenModel, sequences: Sequences, rows: slice) -> Tensor:
    micro = sequences.micro_batch(rows)
    ranks = []
    for _, logits_NV, target_N in token_logits(teacher, micro):
        own_N1 = logits_NV.gather(1, target_N.unsqueeze(1))
        ranks.append(1 + (logits_NV > own_N1).sum(dim=1).cpu())
    return torch.cat(ranks)
