"""What a start says of the cache."""

from __future__ import annotations

import pytest
from tiny_engine import MakeEngine, add, drain, random_prompts

from milepost.cache.memory import Memory
from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.retention import Retention
from milepost.config import EngineConfig
from milepost.engine.build import build_engine, caching_line
from milepost.errors import ConfigError
from milepost.sampling_params import SamplingParams

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


def test_a_policy_that_no_engine_takes_is_told_before_anything_is_read() -> None:
    with pytest.raises(ConfigError, match="--prefix-cache-policy cannot be 'lru'"):
        build_engine(EngineConfig(model="nowhere", prefix_cache_policy="lru"))


def test_another_policy_changes_no_answer(make_engine: MakeEngine) -> None:
    answers = []
    for policy in ("thinning", "returns"):
        engine = make_engine(num_blocks=30, prefix_cache_policy=policy)
        for number, prompt in enumerate(2 * random_prompts(6, 90)):
            add(engine, str(number), prompt, SamplingParams(temperature=0, max_tokens=9))
        answers.append({name: output.outputs[0].token_ids for name, output in drain(engine).items()})
        assert engine.scheduler.cache.stats.evicted_blocks > 0
    assert answers[0] == answers[1]
