"""From logits to the next token, one sequence at a time: nothing here depends on who else is in the batch.

The order of operations is vLLM's: what a grammar forbids becomes impossible; log probabilities of the logits, otherwise
raw; logit_bias and min_tokens; penalties; then the most likely token if greedy, else temperature, min_p, top_k, top_p
and a draw. Equal scores always go to the lower id.
Rows are read with numpy, each in one thread, so neither the batch nor the number of threads can change a sum; it
is also the faster way (an argmax over 50,000 scores takes 2 us, a fifth of what one row costs in torch's).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from milepost import request
from milepost.engine import penalties
from milepost.engine.logprobs import Decode, above_or_first, check_finite, cpu_rows, largest, token_logprobs
from milepost.engine.philox import uniform
from milepost.errors import RequestError
from milepost.outputs import Logprob
from milepost.sampling_params import SamplingParams

Scores = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Sampled:
    """A drawn token; where `SamplingParams.logprobs` asks for them, its log probability and those of others.

    `complete`: nothing can follow it by the answer's grammar, and it is no end token itself.
    """

    token_id: int
    logprob: float | None = None
    logprobs: dict[int, Logprob] | None = None
    complete: bool = False


class Sampler:
    """Draws the next token of each sequence.

    `eos_token_ids` are the model's end tokens; they cannot be drawn before `min_tokens`. `decode` gives a token's text
    for log probabilities (None: they carry no text). Between calls it keeps only the token counts of sequences
    with penalties that were in the last call; they are a cache, and can be lost without changing a result.
    """

    def __init__(self, eos_token_ids: Collection[int] = (), decode: Decode | None = None) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._decode = decode
        self._counts: dict[request.Sequence, penalties.TokenCounts] = {}

    def sample(self, logits: torch.Tensor, seqs: Sequence[request.Sequence]) -> list[Sampled | Exception]:
        """Logits fp32 [n, vocab], row i for `seqs[i]`, whose next token goes to position `len(seqs[i].tokens)`.

        An error while sampling one sequence is returned in its place. The logits are not changed.
        """
        rows = cpu_rows(logits)
        if len(rows) != len(seqs):
            raise ValueError(f"{len(rows)} rows of logits for {len(seqs)} sequences")
        known, self._counts = self._counts, {}
        results: list[Sampled | Exception] = []
        for row, seq in zip(rows, seqs, strict=True):
            try:
                if penalties.wanted(seq.params):
                    self._counts[seq] = known.get(seq) or penalties.TokenCounts(seq.num_prompt_tokens)
                results.append(self._sample(row, seq))
            except Exception as error:  # whatever it is, it is this sequence's alone
                results.append(error)
        return results

    def _sample(self, logits: Scores, seq: request.Sequence) -> Sampled:
        check_finite(logits)
        if seq.constraint is not None:
            logits = masked(logits, seq.constraint.allowed(seq.tokens, seq.num_prompt_tokens))
        token = choose(self._adjusted(logits, seq), seq)
        complete = self._completes(token, seq)
        if seq.params.logprobs is None:
            return Sampled(token, complete=complete)
        logprobs = token_logprobs(logits, token, seq.params.logprobs, self._decode)
        return Sampled(token, logprobs[token].logprob, logprobs, complete)

    def _completes(self, token: int, seq: request.Sequence) -> bool:
        if seq.constraint is None or not seq.constraint.take(token):
            return False
        return token not in self._eos_token_ids or seq.params.ignore_eos

    def _adjusted(self, logits: Scores, seq: request.Sequence) -> Scores:
        """The scores to choose from: a changed copy of `logits`, or itself if nothing changes it."""
        params = seq.params
        too_short = seq.num_output_tokens < params.min_tokens
        if not (params.logit_bias or too_short or seq in self._counts):
            return logits
        scores = logits.copy()
        if params.logit_bias:
            scores[list(params.logit_bias)] += np.array(list(params.logit_bias.values()), dtype=np.float32)
        if too_short:
            ends = (*self._eos_token_ids, *(params.stop_token_ids or ()))
            scores[[token for token in ends if token < len(scores)]] = -np.inf
        if seq in self._counts:
            self._counts[seq].update(seq.tokens)
            self._counts[seq].penalise(scores, params)
        if not np.isfinite(scores.max()):
            raise RequestError(
                "no token can be drawn: logit_bias, min_tokens or penalties leave no finite score",
                "change logit_bias, min_tokens, stop_token_ids or the penalties",
            )
        return scores


def masked(logits: Scores, allowed: bytes) -> Scores:
    """A copy of `logits` [vocab] with -inf for each token whose bit in `allowed` (least significant first) is 0."""
    bits = np.unpackbits(np.frombuffer(allowed, dtype=np.uint8), count=len(logits), bitorder="little")
    return np.where(bits, logits, np.float32(-np.inf))


def choose(scores: Scores, seq: request.Sequence) -> int:
    """The token for the next position, from scores [vocab] whose largest is finite."""
    if seq.params.greedy:
        return int(scores.argmax())
    ids, weights = candidates(scores, seq.params)
    return int(ids[draw(weights, uniform(seq.seed, seq.index, len(seq.tokens)))])


def candidates(scores: Scores, params: SamplingParams) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Ids in ascending order that temperature, min_p, top_k and top_p leave, and their weights (the largest is 1).

    top_p is of the probability that min_p and top_k leave, as in vLLM. top_k comes first here: what it and
    min_p keep are both the upper end of one order, so that either order keeps the same.
    """
    if 0 < params.top_k < len(scores):
        ids = largest(scores, params.top_k)
        scores = scores[ids]
    else:
        ids = np.arange(len(scores))
    exact = scores.astype(np.float64)  # fresh and contiguous: exp may take another path for strided memory
    weights = np.exp((exact - exact.max()) / params.temperature)
    if params.min_p > 0:
        kept = np.flatnonzero(weights >= params.min_p)
        ids, weights = ids[kept], weights[kept]
    if params.top_p < 1:
        kept = nucleus(weights, params.top_p)
        ids, weights = ids[kept], weights[kept]
    return ids, weights


def nucleus(weights: npt.NDArray[np.float64], top_p: float) -> npt.NDArray[np.int64]:
    """Indices, ascending, of the fewest largest weights that make up `top_p` of their sum (Holtzman et al. 2020).

    All n weights below (1 - top_p) sum / n together cannot reach 1 - top_p: they are left out before sorting. Should
    rounding make the rest fall short, everything is sorted; both ways give the same result.
    """
    total = weights.sum()
    target = top_p * total
    for floor in ((1 - top_p) * total / len(weights), 0.0):
        ascending = weights[weights >= floor]
        ascending.sort()
        ordered = ascending[::-1]
        num_kept = int(np.searchsorted(np.cumsum(ordered), target)) + 1
        if num_kept <= len(ordered):
            break
    num_kept = min(num_kept, len(ordered))
    return above_or_first(weights, ordered[num_kept - 1], num_kept)


def draw(weights: npt.NDArray[np.float64], u: float) -> int:
    """Index by the inverse of the cumulative distribution at u in [0, 1); a weight of 0 is never drawn."""
    cumulative = np.cumsum(weights)
    return int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
