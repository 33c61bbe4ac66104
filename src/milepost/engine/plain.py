"""The plain loop: one sequence, every token read anew for each new one. Slow and obvious: the oracle of the engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import torch

from milepost.engine.pools import allocate_pools
from milepost.models.base import Model
from milepost.ops import ForwardBatch, Rows
from milepost.specs import BLOCK_SIZE, CHUNK

Choose = Callable[[torch.Tensor], int]


def greedy(logits: torch.Tensor) -> int:
    """The most likely token of logits [vocab]; ties to the lower id."""
    return int(logits.argmax())


@torch.inference_mode()
def logits_of(model: Model, tokens: Sequence[int]) -> torch.Tensor:
    """Logits fp32 [len(tokens), vocab] of one sequence, read from its first token in one piece, into fresh memory."""
    device = next(model.parameters()).device
    num_blocks = -(-len(tokens) // BLOCK_SIZE)
    pools = allocate_pools(model.layer_specs(), num_blocks, 1, 1, model.dtype, device)
    rows = Rows(0, len(tokens), range(num_blocks), grid_slots=[-1] * (len(tokens) // CHUNK))
    batch = ForwardBatch.pack([rows], pools.kv, pools.recurrent, device)
    return model.logits(model(torch.tensor(tokens, device=device), batch))


def generate(
    model: Model, prompt: Sequence[int], max_tokens: int, eos: Collection[int] = (), choose: Choose = greedy
) -> Iterator[int]:
    """Yields up to `max_tokens` tokens after `prompt`, the end token included if one comes."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        token = choose(logits_of(model, tokens)[-1])
        yield token
        if token in eos:
            return
        tokens.append(token)
