"""What a start says of the cache."""

from __future__ import annotations

import pytest

from milepost.cache.memory import Memory
from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.retention import Retention
from milepost.engine.build import caching_line

KIB = 1024


@pytest.mark.parametrize(
    ("memory", "interval", "told"),
    [
        (Memory(640 * KIB, 32 * KIB), None, ["at each 16 tokens; 640 KiB at 2 KiB a token"]),
        (
            Memory(640 * KIB, 32 * KIB, 100 * KIB),
            None,
            [
                "grid of 64 tokens",
                "messages end",
                "breakpoints",
                "every 64 tokens (dense)",
                "640 KiB at 2 KiB a token and 100 KiB a state",
            ],
        ),
        (Memory(640 * KIB, 0, 100 * KIB), 128, ["every 128 tokens", "640 KiB at 100 KiB a state"]),
    ],
)
def test_one_line_has_policy_budget_and_sizes(memory: Memory, interval: int | None, told: list[str]) -> None:
    line = caching_line(PrefixCache(memory, num_seqs=1, retention=Retention(interval)))
    assert line.startswith("prefix caching: on")
    assert [part for part in told if part not in line] == []


def test_off() -> None:
    assert caching_line(PrefixCache(Memory(640, 32), num_seqs=1, enabled=False)) == "prefix caching: off, as asked"
