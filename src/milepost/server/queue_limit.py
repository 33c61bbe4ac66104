"""How much may be in flight at once: what comes beyond it is refused with 429, instead of waiting without end."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from milepost.errors import RequestError

_KEY = "milepost.seats"


@dataclass
class InFlight:
    """Samples that wait or run, and how many may. A request is let in while fewer than that are: one that asks for many
    samples does not have to find as many seats free, which under load it never would."""

    limit: int
    num_samples: int = 0

    def enter(self, num_samples: int) -> None:
        """Raises `RequestError` (429) when all seats are taken."""
        if self.num_samples >= self.limit:
            raise RequestError(
                f"the server has {self.num_samples} answers in flight, as many as it takes on",
                "send it again later; --max-num-queued-reqs raises the limit",
                status=429,
                code="rate_limit_exceeded",
            )
        self.num_samples += num_samples


@dataclass
class Seats:
    """Those of one request."""

    of: InFlight
    num_samples: int = 0

    def take(self, num_samples: int) -> None:
        self.of.enter(num_samples)
        self.num_samples += num_samples

    def leave(self) -> None:
        self.of.num_samples -= self.num_samples
        self.num_samples = 0


def admit(request: Request, num_samples: int = 1) -> None:
    """Counts a request's samples, waiting or running, until its answer is sent or its client is gone. To be called
    before its prompt is read: whoever is refused has cost nothing. Raises `RequestError` (429)."""
    seats: Seats = request.scope[_KEY]
    seats.take(num_samples)


class QueueLimit:
    """Gives every request its seats, of which `admit` takes, and takes them back at the end."""

    def __init__(self, app: ASGIApp, max_num_queued_reqs: int) -> None:
        self.app = app
        self._in_flight = InFlight(max_num_queued_reqs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        seats = scope[_KEY] = Seats(self._in_flight)
        try:
            await self.app(scope, receive, send)
        finally:
            seats.leave()
