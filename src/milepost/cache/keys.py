"""Packed tokens, which are compared to find a prefix, and chained keys, which name one to the outside.

Within a process nothing is hashed: prefixes are found by their tokens. Keys are for what leaves it (other tiers,
recordings). Tokens are hashed in blocks of 16, each hash chained to the one before it (vLLM's scheme), so that the key
of block i names all tokens from 0 to 16 i + 15, and where they may be used: the chain's root carries the fingerprint
(weights, dtypes, kernels: what decides the bits of KV) and the scope (who may share).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b

from milepost.specs import BLOCK_SIZE

KEY_BYTES = 16
TOKEN_BYTES = 4
BLOCK_BYTES = BLOCK_SIZE * TOKEN_BYTES
"""Of the tokens of one block, packed."""

HashFunction = Callable[[bytes], bytes]


def digest(data: bytes) -> bytes:
    """BLAKE2b of `data`, 16 bytes."""
    return blake2b(data, digest_size=KEY_BYTES).digest()


def pack(packed: bytearray, tokens: Sequence[int]) -> None:
    """Lengthens `packed`, the first tokens as little-endian uint32, to all of `tokens`."""
    done = len(packed) // TOKEN_BYTES
    if done < len(tokens):
        added = array("I", tokens[done:])
        if sys.byteorder == "big":
            added.byteswap()
        packed += added.tobytes()


def common_blocks(a: bytes | bytearray, b: bytes | bytearray, start: int, limit: int) -> int:
    """How many tokens of whole blocks are equal in packed `a` from 0 on and packed `b` from token `start` on, among
    the first `limit` tokens, which both must have. Ranges are compared, not tokens: bytes read at most twice."""
    shift = start * TOKEN_BYTES
    num_bytes = limit // BLOCK_SIZE * BLOCK_BYTES
    if a[:num_bytes] == b[shift : shift + num_bytes]:
        return limit // BLOCK_SIZE * BLOCK_SIZE
    equal, unequal = 0, num_bytes // BLOCK_BYTES
    while unequal - equal > 1:
        middle = (equal + unequal) // 2
        low, high = equal * BLOCK_BYTES, middle * BLOCK_BYTES
        if a[low:high] == b[shift + low : shift + high]:
            equal = middle
        else:
            unequal = middle
    return equal * BLOCK_SIZE


def common_tokens(a: bytes | bytearray, b: bytes | bytearray) -> int:
    """How many tokens two packed sequences have in common at their start."""
    num_tokens = min(len(a), len(b)) // TOKEN_BYTES
    equal = common_blocks(a, b, 0, num_tokens)
    while equal < num_tokens and a[equal * 4 : equal * 4 + 4] == b[equal * 4 : equal * 4 + 4]:
        equal += 1
    return equal


def root_key(fingerprint: bytes, scope: str, hash_function: HashFunction = digest) -> bytes:
    """The key before block 0. Lengths are part of the hash, so no fingerprint and scope run into each other."""
    # A client's salt may hold half a surrogate pair (JSON allows it), which strict UTF-8 refuses.
    encoded = scope.encode("utf-8", "surrogatepass")
    return hash_function(len(fingerprint).to_bytes(8, "little") + fingerprint + encoded)


def prefix_id(scope: str, tokens: Sequence[int]) -> str:
    """The name of a prefix in its scope: the same for the same tokens, and nobody guesses it without the scope's."""
    packed = bytearray()
    pack(packed, tokens)
    return f"prefix-{digest(root_key(b'', scope) + packed).hex()}"


def block_keys(
    packed: bytes | bytearray, root: bytes, hash_function: HashFunction = digest, block_size: int = BLOCK_SIZE
) -> Iterator[bytes]:
    """Keys of the full blocks of packed tokens, from block 0 on; `root` is the key before it. `block_size`: tokens."""
    parent, num_bytes = root, block_size * TOKEN_BYTES
    for start in range(0, len(packed) - num_bytes + 1, num_bytes):
        parent = hash_function(parent + bytes(packed[start : start + num_bytes]))
        yield parent
