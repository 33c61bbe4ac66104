import random
import struct
from hashlib import blake2b

import pytest

from milepost.cache.keys import KEY_BYTES, block_keys, common_blocks, common_tokens, pack, root_key

ROOT = root_key(b"model", "")


def packed(tokens: list[int]) -> bytearray:
    data = bytearray()
    pack(data, tokens)
    return data


def keys_of(tokens: list[int], root: bytes = ROOT) -> list[bytes]:
    return list(block_keys(packed(tokens), root))


def test_tokens_are_packed_as_they_come() -> None:
    data, tokens = bytearray(), list(range(2**32 - 50, 2**32))
    for num_tokens in (0, 1, 17, 17, 50):
        pack(data, tokens[:num_tokens])
        assert data == struct.pack(f"<{num_tokens}I", *tokens[:num_tokens])


@pytest.mark.parametrize("seed", range(50))
def test_ranges_are_compared_like_tokens(seed: int) -> None:
    rng = random.Random(seed)
    a = [rng.randrange(3) for _ in range(rng.randrange(400))]
    b = [*a[: rng.randrange(len(a) + 1)], *(rng.randrange(3) for _ in range(rng.randrange(200)))]
    equal = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_tokens(packed(a), packed(b)) == equal
    start, limit = rng.randrange(50), min(len(a), len(b))
    shifted = packed([9] * start + b)
    assert common_blocks(packed(a), shifted, start, limit) == equal // 16 * 16


def test_key_is_the_hash_of_parent_and_packed_tokens() -> None:
    tokens = list(range(100, 132))
    first = blake2b(ROOT + struct.pack("<16I", *tokens[:16]), digest_size=16).digest()
    second = blake2b(first + struct.pack("<16I", *tokens[16:]), digest_size=16).digest()
    assert keys_of(tokens) == [first, second]
    assert len(first) == KEY_BYTES


def test_only_full_blocks_have_a_key() -> None:
    assert [len(keys_of(list(range(n)))) for n in (0, 15, 16, 31, 32)] == [0, 0, 1, 1, 2]


def test_a_key_depends_on_every_token_before_its_end() -> None:
    tokens = list(range(48))
    for place in range(48):
        changed = tokens.copy()
        changed[place] += 1
        same = [a == b for a, b in zip(keys_of(tokens), keys_of(changed), strict=True)]
        assert same == [block < place // 16 for block in range(3)]


def test_order_of_tokens_counts() -> None:
    assert keys_of([1, 2] * 8) != keys_of([2, 1] * 8)


def test_fingerprint_and_scope_part_the_keys() -> None:
    roots = [root_key(b"model", ""), root_key(b"model", "a"), root_key(b"mode", "la"), root_key(b"", "model")]
    assert len({keys_of(list(range(16)), root)[0] for root in roots}) == len(roots)


def test_a_scope_may_be_any_text_that_json_can_carry() -> None:
    assert root_key(b"", "\ud800") != root_key(b"", "\ud801")


def test_hash_function_can_be_replaced() -> None:
    assert list(block_keys(packed(list(range(32))), b"root", hash_function=lambda data: b"same")) == [b"same"] * 2
