"""Responses of one API key: those that are kept, and those that are being made, which any of its clients may cancel."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from milepost.server.anthropic_diagnostics import Fingerprints
from milepost.server.generation import PromptOutput
from milepost.server.responses_events import ResponseEvents
from milepost.server.responses_items import ResponseItem
from milepost.server.responses_store import MAX_BYTES, MAX_RESPONSES, ResponseStore, Turn, new_turn
from milepost.server.state import server_state


@dataclass(eq=False)
class Running:
    """One that is being made. `is_kept`: whether it will be stored."""

    events: ResponseEvents
    is_kept: bool
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class KeyResponses:
    """`fingerprints`: of the last requests, to compare later ones with."""

    store: ResponseStore
    running: dict[str, Running] = field(default_factory=dict)
    fingerprints: Fingerprints = field(default_factory=Fingerprints)

    def end(self, response: dict[str, Any], items: list[ResponseItem], parent: Turn | None) -> None:
        """It runs no more, and is stored if that is wanted."""
        running = self.running.get(response["id"])
        self.drop(response["id"])
        if running is not None and running.is_kept:
            self.store.add(new_turn(response, items, parent))

    def drop(self, response_id: str) -> None:
        """It runs no more; nobody was told of it, or it is not to be stored."""
        running = self.running.pop(response_id, None)
        if running is not None:
            running.ended.set()


def responses_of(request: Request) -> KeyResponses:
    """Those of the key which `request` came with, whatever the scope of cached prefixes. Each key has an equal part of
    the memory."""
    state = server_state(request)
    all_keys: dict[str, KeyResponses] = request.app.state.responses
    owner = state.owner_of(request)
    if owner not in all_keys:
        num = state.num_owners
        all_keys[owner] = KeyResponses(ResponseStore(MAX_BYTES // num, max(1, MAX_RESPONSES // num)))
    return all_keys[owner]


async def or_abandoned(
    outputs: AsyncGenerator[PromptOutput, None], running: Running
) -> AsyncGenerator[PromptOutput, None]:
    """`outputs`; whose reader goes away before they have ended cancels the response. It is not kept if nobody was told
    of it."""
    async with contextlib.aclosing(outputs):
        try:
            async for output in outputs:
                yield output
        except (GeneratorExit, asyncio.CancelledError):
            running.is_kept &= running.events.are_told
            running.events.abandon()
            raise
