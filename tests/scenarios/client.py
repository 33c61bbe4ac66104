"""What a scenario talks to: `Client`, over an engine in this process or over HTTP.

    client = serve(step_tokens=100)        an engine and its caller; everything is checked on the way
    answer = client.ask(prompt)            send tokens, wait for the answer
    talk = client.begin(prompt, 200)       send tokens, go on while it generates: talk.wait(n), talk.leave()
    answer.resumed                         prompt tokens that were not computed again

Each answer is compared with the plain loop, to the bit, and its report with what the client knows to have been sent.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from kinds import VOCAB_SIZE
from known_texts import BLOCK, KnownTexts

from milepost.engine.engine import Engine

MAX_COMPARED = 64
"""Where more texts part in one place, the cache tells the longest common part of some of them."""


class Refused(Exception):
    """The request was turned down, and the server says why: a 4xx."""


class Failed(Exception):
    """The request failed inside: a 5xx."""


@dataclass(frozen=True)
class Ask:
    """A request: `num_samples` answers of `num_tokens` each. `who` sends it, `salt` narrows whom it shares with;
    `breakpoints`: after so many tokens it expects prompts to part."""

    prompt: list[int]
    num_tokens: int
    num_samples: int = 1
    temperature: float = 0.0
    seed: int = 0
    who: str = "one"
    salt: str = ""
    breakpoints: tuple[int, ...] = ()


@dataclass(frozen=True)
class Report:
    """What a request found in the cache; `cached` is `usage.prompt_tokens_details.cached_tokens`."""

    cached: int
    matched: int
    resumed: int
    recomputed: int
    reason: str | None
    position: int | None


@dataclass(frozen=True)
class Answer:
    """One sample. `logprobs`: of each token its own and the five most likely ones. `logits`: fp32 [tokens, vocab]; None
    over HTTP."""

    ask: Ask
    index: int
    tokens: list[int]
    logprobs: list[dict[int, float]]
    report: Report
    logits: torch.Tensor | None = None

    @property
    def resumed(self) -> int:
        return self.report.resumed

    @property
    def recomputed(self) -> int:
        """Prompt tokens that were computed: the gap, and what was new."""
        return len(self.ask.prompt) - self.report.resumed

    @property
    def text(self) -> list[int]:
        return self.ask.prompt + self.tokens


@dataclass(frozen=True)
class CacheNumbers:
    """What GET /cache says. Bytes, tokens, counts. `interval`: "dense", a number, or None without recurrent layers."""

    interval: str | int | None
    grid: int | None
    token_bytes: int
    checkpoint_bytes: int
    budget: int
    used: int
    resident: int
    kv_used: int
    state_used: int
    checkpoints: int
    queries: int
    matched: int
    hits: int
    misses: Mapping[str, int]


class Pending(Protocol):
    """A request under way."""

    @property
    def tokens(self) -> list[int]:
        """Of the first sample, so far."""
        ...

    def wait(self, num_tokens: int) -> None:
        """Until the first sample has so many, or has ended."""
        ...

    def leave(self) -> None:
        """The caller hangs up."""
        ...

    def finish(self) -> list[Answer]:
        """Waits for the end. Raises `Refused` or `Failed`."""
        ...


class Wire(Protocol):
    """The way to an engine. `over`: its name."""

    over: str
    engine: Engine

    def begin(self, ask: Ask) -> Pending: ...

    def let_run(self, num_steps: int) -> None:
        """Until so many more steps have run, or nothing is left to do."""
        ...

    def cache(self) -> CacheNumbers: ...

    def metrics(self) -> str: ...

    def close(self) -> None: ...


Check = Callable[[Answer], None]


@dataclass
class Client:
    """`check` compares an answer with the plain loop. `plenty`: memory is, so the reports can be foretold."""

    wire: Wire
    check: Check
    plenty: bool
    dense: bool
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        cache = self.wire.engine.scheduler.cache
        self.unit, self.has_states = cache.unit, cache.has_states
        self.known = KnownTexts(cache.unit, has_kv=cache.memory.block_bytes > 0)

    def text(self, num_tokens: int) -> list[int]:
        """Tokens that nobody has seen."""
        return [self.rng.randrange(VOCAB_SIZE - 1) for _ in range(num_tokens)]

    def floor(self, num_tokens: int) -> int:
        """The last place from which such a model can resume."""
        return num_tokens // self.unit * self.unit

    def resumes(self, resumed: int, num_tokens: int) -> bool:
        """Whether that is right for so many tokens in common: at the grid point below, or behind it to the token."""
        return self.floor(num_tokens) <= resumed <= num_tokens

    def ask(self, prompt: list[int], num_tokens: int = 2, **options: object) -> Answer:
        return self.ask_samples(prompt, num_tokens, **options)[0]

    def ask_samples(self, prompt: list[int], num_tokens: int = 2, **options: object) -> list[Answer]:
        return self.begin(prompt, num_tokens, **options).answers()

    def ask_at_once(self, prompts: list[list[int]], num_tokens: int = 2) -> list[Answer]:
        """All are sent before the first answer is waited for."""
        return [talk.answers()[0] for talk in [self.begin(prompt, num_tokens) for prompt in prompts]]

    def begin(self, prompt: list[int], num_tokens: int = 2, **options: object) -> Talk:
        ask = Ask(list(prompt), num_tokens, **options)  # type: ignore[arg-type]
        return Talk(self, ask, self.wire.begin(ask))


class Talk:
    """A request that the client has begun."""

    def __init__(self, client: Client, ask: Ask, pending: Pending) -> None:
        self._client, self.ask, self._pending = client, ask, pending
        self._scope = f"{ask.who}/{ask.salt}"
        self._at_least, self._num_texts = client.known.surely(self._scope, ask.prompt), client.known.num_texts
        client.known.begin(self._scope, self, lambda: ask.prompt + pending.tokens)

    @property
    def text(self) -> list[int]:
        """Prompt and answer, as far as it has come."""
        return self.ask.prompt + self._pending.tokens

    def wait(self, num_tokens: int) -> Talk:
        self._pending.wait(num_tokens)
        return self

    def leave(self) -> None:
        self._pending.leave()

    def answers(self) -> list[Answer]:
        """One for each sample, checked."""
        client = self._client
        answers = self._pending.finish()
        for answer in answers:
            client.check(answer)
        self._check_report(answers[0].report)
        client.known.end(self._scope, self, [answer.text[:-1] for answer in answers])
        return answers

    def answer(self) -> Answer:
        return self.answers()[0]

    def _check_report(self, report: Report) -> None:
        """In every scenario the report of the hit is right."""
        client, prompt, at_least = self._client, self.ask.prompt, self._at_least
        at_most = client.known.perhaps(self._scope, prompt, self)
        assert report.cached == report.resumed <= report.matched <= max(at_most.matched, at_most.common), report
        assert report.recomputed == report.matched - report.resumed, report
        behind = report.resumed % client.unit > 0
        assert not behind or client.has_states, report
        assert report.resumed <= len(prompt) - 1, report
        if client.plenty:
            assert report.matched >= at_least.matched, (report, at_least)
            if client.dense:
                assert report.resumed >= client.floor(report.matched), report
            if at_least == at_most and client.dense and self._num_texts < MAX_COMPARED:
                whole = report.resumed >= (len(prompt) - 1) // BLOCK * BLOCK
                why = (None, None) if behind and whole else at_most.why_behind if behind else at_most.why
                assert (report.reason, report.position) == why, report
