"""How the tokens of one request are chosen: vLLM's names and defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from milepost.errors import RequestError
from milepost.structured_outputs import StructuredOutputsParams

MAX_NUM_SAMPLES = 128
MAX_LOGPROBS = 20
MAX_NUM_STOPS = 64
MAX_STOP_LENGTH = 4096
MAX_NUM_STOP_TOKEN_IDS = 1024
MAX_SEED = 2**64 - 1
POOLINGS = ("last", "mean")


class RequestOutputKind(Enum):
    """What each yielded `RequestOutput` holds: all so far, what is new, or only the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass(frozen=True)
class SamplingParams:
    """Sampling of one request; raises `RequestError` (a 400 over HTTP) for a value that cannot work.

    Defaults are vLLM's. `top_k` 0 or -1 means all; `seed` None lets the engine draw one; `max_tokens` None means as
    many as the context holds, 0 that the prompt is computed, and cached, and nothing is generated; `logprobs` and
    `prompt_logprobs` are numbers of alternatives (-1: all of them).
    `skip_reading_prefix_cache`: the request computes its whole prompt, and still leaves it for others.
    `shown_special_token_ids`: special tokens that become text though others are skipped: tags that a reader looks for.
    `pooling`, with `max_tokens` 0: the prompt is wanted as a vector: "last", its last hidden row, or "mean", of all.
    `structured_outputs`: what the answer must look like. It ends once nothing can follow, before `min_tokens` too.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: Mapping[int, float] | None = None
    shown_special_token_ids: frozenset[int] = frozenset()
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    skip_reading_prefix_cache: bool | None = None
    structured_outputs: StructuredOutputsParams | None = None
    pooling: str | None = None
    stops: tuple[str, ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        stop = self.stop
        stops = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
        object.__setattr__(self, "stops", stops)
        self._check_numbers()
        self._check_counts()
        self._check_stops()
        self._check_bias()
        if self.pooling is not None:
            self._check_pooling()
        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise _bad("structured_outputs", "structured_outputs must be a StructuredOutputsParams")

    @property
    def greedy(self) -> bool:
        """Temperatures this small would overflow the division: they mean the most likely token."""
        return self.temperature < 1e-5

    @property
    def needs_every_row(self) -> bool:
        """Whether the logits of all prompt rows are wanted."""
        return self.prompt_logprobs is not None

    @property
    def reads_prefix_cache(self) -> bool:
        """Whether cached prefixes may be resumed: not where every row is needed. What is read is left for others in any
        case."""
        return not (self.needs_every_row or self.pooling == "mean" or self.skip_reading_prefix_cache)

    def _check_numbers(self) -> None:
        ranges = {
            "temperature": (0.0, 1e6),
            "top_p": (0.0, 1.0),
            "min_p": (0.0, 1.0),
            "presence_penalty": (-2.0, 2.0),
            "frequency_penalty": (-2.0, 2.0),
            "repetition_penalty": (0.0, 1e6),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise _bad(name, f"{name} must be a finite number, got {value!r}")
            if not low <= value <= high:
                raise _bad(name, f"{name} must be between {low:g} and {high:g}, got {value!r}")
        if self.top_p == 0.0:
            raise _bad("top_p", "top_p must be above 0")
        if self.repetition_penalty == 0.0:
            raise _bad("repetition_penalty", "repetition_penalty must be above 0")

    def _check_counts(self) -> None:
        ranges: dict[str, tuple[int, float]] = {
            "n": (1, MAX_NUM_SAMPLES),
            "top_k": (-1, math.inf),
            "seed": (-(2**63), MAX_SEED),
            "max_tokens": (0, math.inf),
            "min_tokens": (0, math.inf),
            "logprobs": (-1, math.inf),
            "prompt_logprobs": (-1, math.inf),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if value is None and name in ("seed", "max_tokens", "logprobs", "prompt_logprobs"):
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise _bad(name, f"{name} must be a whole number, got {value!r}")
            if not low <= value <= high:
                limit = f"at least {low}" if high == math.inf else f"between {low} and {high}"
                raise _bad(name, f"{name} must be {limit}, got {value}")
        if self.skip_reading_prefix_cache not in (None, False, True):
            raise _bad("skip_reading_prefix_cache", "skip_reading_prefix_cache must be true or false")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _bad("min_tokens", f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}")

    def _check_pooling(self) -> None:
        if self.pooling not in POOLINGS:
            raise _bad("pooling", f"pooling must be one of {', '.join(POOLINGS)}, got {self.pooling!r}")
        if self.max_tokens != 0 or self.n != 1:
            raise _bad("pooling", "pooling needs max_tokens 0 and n 1: a vector is all that there will be")

    def _check_stops(self) -> None:
        if len(self.stops) > MAX_NUM_STOPS:
            raise _bad("stop", f"at most {MAX_NUM_STOPS} stop strings, got {len(self.stops)}")
        if not all(isinstance(text, str) and text for text in self.stops):
            raise _bad("stop", "stop strings must be non-empty text")
        if any(len(text) > MAX_STOP_LENGTH for text in self.stops):
            raise _bad("stop", f"stop strings can have at most {MAX_STOP_LENGTH} characters")
        if self.stops and not self.detokenize:
            raise _bad("stop", "stop strings need detokenize=True")
        if len(self.stop_token_ids or ()) > MAX_NUM_STOP_TOKEN_IDS:
            raise _bad("stop_token_ids", f"at most {MAX_NUM_STOP_TOKEN_IDS} stop_token_ids")
        for token in self.stop_token_ids or ():
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise _bad("stop_token_ids", f"stop_token_ids must be token ids, got {token!r}")

    def _check_bias(self) -> None:
        for token, bias in (self.logit_bias or {}).items():
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise _bad("logit_bias", f"logit_bias keys must be token ids, got {token!r}")
            if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
                raise _bad("logit_bias", f"logit_bias of token {token} must be between -100 and 100, got {bias!r}")


def _bad(param: str, message: str) -> RequestError:
    return RequestError(message, f"change {param}", param=param)
