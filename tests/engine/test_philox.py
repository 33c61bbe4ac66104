"""The draw's randomness: fixed for ever by (seed, index, position)."""

import itertools

from milepost.engine.philox import uniform

PINNED: dict[tuple[int, int, int], float] = {
    (0, 0, 0): 0.011546754286331562,
    (1, 0, 0): 0.3035680343067586,
    (0, 1, 0): 0.6436367332217984,
    (0, 0, 1): 0.21185954403345741,
    (2**64 - 1, 127, 1_000_000): 0.6284874398662066,
}


def test_values_are_pinned() -> None:
    """Answers of seeded requests must not change between versions."""
    assert [uniform(seed, index, position) for seed, index, position in PINNED] == list(PINNED.values())


def test_every_part_of_the_key_counts() -> None:
    draws = {uniform(*key) for key in itertools.product(range(10), range(10), range(10))}
    assert len(draws) == 1000


def test_negative_seeds_are_taken_modulo_two_to_the_64() -> None:
    assert uniform(-1, 0, 5) == uniform(2**64 - 1, 0, 5)
    assert uniform(-(2**63), 0, 5) == uniform(2**63, 0, 5)


def test_range_and_mean() -> None:
    draws = [uniform(7, 0, position) for position in range(4000)]
    assert all(0 <= u < 1 for u in draws)
    assert abs(sum(draws) / 4000 - 0.5) < 0.02
    assert abs(sum(draws[i] * draws[i + 1] for i in range(3999)) / 3999 - 0.25) < 0.02
