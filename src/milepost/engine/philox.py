"""Randomness that depends on nothing but (seed, sample index, position)."""

from __future__ import annotations

import numpy as np

_WORD = 2**64 - 1


def uniform(seed: int, index: int, position: int) -> float:
    """A number in [0, 1), uniform on multiples of 2^-53, for the token at `position` of sample `index`.

    Counter-based: Philox 4x64 with 10 rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), keyed
    by the seed, with the position and the index in the counter. Nothing is carried from one draw to the next.
    """
    key = np.array([seed & _WORD, 0], dtype=np.uint64)
    counter = np.array([0, position, index, 0], dtype=np.uint64)
    return float(int(np.random.Philox(key=key, counter=counter).random_raw()) >> 11) * 2.0**-53
