"""Sharing out the memory at start."""

import pytest

from milepost.config import EngineConfig
from milepost.engine.memory import MAX_BLOCKS, plan_memory, size
from milepost.errors import ConfigError
from milepost.specs import Buffer, LayerSpec, PagedKV, Recurrent

SPECS: list[tuple[LayerSpec, ...]] = [(PagedKV(num_kv_heads=2, head_dim=64),)] * 3
TOKEN_BYTES = 3 * 2 * 2 * 64 * 2
BLOCK_BYTES = 16 * TOKEN_BYTES


def plan(available_bytes: int, **settings: int) -> tuple[int, int]:
    """Blocks and context."""
    made = plan_memory(SPECS, 2, 1000, 12345, available_bytes, EngineConfig(**settings))  # type: ignore[arg-type]
    assert (made.block_bytes, made.checkpoint_bytes, made.fixed_bytes) == (BLOCK_BYTES, 0, 0)
    return made.cache_bytes // BLOCK_BYTES, made.max_model_len


def test_half_of_the_free_memory_at_most_and_no_more_than_books_can_be_kept_for() -> None:
    assert plan(BLOCK_BYTES * 400) == (200, 1000)
    assert plan(BLOCK_BYTES * MAX_BLOCKS * 3) == (MAX_BLOCKS, 1000)


def test_a_context_that_nobody_asked_for_shrinks_to_what_fits() -> None:
    assert plan(BLOCK_BYTES * 20) == (10, 160)


def test_a_context_that_was_asked_for_fits_or_is_refused() -> None:
    assert plan(BLOCK_BYTES * 20, max_model_len=160) == (10, 160)
    with pytest.raises(ConfigError, match=r"a context of 161 tokens takes 264 KiB.*240 KiB.*max-model-len 160"):
        plan(BLOCK_BYTES * 20, max_model_len=161)
    with pytest.raises(ConfigError, match="above the model's trained context of 1000"):
        plan(BLOCK_BYTES * 400, max_model_len=1001)


def test_a_size_in_bytes_is_kept_or_refused() -> None:
    assert plan(BLOCK_BYTES * 400, kv_cache_memory_bytes=BLOCK_BYTES * 300 - 1) == (299, 1000)
    with pytest.raises(ConfigError, match="only 1 MiB are free"):
        plan(2**20, kv_cache_memory_bytes=2**21)
    with pytest.raises(ConfigError, match="no room for a single block"):
        plan(2**20, kv_cache_memory_bytes=BLOCK_BYTES - 1)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**20, "5 MiB"), (2**40, "1,024.0 GiB")],
)
def test_sizes_for_people(num_bytes: int, text: str) -> None:
    assert size(num_bytes) == text


STATE = Recurrent(checkpoint=(Buffer("state", (256,)),), window=(Buffer("k", (256,)),))
STATE_BYTES = WINDOW_BYTES = 1024


def test_a_model_without_kv_has_no_context_that_memory_bounds() -> None:
    config = EngineConfig(kv_cache_memory_bytes=STATE_BYTES + 60 * STATE_BYTES)
    made = plan_memory([(STATE,)], 2, 2**20, 0, 2**40, config)
    assert (made.num_seqs, made.num_ends, made.block_bytes, made.max_model_len) == (10, 3, 0, 2**20)
    assert made.cache_bytes + made.fixed_bytes == config.kv_cache_memory_bytes
    assert "a token" not in made.line()
    assert "1 KiB a recurrent state" in made.line()
    assert "14 KiB for 10 running sequences and 3 ends of texts" in made.line()


def test_states_and_kv_and_windows_together_stay_within_the_budget() -> None:
    specs: list[tuple[LayerSpec, ...]] = [(STATE,), (PagedKV(num_kv_heads=2, head_dim=64),)]
    for budget in range(4 * STATE_BYTES + 2**14, 2**18, 7001):
        made = plan_memory(specs, 2, 1000, 0, 2**40, EngineConfig(kv_cache_memory_bytes=budget))
        assert 1 <= made.num_seqs <= 128
        assert made.cache_bytes + made.fixed_bytes == budget
        assert made.fixed_bytes == STATE_BYTES + (made.num_seqs + made.num_ends) * WINDOW_BYTES
        assert made.num_ends <= made.num_seqs
        assert made.num_ends * WINDOW_BYTES <= budget // 16
        assert made.num_seqs * (2 * STATE_BYTES + WINDOW_BYTES) <= max(budget // 2, 3 * STATE_BYTES)
    with pytest.raises(ConfigError, match="no room for the recurrent states"):
        plan_memory(specs, 2, 1000, 0, 2**40, EngineConfig(kv_cache_memory_bytes=3 * STATE_BYTES))
