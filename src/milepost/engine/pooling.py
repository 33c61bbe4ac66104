"""A prompt as one vector: its hidden rows, after the model's last norm, made into one as they are computed."""

from __future__ import annotations

import torch

from milepost.engine.scheduler import Piece


def pooled_rows(piece: Piece, hidden: torch.Tensor) -> torch.Tensor | None:
    """What a piece's rows add, fp64 [size], where its sequence is wanted as a vector: their sum for the mean, else the
    prompt's last row. `hidden` [rows, size] ends with the piece's last row."""
    pooling = piece.seq.params.pooling
    if pooling == "mean":
        return hidden[len(hidden) - (piece.end - piece.start) :].sum(dim=0, dtype=torch.float64)
    return hidden[-1].double() if pooling == "last" and piece.samples else None


class Pooled:
    """Gathers what the pieces of one sequence add. In fp64, so that it hardly matters how a prompt was cut."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._sum: torch.Tensor | None = None

    def take(self, piece: Piece, rows: torch.Tensor | None) -> None:
        """A sequence that was preempted begins anew."""
        if rows is not None:
            before = self._sum if piece.start > 0 and piece.seq.params.pooling == "mean" else None
            self._sum = rows if before is None else before + rows

    def vector(self, pooling: str) -> list[float] | None:
        """In fp32; None before all rows were there."""
        if self._sum is None:
            return None
        found = self._sum / self._num_tokens if pooling == "mean" else self._sum
        return found.float().tolist()
