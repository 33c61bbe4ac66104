"""A measured engine's side: load, say so, then answer each JSON line on stdin with one on stdout.

A request is {"op": NAME, ...its arguments}; an answer {"seconds": s, "work": w}, where work is tokens, operations or
requests as the op says, or {"error": TEXT}. An adaptor answers the ops that it has methods for:

    prefill(tokens)                      a fresh prompt, to its first token; work: its tokens
    decode(batch, prompt, tokens)        steps in which each of `batch` answers grows; work: tokens drawn
    burst(requests, prompt, answer)      all at once, to the last answer's end; work: tokens drawn
    reuse(tokens, shared)                a prompt of which the first `shared` tokens were sent before; work: 1;
                                         cached: how many of them were not computed again, or null
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

OPS = ("prefill", "decode", "burst", "reuse", "gemm", "outside_kernels")
FIRST_PROMPT = 16


@dataclass(frozen=True)
class Settings:
    """What every adaptor is told. `options`: NAME=VALUE pairs that only it knows."""

    model: Path
    threads: int
    prefix_caching: bool
    context: int
    options: dict[str, str]


def settings(arguments: list[str] | None = None) -> Settings:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefix-caching", action="store_true")
    parser.add_argument("--context", type=int, default=4608)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args(arguments)
    options = dict(pair.split("=", 1) for pair in given.set)
    return Settings(given.model, given.threads, given.prefix_caching, given.context, options)


def main(make: Callable[[Settings], Any]) -> None:
    """`make` loads the engine. Its first token is computed before it is said to be ready."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # engines print: what they say goes beside the answers
    try:
        engine = make(settings())
        engine.prefill(FIRST_PROMPT)
        print(json.dumps({"ready": engine.about}), file=answers)
    except BaseException as error:
        traceback.print_exc()
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers)
        return
    for line in sys.stdin:
        print(json.dumps(answer(engine, json.loads(line))), file=answers)


def answer(engine: Any, request: dict[str, Any]) -> dict[str, Any]:
    op = request.pop("op")
    if op not in OPS or not hasattr(engine, op):
        return {"error": "it has no such thing"}
    try:
        return getattr(engine, op)(**request)
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


class Prompts:
    """Random token ids: a prompt is never a repeat by chance. The first and last hundred ids are left out, since
    engines keep their special tokens there."""

    def __init__(self, vocab_size: int, seed: int | None = None) -> None:
        self._low, self._high = 100, vocab_size - 100
        self._rng = random.Random(seed)

    def fresh(self, num_tokens: int) -> list[int]:
        return [self._rng.randrange(self._low, self._high) for _ in range(num_tokens)]


class Stepped(Protocol):
    """An engine that is stepped by hand. `step` returns the number of a request for each token that it drew; `cached`
    is how many tokens of the last prompt were not computed again, where the engine tells."""

    about: dict[str, Any]
    cached: int | None

    def add(self, number: int, ids: list[int], max_tokens: int) -> None: ...
    def step(self) -> list[int]: ...
    def busy(self) -> bool: ...


class Runs:
    """The ops of an engine that is stepped by hand: the same clock and the same loop for each of them."""

    def __init__(self, engine: Stepped, prompts: Prompts, clock: Callable[[], float] = time.perf_counter) -> None:
        self.engine, self.prompts, self.clock = engine, prompts, clock
        self.about = engine.about
        self._number = 0

    def prefill(self, tokens: int) -> dict[str, Any]:
        return {"seconds": self._one(self.prompts.fresh(tokens)), "work": tokens}

    def decode(self, batch: int, prompt: int, tokens: int) -> dict[str, Any]:
        for _ in range(batch):
            self._add(self.prompts.fresh(prompt), tokens + 1)
        drawn: Counter[int] = Counter()
        while len(drawn) < batch:
            drawn.update(self.engine.step())
        before, start = drawn.total(), self.clock()
        while self.engine.busy():
            drawn.update(self.engine.step())
        return {"seconds": self.clock() - start, "work": drawn.total() - before}

    def burst(self, requests: int, prompt: int, answer: int) -> dict[str, Any]:
        prompts = [self.prompts.fresh(prompt) for _ in range(requests)]
        start, drawn = self.clock(), 0
        for ids in prompts:
            self._add(ids, answer)
        while self.engine.busy():
            drawn += len(self.engine.step())
        return {"seconds": self.clock() - start, "work": drawn}

    def reuse(self, tokens: int, shared: int) -> dict[str, Any]:
        first = self.prompts.fresh(tokens)
        second = first[:shared] + self.prompts.fresh(tokens - shared)
        self._one(first)
        return {"seconds": self._one(second), "work": 1, "cached": self.engine.cached}

    def _one(self, ids: list[int]) -> float:
        """Seconds from the request to its first token, which is its last."""
        start = self.clock()
        self._add(ids, 1)
        while self.engine.busy():
            self.engine.step()
        return self.clock() - start

    def _add(self, ids: list[int], max_tokens: int) -> None:
        self._number += 1
        self.engine.add(self._number, ids, max_tokens)
