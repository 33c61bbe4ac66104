"""Runs one step's rows through the model and draws the next tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from milepost.engine.logprobs import Decode, prompt_logprobs
from milepost.engine.pooling import pooled_rows
from milepost.engine.pools import Pools
from milepost.engine.replay import Replays
from milepost.engine.sampler import Sampled, Sampler
from milepost.engine.scheduler import Piece
from milepost.errors import RequestFailed
from milepost.models.base import Model
from milepost.ops import ForwardBatch, Rows
from milepost.outputs import TokenLogprobs
from milepost.request import Sequence
from milepost.specs import BLOCK_SIZE

LOGPROB_ROWS = 64
"""Prompt rows whose logits exist at once: a vocabulary of 250,000 takes 1 MB a row."""


@dataclass(frozen=True)
class PieceResult:
    """`sampled` is None for a piece that ends before its sequence does, and where no token is wanted; `prompt_logprobs`
    by position; `pooled`: see `pooling.py`. Each may be what failed instead, and that is this sequence's alone."""

    piece: Piece
    sampled: Sampled | Exception | None = None
    prompt_logprobs: dict[int, TokenLogprobs] | Exception = field(default_factory=dict)
    pooled: torch.Tensor | Exception | None = None


class Runner:
    """Holds the model and the memory of its states; knows nothing of requests beyond their rows."""

    def __init__(
        self, model: Model, pools: Pools, sampler: Sampler, decode: Decode | None, replays: Replays | None = None
    ) -> None:
        self.model, self.pools, self.sampler, self.decode, self.replays = model, pools, sampler, decode, replays
        self.device = next(model.parameters()).device

    @torch.inference_mode()
    def run(self, pieces: tuple[Piece, ...]) -> list[PieceResult]:
        """One forward pass over all `pieces`; a result for each, in their order. Sets `num_sound` of a sequence where a
        row is not finite."""
        self._copy(pieces)
        drawing = [i for i, piece in enumerate(pieces) if piece.samples and piece.seq.params.max_tokens != 0]
        replayed = self.replays.run(pieces) if self.replays and len(drawing) == len(pieces) else None
        hidden, logits = replayed or (self._forward(pieces), None)
        _mark_unsound(pieces, hidden)
        ends, total = [], 0
        for piece in pieces:
            total += piece.end - piece.start
            ends.append(total)
        if logits is None and drawing:
            logits = self.model.logits(hidden[[ends[i] - 1 for i in drawing]])
        drawn = [] if logits is None else self.sampler.sample(logits, [pieces[i].seq for i in drawing])
        sampled = dict(zip(drawing, drawn, strict=True))
        sampled |= {i: _not_finite(piece.seq) for i, piece in enumerate(pieces) if piece.seq.num_sound is not None}
        rows = [(piece, hidden[:end]) for piece, end in zip(pieces, ends, strict=True)]
        return [
            PieceResult(piece, sampled.get(i), self._prompt_logprobs(piece, own), _pooled(piece, own))
            for i, (piece, own) in enumerate(rows)
        ]

    def _copy(self, pieces: tuple[Piece, ...]) -> None:
        """What sequences go on from that resume between grid points, before any row is written."""
        copies = [(piece, piece.seq.copies) for piece in pieces if piece.seq.copies is not None]
        windows = [(copy.window_slot, piece.seq.window_slot) for piece, copy in copies]
        blocks = [
            (copy.block, piece.seq.block_table[piece.start // BLOCK_SIZE])
            for piece, copy in copies
            if copy.block is not None
        ]
        self.pools.copy(windows, blocks)

    def _forward(self, pieces: tuple[Piece, ...]) -> torch.Tensor:
        tokens = [token for piece in pieces for token in piece.seq.tokens[piece.start : piece.end]]
        rows = [_rows(piece) for piece in pieces]
        batch = ForwardBatch.pack(rows, self.pools.kv, self.pools.recurrent, self.device)
        hidden: torch.Tensor = self.model(torch.tensor(tokens, dtype=torch.int64, device=self.device), batch)
        return hidden

    def _prompt_logprobs(self, piece: Piece, hidden: torch.Tensor) -> dict[int, TokenLogprobs] | Exception:
        """Of the prompt tokens that follow the piece's rows; `hidden` ends with the piece's last row."""
        try:
            return self._read_prompt_logprobs(piece, hidden)
        except Exception as error:
            return error

    def _read_prompt_logprobs(self, piece: Piece, hidden: torch.Tensor) -> dict[int, TokenLogprobs]:
        seq, count = piece.seq, piece.seq.params.prompt_logprobs
        last = min(piece.end, seq.num_prompt_tokens - 1)
        if count is None or seq.index > 0 or piece.start >= last:
            return {}
        own = hidden[len(hidden) - (piece.end - piece.start) :]
        found: dict[int, TokenLogprobs] = {}
        for start in range(piece.start, last, LOGPROB_ROWS):
            end = min(start + LOGPROB_ROWS, last)
            logits = self.model.logits(own[start - piece.start : end - piece.start])
            rows = prompt_logprobs(logits, seq.tokens[start + 1 : end + 1], count, self.decode)
            found.update(zip(range(start + 1, end + 1), rows, strict=True))
        return found


def _pooled(piece: Piece, hidden: torch.Tensor) -> torch.Tensor | Exception | None:
    try:
        return pooled_rows(piece, hidden)
    except Exception as error:
        return error


def _mark_unsound(pieces: tuple[Piece, ...], hidden: torch.Tensor) -> None:
    """A row with NaN or Inf has left the same in its KV and states: from the first one on, nothing is to be shared."""
    finite = _finite(hidden)
    if finite.all():
        return
    row = 0
    for piece in pieces:
        unsound = (~finite[row : row + piece.end - piece.start]).nonzero()
        if len(unsound):
            piece.seq.num_sound = piece.start + int(unsound[0])
        row += piece.end - piece.start


def _finite(rows: torch.Tensor) -> torch.Tensor:
    """Which rows [rows, size] have neither NaN nor Inf: no value whose exponent is all ones. `isfinite` takes 50 times
    as long, a hundredth of a long prompt's time."""
    whole = {2: torch.int16, 4: torch.int32}[rows.dtype.itemsize]
    infinity = torch.tensor(torch.inf, dtype=rows.dtype).view(whole)
    sign = torch.iinfo(whole).max
    return (rows.view(whole) & sign).amax(dim=-1) < infinity


def _not_finite(seq: Sequence) -> RequestFailed:
    return RequestFailed(
        f"the model's results are not finite from token {seq.num_sound} on",
        "the weights may be damaged, or the dtype too narrow for this prompt: try --dtype bfloat16 or float32",
    )


def _rows(piece: Piece) -> Rows:
    seq = piece.seq
    return Rows(piece.start, piece.end, seq.block_table, seq.state_slot, seq.window_slot, seq.grid_slots)
