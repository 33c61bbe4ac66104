"""Endless training batches: conversations made on the fly, all in a batch of one length: hardly any padding."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch

from tools.tiny.tasks import KINDS, training_conversation
from tools.tiny.tokenizer import ChatEncoder

STEP = 64
"""Lengths are multiples of this."""


@dataclass(frozen=True)
class Batch:
    """`inputs` int64 [rows, length]. Where an answer's next token is learnt: `places`, int64 indices into the flattened
    inputs, `targets`, the token that comes after each, and `kinds`, the task of each as an index into KINDS."""

    inputs: torch.Tensor
    places: torch.Tensor
    targets: torch.Tensor
    kinds: torch.Tensor


def batch_of(encoder: ChatEncoder, step: int, num_tokens: int, max_length: int, seed: int, pad: int) -> Batch:
    """The batch of this step: about `num_tokens` tokens in rows of one length, up to `max_length`, at least a quarter
    of it. The same arguments give the same batch."""
    rng = Random(f"batch {seed} {step}")
    length = rng.randrange(max(STEP, max_length // 4), max_length + 1, STEP)
    inputs, places, targets, kinds = [], list[int](), list[int](), list[int]()
    for row in range(max(1, round(num_tokens / length))):
        ids, learnt = _with_an_answer(encoder, rng, length)
        inputs.append(ids[:length] + [pad] * (length - len(ids)))
        for i in range(1, len(ids)):
            if learnt[i] is None:
                continue
            places.append(row * length + i - 1)
            targets.append(ids[i])
            kinds.append(KINDS.index(learnt[i]))
    return Batch(*(torch.tensor(part) for part in (inputs, places, targets, kinds)))


def _with_an_answer(encoder: ChatEncoder, rng: Random, length: int) -> tuple[list[int], list[str | None]]:
    """A conversation cut to `length` inputs and the target after the last: token ids, and of which task each that is
    learnt is. A story can be so long that the first question lies behind the cut: then another is drawn."""
    while True:
        conversation = training_conversation(rng.getrandbits(48), length)
        ids, learnt = encoder.learnt_tasks(conversation)
        if any(learnt[: length + 1]):
            return ids[: length + 1], learnt[: length + 1]
