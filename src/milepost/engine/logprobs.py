"""Log probabilities as vLLM reports them: of the raw logits, before penalties, bias and temperature."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from milepost.errors import RequestFailed
from milepost.outputs import Logprob

Decode = Callable[[int], str]
"""The text of one token."""


def cpu_rows(logits: torch.Tensor) -> npt.NDArray[np.float32]:
    """Logits [n, vocab] as a float32 array on the CPU; shares their memory where it can, so it is to be read only."""
    return logits.detach().to("cpu", torch.float32).numpy()


def check_finite(logits: npt.NDArray[np.float32]) -> None:
    """Raises `RequestFailed` for a row [vocab] with NaN or +inf, or with nothing but -inf."""
    if not np.isfinite(logits.max()):
        raise RequestFailed(
            "the model's output is not finite", "check the model's files, or load it with another --dtype"
        )


def largest(scores: npt.NDArray[np.floating], k: int) -> npt.NDArray[np.int64]:
    """Indices of the k largest of `scores` [n], in ascending index order; of equal scores the lower index is taken."""
    n = len(scores)
    if k >= n:
        return np.arange(n)
    return above_or_first(scores, np.partition(scores, n - k)[n - k], k)


def above_or_first(scores: npt.NDArray[np.floating], cut: np.floating, k: int) -> npt.NDArray[np.int64]:
    """The k first indices in the order (score descending, index ascending), in ascending index order.

    `cut` must be the k-th largest score.
    """
    chosen = scores > cut
    chosen[np.flatnonzero(scores == cut)[: k - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def token_logprobs(
    logits: npt.NDArray[np.float32], chosen: int, k: int, decode: Decode | None = None
) -> dict[int, Logprob]:
    """Of logits [vocab], the chosen token first, then the k most likely ones (k = -1: all), each once.

    Rank 1 is the most likely; equal ones rank by id. Sums run in float64. Raises `RequestFailed` if not finite.
    """
    check_finite(logits)
    exact = logits.astype(np.float64)
    best = exact.max()
    normaliser = best + np.log(np.exp(exact - best).sum())
    k = len(exact) if k < 0 else min(k, len(exact))
    top = largest(logits, k) if k else np.empty(0, dtype=np.int64)
    top = top[np.argsort(-logits[top], kind="stable")]

    def entry(token: int, rank: int) -> Logprob:
        return Logprob(float(exact[token] - normaliser), rank, decode(token) if decode else None)

    value = exact[chosen]
    rank = 1 + int(np.count_nonzero(exact > value)) + int(np.count_nonzero(exact[:chosen] == value))
    found = {chosen: entry(chosen, rank)}
    for rank, token in enumerate(top.tolist(), start=1):
        if token != chosen:
            found[token] = entry(token, rank)
    return found


def prompt_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], k: int, decode: Decode | None = None
) -> list[dict[int, Logprob]]:
    """For each row of logits [rows, vocab] what it said about the token that came next, as in `token_logprobs`.

    `token_ids[i]` is the prompt token after row i. The first prompt token has no row before it: its place (None in
    vLLM's list) is the caller's to add.
    """
    rows = cpu_rows(logits)
    return [token_logprobs(row, token, k, decode) for row, token in zip(rows, token_ids, strict=True)]
