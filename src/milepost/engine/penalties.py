"""Repetition, presence and frequency penalties over the tokens of a growing sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from milepost.sampling_params import SamplingParams


def wanted(params: SamplingParams) -> bool:
    """Whether any penalty of `params` changes a score."""
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


class TokenCounts:
    """The distinct tokens of one sequence and how often each was generated.

    It follows the sequence: each `update` reads only the tokens that are new, so that a step costs the same however
    long the sequence is. Memory grows with the distinct tokens, not with the vocabulary.
    """

    def __init__(self, num_prompt_tokens: int) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._num_read = 0
        self._slots: dict[int, int] = {}
        self._ids = np.empty(64, dtype=np.int64)
        self._counts = np.zeros(64, dtype=np.float32)

    def update(self, tokens: Sequence[int]) -> None:
        """Reads `tokens` (prompt and output) from where the last call stopped; reads all anew if they got shorter."""
        if len(tokens) < self._num_read:
            self._slots.clear()
            self._counts[:] = 0.0
            self._num_read = 0
        for position in range(self._num_read, len(tokens)):
            slot = self._slot(tokens[position])
            if position >= self._num_prompt_tokens:
                self._counts[slot] += 1.0
        self._num_read = len(tokens)

    def _slot(self, token: int) -> int:
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[slot] = token
        return slot

    def penalise(self, scores: npt.NDArray[np.float32], params: SamplingParams) -> None:
        """Changes `scores` fp32 [vocab] in place, in the order of vLLM's `apply_penalties`.

        A seen token's score is divided by the repetition penalty if positive and multiplied by it otherwise (Keskar et
        al. 2019, CTRL); a generated one then loses `frequency_penalty` x count and `presence_penalty` (OpenAI's API).
        """
        ids = self._ids[: len(self._slots)]
        counts = self._counts[: len(self._slots)]
        seen = scores[ids].astype(np.float64)
        with np.errstate(over="ignore"):  # an extreme repetition penalty gives inf, which the sampler reports
            if params.repetition_penalty != 1.0:
                seen = np.where(seen > 0, seen / params.repetition_penalty, seen * params.repetition_penalty)
            seen = seen - params.frequency_penalty * counts
            scores[ids] = seen - params.presence_penalty * (counts > 0)
