"""Answers as the plain loop gives them: the whole text read anew, in one piece, without a cache."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache

import torch
from client import Answer
from kinds import model_of

from milepost.engine.logprobs import cpu_rows, token_logprobs
from milepost.engine.plain import logits_of
from milepost.engine.sampler import choose
from milepost.request import Sequence as Sample
from milepost.sampling_params import SamplingParams

NUM_LOGPROBS = 5


@lru_cache(maxsize=64)
def last_logits(kind: str, dtype: torch.dtype, text: tuple[int, ...], num_rows: int) -> torch.Tensor:
    """Logits fp32 [num_rows, vocab] of the last rows of a text."""
    return logits_of(model_of(kind, dtype), text)[-num_rows:].clone()


class PlainLoop:
    """`apart`: in a process of its own, where nothing but this has ever run."""

    def __init__(self, apart: bool) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._process = ProcessPoolExecutor(1, mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,))
        self._apart = apart

    def last_logits(self, kind: str, dtype: torch.dtype, text: Sequence[int], num_rows: int) -> torch.Tensor:
        if not self._apart:
            return last_logits(kind, dtype, tuple(text), num_rows)
        rows = self._process.submit(_as_lists, kind, dtype, tuple(text), num_rows).result()
        return torch.tensor(rows, dtype=torch.float32)

    def check(self, answer: Answer, kind: str, dtype: torch.dtype) -> None:
        """Tokens, log probabilities and, where they can be seen, logits are the plain loop's, to the bit."""
        assert len(answer.tokens) == answer.ask.num_tokens
        logits = self.last_logits(kind, dtype, answer.text[:-1], len(answer.tokens))
        rows = cpu_rows(logits)
        if answer.logits is not None:
            assert torch.equal(answer.logits, logits), (
                f"{different(answer.logits, logits)} rows differ: {answer.report}"
            )
        sample = _sample(answer)
        for row, token, told in zip(rows, answer.tokens, answer.logprobs, strict=True):
            assert token == choose(row, sample), answer.report
            expected = {other: one.logprob for other, one in token_logprobs(row, token, NUM_LOGPROBS).items()}
            assert told == expected, answer.report
            sample.tokens.append(token)

    def close(self) -> None:
        self._process.shutdown()


def _as_lists(kind: str, dtype: torch.dtype, text: tuple[int, ...], num_rows: int) -> list[list[float]]:
    """Tensors would go through shared memory; a float32 is the same after a journey as a Python number."""
    return last_logits(kind, dtype, text, num_rows).tolist()


def _sample(answer: Answer) -> Sample:
    """What the sampler has to know: its generator counts by seed, sample and position."""
    ask = answer.ask
    params = SamplingParams(temperature=ask.temperature, max_tokens=ask.num_tokens)
    return Sample("", list(ask.prompt), len(ask.prompt), params, index=answer.index, seed=ask.seed)


def different(a: torch.Tensor, b: torch.Tensor) -> int:
    return int((a != b).any(dim=-1).sum())
