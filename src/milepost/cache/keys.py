"""Names of prefixes: tokens are hashed in blocks of 16, each hash chained to the one before it (vLLM's scheme).

The key of block i therefore names all tokens from 0 to 16 i + 15, and where they may be used: the chain's root carries
the fingerprint (weights, dtypes, kernels: what decides the bits of KV) and the scope (who may share).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from hashlib import blake2b

from milepost.specs import BLOCK_SIZE

KEY_BYTES = 16

HashFunction = Callable[[bytes], bytes]

_PACKED = struct.Struct(f"<{BLOCK_SIZE}I")


def digest(data: bytes) -> bytes:
    """BLAKE2b of `data`, 16 bytes."""
    return blake2b(data, digest_size=KEY_BYTES).digest()


def pack_block(tokens: Sequence[int], block: int) -> bytes:
    """Token ids of full block `block`, little-endian uint32 [BLOCK_SIZE]; struct.error if the block is not full."""
    return _PACKED.pack(*tokens[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE])


def root_key(fingerprint: bytes, scope: str, hash_function: HashFunction = digest) -> bytes:
    """The key before block 0. Lengths are part of the hash, so no fingerprint and scope run into each other."""
    # A client's salt may hold half a surrogate pair (JSON allows it), which strict UTF-8 refuses.
    encoded = scope.encode("utf-8", "surrogatepass")
    return hash_function(len(fingerprint).to_bytes(8, "little") + fingerprint + encoded)


def extend_keys(
    keys: list[bytes], tokens: Sequence[int], num_blocks: int, root: bytes, hash_function: HashFunction = digest
) -> None:
    """Appends to `keys` those of the next full blocks of `tokens`, until there are `num_blocks`."""
    parent = keys[-1] if keys else root
    for block in range(len(keys), num_blocks):
        parent = hash_function(parent + pack_block(tokens, block))
        keys.append(parent)
