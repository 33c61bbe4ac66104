"""Where a scenario is played, and the engines and clients that it asks for."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from zlib import crc32

from client import Answer, Client, Wire
from engine_wire import EngineWire
from engines import Budget, Setup, Watch, build
from http_wire import HttpWire
from kinds import KINDS
from plain_answers import PlainLoop

from milepost.engine.engine import Engine

PLENTY, PLENTY_FOR_SMALL = Budget(100_000, 3_000), Budget(30_000, 800)


@dataclass(frozen=True)
class Place:
    """Where a scenario is played. `small`: shortened, for the sample."""

    kind: str
    over: str
    small: bool

    def __str__(self) -> str:
        return f"{self.kind}-{self.over}" + "-small" * self.small


def sample(scenario: str) -> list[Place]:
    """By its name, so that it stays the same: one kind over the engine, and for each third scenario one over HTTP."""
    kinds, number = list(KINDS), crc32(scenario.encode())
    places = [Place(kinds[number % 6], "engine", True)]
    if number // 6 % 3 == 0:
        places.append(Place(kinds[(number + 3) % 6], "http", True))
    return places


class Serve:
    """Makes clients for a scenario: `serve()`, or `serve(step_tokens=7, budget=Budget(8192, 16))`."""

    def __init__(self, place: Place, plain: PlainLoop, stack: ExitStack) -> None:
        self.kind, self.over, self.small = place.kind, place.over, place.small
        self._plain, self._stack = plain, stack
        self.watch: Watch

    def __call__(self, *, budget: Budget | None = None, **settings: object) -> Client:
        plenty = PLENTY_FOR_SMALL if self.small else PLENTY
        setup = Setup(self.kind, budget or plenty, **settings)  # type: ignore[arg-type]
        engine = build(setup)
        self.watch = Watch(engine)
        wire: Wire = EngineWire(engine) if self.over == "engine" else HttpWire(engine, self.watch)
        self._stack.callback(_check_end, engine)
        self._stack.callback(wire.close)

        def check(answer: Answer) -> None:
            self._plain.check(answer, self.kind, setup.dtype)

        return Client(wire, check, plenty=budget is None, dense=setup.interval is None)

    def scaled(self, small: int, full: int) -> int:
        return small if self.small else full


def _check_end(engine: Engine) -> None:
    """When nobody is served any more nothing is lost, and the cache's books balance."""
    cache = engine.scheduler.cache
    assert cache.usage == 0, "memory is lost"
    cache.check([])
    engine.runner.pools.kv.clear()  # at once: the garbage collector does not see how large they are
    engine.runner.pools.recurrent.clear()
