"""Sharing out the memory at start."""

import pytest

from milepost.config import EngineConfig
from milepost.engine.memory import MAX_FREE_BLOCKS, plan_memory, size
from milepost.errors import ConfigError
from milepost.specs import Buffer, LayerSpec, PagedKV, Recurrent

SPECS: list[tuple[LayerSpec, ...]] = [(PagedKV(num_kv_heads=2, head_dim=64),)] * 3
TOKEN_BYTES = 3 * 2 * 2 * 64 * 2
BLOCK_BYTES = 16 * TOKEN_BYTES


def plan(available_bytes: int, **settings: int) -> tuple[int, int]:
    """Blocks and context."""
    made = plan_memory(SPECS, 2, 1000, 12345, available_bytes, EngineConfig(**settings))  # type: ignore[arg-type]
    assert made.block_bytes == BLOCK_BYTES
    return made.num_blocks, made.max_model_len


def test_half_of_the_free_memory_at_most_and_no_more_than_can_be_used() -> None:
    assert plan(BLOCK_BYTES * 400) == (200, 1000)
    assert plan(BLOCK_BYTES * 10**6, max_num_seqs=2) == (2 * 63, 1000)


def test_a_context_that_nobody_asked_for_shrinks_to_what_fits() -> None:
    assert plan(BLOCK_BYTES * 20) == (10, 160)


def test_a_context_that_was_asked_for_fits_or_is_refused() -> None:
    assert plan(BLOCK_BYTES * 20, max_model_len=160) == (10, 160)
    with pytest.raises(ConfigError, match=r"a context of 161 needs 264 KiB of KV cache.*240 KiB.*max-model-len 160"):
        plan(BLOCK_BYTES * 20, max_model_len=161)
    with pytest.raises(ConfigError, match="above the model's trained context of 1000"):
        plan(BLOCK_BYTES * 400, max_model_len=1001)


def test_a_size_in_bytes_is_kept_or_refused() -> None:
    assert plan(BLOCK_BYTES * 400, kv_cache_memory_bytes=BLOCK_BYTES * 300 - 1) == (299, 1000)
    with pytest.raises(ConfigError, match="only 1 MiB are free"):
        plan(2**20, kv_cache_memory_bytes=2**21)
    with pytest.raises(ConfigError, match="no room for a KV cache"):
        plan(2**20, kv_cache_memory_bytes=BLOCK_BYTES - 1)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**20, "5 MiB"), (2**40, "1,024.0 GiB")],
)
def test_sizes_for_people(num_bytes: int, text: str) -> None:
    assert size(num_bytes) == text


STATE = Recurrent(checkpoint=(Buffer("state", (256,)),), window=(Buffer("k", (256,)),))
CHECKPOINT_BYTES, SEQ_BYTES = 1024, 3 * 1024


def test_a_model_without_kv_gives_all_to_states_and_counts_no_blocks_as_memory() -> None:
    config = EngineConfig(kv_cache_memory_bytes=CHECKPOINT_BYTES + 10 * SEQ_BYTES)
    made = plan_memory([(STATE,)], 2, 2**20, 0, 2**40, config)
    assert (made.num_seqs, made.kv_bytes, made.max_model_len) == (10, 0, 2**20)
    assert made.state_bytes == CHECKPOINT_BYTES + 10 * SEQ_BYTES
    assert made.num_blocks == MAX_FREE_BLOCKS
    assert "KV" not in made.line()
    assert "states 31 KiB for 10 sequences" in made.line()


def test_states_and_kv_together_stay_within_the_budget() -> None:
    specs: list[tuple[LayerSpec, ...]] = [(STATE,), (PagedKV(num_kv_heads=2, head_dim=64),)]
    for budget in range(CHECKPOINT_BYTES + SEQ_BYTES + 2**14, 2**18, 7001):
        made = plan_memory(specs, 2, 1000, 0, 2**40, EngineConfig(kv_cache_memory_bytes=budget))
        assert 1 <= made.num_seqs <= 128
        assert budget - made.block_bytes < made.kv_bytes + made.state_bytes <= budget
        assert made.state_bytes == (1 + 2 * made.num_seqs + made.num_seqs) * CHECKPOINT_BYTES
    with pytest.raises(ConfigError, match="no room for the recurrent states"):
        plan_memory(specs, 2, 1000, 0, 2**40, EngineConfig(kv_cache_memory_bytes=SEQ_BYTES))
