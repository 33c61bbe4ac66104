"""A batch's gradients, found by several threads that each take the next few of its conversations.

Each thread has a copy of the model whose weights are the same memory and whose gradients are its own; a thread that is
held up takes fewer conversations, and the others do not wait for more than one piece.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import torch
import torch.nn.functional as F

from tools.tiny.batches import Batch
from tools.tiny.model import TinyModel

PIECE_TOKENS = 1024


@dataclass(frozen=True)
class _Piece:
    """Some rows of a batch. `places` count from its own first row; `answers`: which of the batch's places these are."""

    inputs: torch.Tensor
    attends: torch.Tensor | None
    places: torch.Tensor
    targets: torch.Tensor
    answers: slice


class Gradients:
    """Adds the gradients of a batch's mean loss to those of `model`'s parameters."""

    def __init__(self, model: TinyModel, num_threads: int, narrow: bool) -> None:
        """`narrow`: products in bf16."""
        self._model, self._narrow = model, narrow
        self._copies = [model, *(_sharing(model) for _ in range(num_threads - 1))]
        self._threads = ThreadPoolExecutor(num_threads, "gradients", torch.set_num_threads, (1,))

    def find(self, batch: Batch, attends: torch.Tensor | None) -> tuple[float, torch.Tensor]:
        """The loss, and the logits fp32 [answer tokens, vocab]. `attends`: as in `TinyModel.hidden`."""
        pieces: SimpleQueue[_Piece] = SimpleQueue()
        for piece in _pieces(batch, attends):
            pieces.put(piece)
        logits = torch.empty(len(batch.targets), self._model.shape.vocab_size)
        shares = [self._threads.submit(self._work, model, pieces, logits) for model in self._copies]
        loss = sum(share.result() for share in shares) / len(batch.targets)
        for other in self._copies[1:]:
            _move_gradients(other, self._model)
        for weight in self._model.parameters():
            if weight.grad is not None:
                weight.grad /= len(batch.targets)
        return loss, logits

    def _work(self, model: TinyModel, pieces: SimpleQueue[_Piece], logits: torch.Tensor) -> float:
        """The sum of the losses of the pieces that were left for this thread."""
        total = 0.0
        while True:
            try:
                piece = pieces.get_nowait()
            except Empty:
                return total
            with torch.autocast("cpu", torch.bfloat16, enabled=self._narrow):
                rows = model.hidden(piece.inputs, piece.attends).flatten(0, 1)[piece.places]
            found = model.logits(rows.float())
            loss = F.cross_entropy(found, piece.targets, reduction="sum")
            torch.autograd.backward(loss)
            logits[piece.answers] = found.detach()
            total += loss.item()


def _pieces(batch: Batch, attends: torch.Tensor | None) -> Iterator[_Piece]:
    rows, length = batch.inputs.shape
    step = max(1, PIECE_TOKENS // length)
    for row in range(0, rows, step):
        first, last = torch.searchsorted(batch.places, torch.tensor([row * length, (row + step) * length])).tolist()
        answers = slice(first, last)
        yield _Piece(
            batch.inputs[row : row + step],
            None if attends is None else attends[row : row + step],
            batch.places[answers] - row * length,
            batch.targets[answers],
            answers,
        )


def _sharing(model: TinyModel) -> TinyModel:
    """A copy whose weights are the same memory."""
    found = copy.deepcopy(model)
    for own, shared in zip(found.parameters(), model.parameters(), strict=True):
        own.data = shared.data
    return found


def _move_gradients(source: TinyModel, target: TinyModel) -> None:
    for own, shared in zip(source.parameters(), target.parameters(), strict=True):
        if own.grad is not None:
            shared.grad = own.grad if shared.grad is None else shared.grad.add_(own.grad)
            own.grad = None
