"""What prompts cost in time: a model of prefill with three constants, and one server that takes them in turn.

    ms  =  fixed  +  per token x tokens computed  +  per pair x pairs of attention

A token that is computed at place i is paired with i + 1 tokens, resumed ones too, so the later part of a long prompt
costs more a token than the first. Resuming itself is taken to cost nothing: it copies one state.

The constants come from `milepost bench SHAPE --json`, so they are of one model on one machine. It measures prompts of
512 to 4,096 tokens; of much longer ones the model is an extrapolation, and what it says best is how policies compare.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from milepost.errors import ConfigError

Millis = NDArray[np.float64]

TERMS = ((1,), (1, 2), (0, 1), (0, 1, 2))
"""Constants that a fit may use, by their place in `Cost`; of two that fit equally well the first counts."""

EQUAL = 1e-12
HINT = "make the file with `milepost bench SHAPE --json > FILE`"


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds for each prompt, for each token that is computed, for each pair of attention; never negative.
    `source`: where they come from, for the report."""

    fixed_ms: float
    token_ms: float
    pair_ms: float
    source: str = ""

    def prefill_ms(self, start: ArrayLike, end: ArrayLike) -> Millis:
        """Of a prompt of `end` tokens that resumes `start`, numbers or arrays; nothing to compute costs nothing."""
        first, last = np.asarray(start, np.float64), np.asarray(end, np.float64)
        return np.where(last > first, _terms(first, last) @ np.array([self.fixed_ms, self.token_ms, self.pair_ms]), 0.0)

    @classmethod
    def from_bench(cls, path: Path, shape: str | None = None) -> Cost:
        """From a file that `milepost bench SHAPE --json` wrote. `shape`: which, where the file has several. ConfigError
        for a file without prefill measurements."""
        found: dict[str, list[tuple[float, float]]] = {}
        for name, length, ms in _prefills(path):
            if shape is None or name == shape:
                found.setdefault(name, []).append((length, ms))
        if not found:
            raise ConfigError(f"{path} has no prefill measurements{f' of {shape}' if shape else ''}", HINT)
        if len(found) > 1:
            raise ConfigError(
                f"{path} has measurements of {', '.join(sorted(found))}", "leave those of one shape in it"
            )
        ((name, points),) = found.items()
        lengths, times = np.array(points).T
        return cls(*_fit(lengths, times), f"milepost bench {name}")


# From 349, 342 and 334 tokens a second at 512, 2,048 and 4,096 tokens (docs/performance.md).
DEFAULT = Cost(0.0, 2.848, 7.17e-5, "Qwen3.5-0.8B in bfloat16 on two cores with AVX512-BF16")


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Times to first token of a trace, ms: their mean and quantiles. `busy`: share of the time in which the server
    computes prompts; near 1 the queue only grows, and the times say how long the trace is rather than how good."""

    mean: float
    p25: float
    p50: float
    p75: float
    p99: float
    busy: float


def first_tokens(time_ms: Millis, prefill_ms: Millis) -> FirstTokens:
    """One server that computes prompts one at a time, in the order in which they came: `time_ms`, ascending. Answers
    take no time here, so a real server is busier; and it can have several prompts in one step."""
    if not len(time_ms):
        return FirstTokens(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    done = np.cumsum(prefill_ms)
    # Each starts when it comes or when the one before is done: since the last idle moment, nothing was lost.
    finish = done + np.maximum.accumulate(time_ms - (done - prefill_ms))
    times = finish - time_ms
    p25, p50, p75, p99 = map(float, np.quantile(times, (0.25, 0.5, 0.75, 0.99)))
    span = float(finish[-1] - time_ms[0])
    return FirstTokens(float(times.mean()), p25, p50, p75, p99, busy=float(done[-1]) / span if span else 0.0)


def _terms(start: Millis, end: Millis) -> Millis:
    """What the three constants are multiplied with, in the last dimension."""
    tokens = end - start
    return np.stack(np.broadcast_arrays(np.ones_like(tokens), tokens, tokens * (start + end + 1) / 2), axis=-1)


def _fit(lengths: Millis, times: Millis) -> tuple[float, float, float]:
    """The constants, none negative, whose times are closest: by squares of relative errors, so that short prompts count
    as much as long ones. Of so few constants each choice that are not 0 can be tried."""
    relative = _terms(np.zeros_like(lengths), lengths) / times[:, None]
    best, least = np.zeros(3), np.inf
    for terms in TERMS:
        found = np.linalg.lstsq(relative[:, terms], np.ones_like(times))[0]
        error = float(((relative[:, terms] @ found - 1) ** 2).sum())
        if (found >= 0).all() and error < least - EQUAL:
            best, least = np.zeros(3), error
            best[list(terms)] = found
    return float(best[0]), float(best[1]), float(best[2])


def _prefills(path: Path) -> Iterator[tuple[str, float, float]]:
    """Shape, tokens and milliseconds of each prefill measurement."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is no text'}", HINT) from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            length = re.fullmatch(r"prefill ([1-9]\d*)", row["name"])
            if length is None:
                continue
            shape, tokens, rate = str(row["shape"]), float(length[1]), float(row["value"])
            if not 0 < rate < math.inf:
                raise ValueError(rate)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ConfigError(f"{path}, line {number} is no measurement: {line.strip()[:60]}", HINT) from error
        yield shape, tokens, 1000 * tokens / rate
