"""A trace's requests as sequences that the cache takes: one block of the trace is one grid step of the cache.

    trace         |  512 tokens  |  512 tokens  | 200    |      blocks, and what is left over
    cache         |  64 tokens   |  64 tokens   | 25     |      the last 25 are nobody else's
    KV of each    bytes of 512 tokens                           checkpoints as they are

So a state can be kept after each block of the trace, and nowhere else. Counts of tokens go back to the trace's scale.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from milepost.cache.memory import Memory
from milepost.cache.retention import Retention
from milepost.request import Sequence
from milepost.sampling_params import SamplingParams
from milepost.sim.sizes import Sizes
from milepost.sim.trace import NONE, Trace, TraceRequest
from milepost.specs import BLOCK_SIZE, CHUNK

PARAMS = SamplingParams()
IDS_PER_BLOCK = CHUNK * 4 // 8
"""A block's tokens are its 8-byte id, over and over: two tokens each, and equal only where ids are."""


@dataclass(frozen=True, slots=True)
class Scale:
    """`block_size`: tokens of the trace that `CHUNK` tokens of the cache stand for."""

    block_size: int

    def memory(self, limit_bytes: int, sizes: Sizes) -> Memory:
        block_bytes = max(round(sizes.kv_bytes_per_token * self.block_size * BLOCK_SIZE / CHUNK), 1)
        return Memory(limit_bytes, block_bytes if sizes.kv_bytes_per_token else 0, sizes.checkpoint_bytes)

    def retention(self, interval: int | None) -> Retention:
        """`interval` in the trace's tokens, as near as whole blocks come."""
        return Retention(max(1, round(interval / self.block_size)) * CHUNK if interval else interval)

    def to_cache(self, num_tokens: int) -> int:
        return num_tokens * CHUNK // self.block_size

    def to_trace(self, num_tokens: int) -> int:
        return num_tokens * self.block_size // CHUNK

    def sequence(self, number: int, request: TraceRequest) -> Sequence:
        """The `number`-th request. `tokens` only counts them; they stand in `packed`, and the cache reads no other."""
        rest = self.to_cache(request.input_length - len(request.blocks) * self.block_size)
        ids = np.empty(len(request.blocks) * IDS_PER_BLOCK + -(-rest // 2), np.int64)
        body = len(request.blocks) * IDS_PER_BLOCK
        ids[:body].reshape(-1, IDS_PER_BLOCK)[:] = request.blocks[:, None]
        ids[body:] = request.answer[0] if len(request.answer) else -1 - number  # ids of traces are not negative
        num_tokens = len(request.blocks) * CHUNK + rest
        return Sequence(
            request_id=str(number),
            tokens=[0] * num_tokens,
            num_prompt_tokens=num_tokens,
            params=PARAMS,
            arrival_time=request.time_ms / 1000,
            cache_salt=request.scope,
            boundaries=tuple(place * CHUNK for place in request.boundaries),
            packed=bytearray(ids.data)[: num_tokens * 4] if rest % 2 else bytearray(ids.data),
        )

    def answer(self, seq: Sequence, number: int, request: TraceRequest, limit: int) -> None:
        """Lengthens `seq`, of the `number`-th request, by its answer but for the last token, which is never read: if
        the trace knows of what that consists, and `limit` tokens hold it. Its first block may begin in the prompt."""
        num_tokens, ids = request.input_length + request.output_length, request.all_blocks
        whole = replace(request, input_length=num_tokens, blocks=ids, answer=NONE)
        if len(request.answer) and (longer := self.sequence(number, whole)).num_tokens <= limit:
            seq.tokens, seq.packed = longer.tokens[:-1], longer.packed


def playable(trace: Trace) -> Trace:
    """`trace` in blocks that are no shorter than a grid step: states are nowhere closer."""
    return trace if trace.block_size >= CHUNK else trace.coarse(-(-CHUNK // trace.block_size))
