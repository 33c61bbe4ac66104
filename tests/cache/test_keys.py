import struct
from hashlib import blake2b

import pytest

from milepost.cache.keys import KEY_BYTES, extend_keys, pack_block, root_key

ROOT = root_key(b"model", "")


def keys_of(tokens: list[int], root: bytes = ROOT) -> list[bytes]:
    keys: list[bytes] = []
    extend_keys(keys, tokens, len(tokens) // 16, root)
    return keys


def test_key_is_the_hash_of_parent_and_packed_tokens() -> None:
    tokens = list(range(100, 132))
    first = blake2b(ROOT + struct.pack("<16I", *tokens[:16]), digest_size=16).digest()
    second = blake2b(first + struct.pack("<16I", *tokens[16:]), digest_size=16).digest()
    assert keys_of(tokens) == [first, second]
    assert len(first) == KEY_BYTES


def test_keys_extend_as_tokens_grow() -> None:
    tokens = list(range(80))
    keys: list[bytes] = []
    for num_tokens in (0, 15, 16, 17, 48, 50, 80):
        extend_keys(keys, tokens[:num_tokens], num_tokens // 16, ROOT)
        assert len(keys) == num_tokens // 16
    assert keys == keys_of(tokens)


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
    keys: list[bytes] = []
    extend_keys(keys, list(range(32)), 2, b"root", hash_function=lambda data: b"same")
    assert keys == [b"same", b"same"]


def test_only_full_blocks_have_a_key() -> None:
    with pytest.raises(struct.error):
        pack_block(list(range(31)), 1)
