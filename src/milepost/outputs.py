"""What a request gives back: vLLM's result objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from milepost.request import MissReason


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log probability (natural) of a token at a place, its rank among all (1 = most likely) and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


TokenLogprobs = Mapping[int, Logprob]
"""Of one place: the chosen token first, then the asked number of most likely ones, each by id."""


@dataclass(slots=True)
class CompletionOutput:
    """One sample. `finish_reason` is None while it runs, then "stop", "length", "abort" or "error"."""

    index: int
    text: str = ""
    token_ids: Sequence[int] = ()
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request on the engine's clock, in seconds; None until it happened."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0


@dataclass(frozen=True, slots=True)
class CacheReport:
    """What a request's first sample found in the prefix cache when it began.

    Of its `num_prompt_tokens`, the keys and values of the first `num_matched_tokens` were there; the first
    `num_resumed_tokens` need not be computed. `reason` and `position` are those of `Miss`, None where all that is known
    was resumed.
    """

    num_prompt_tokens: int
    num_matched_tokens: int
    num_resumed_tokens: int
    reason: MissReason | None = None
    position: int | None = None

    @property
    def num_recomputed_tokens(self) -> int:
        """The gap: matched, and computed again because there was no state to go on from."""
        return self.num_matched_tokens - self.num_resumed_tokens


@dataclass(frozen=True, slots=True)
class PrewarmOutput:
    """A prompt that was computed and nothing more. `id` names it: the same for the same tokens in the same scope.

    Of its `num_tokens`, the first `num_cached_tokens` were known before; the first `num_resident_tokens` are now, and a
    longer prompt resumes there. `pinned`: they stay until they are unpinned.
    """

    id: str
    num_tokens: int
    num_cached_tokens: int
    num_resident_tokens: int
    pinned: bool


@dataclass(frozen=True, slots=True)
class PinnedPrefix:
    """`num_bytes`: of its keys and values and of one recurrent state, counted whole also where prefixes share."""

    id: str
    num_tokens: int
    num_bytes: int


@dataclass(slots=True)
class RequestOutput:
    """State of one request: so far, new, or final, as `SamplingParams.output_kind` says.

    `prompt_logprobs[0]` is None (nothing comes before the first token). `num_cached_tokens` counts the prompt tokens
    that were not computed again; `cache` says why not more (None until the request has begun). `embedding`: of a prompt
    that is wanted as a vector (`SamplingParams.pooling`), in fp32 and of any length. `error` is set when the
    request failed inside; its samples then end with "error".
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0
    cache: CacheReport | None = None
    metrics: RequestMetrics | None = None
    embedding: list[float] | None = None
    error: Exception | None = field(default=None, repr=False)
