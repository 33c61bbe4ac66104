"""`truncation` of the Responses API: what is left of a conversation that the context does not hold."""

from __future__ import annotations

from itertools import takewhile

from milepost.errors import RequestError
from milepost.server.prompts import Prompt, read_conversation
from milepost.server.sampling import check_fits
from milepost.server.schemas import ChatRequest
from milepost.server.state import Engine


async def read_prompt(engine: Engine, chat: ChatRequest, truncation: str | None) -> tuple[ChatRequest, Prompt]:
    """The prompt of `chat`. With "auto", as many of the oldest turns are left out, each from a user's message to the
    next, as it takes to fit; what comes before the first stays. Raises `RequestError` where nothing helps."""
    try:
        return chat, await _fitting(engine, chat)
    except RequestError as error:
        if truncation != "auto" or error.code != "context_length_exceeded":
            raise
        refusal = error
    starts = [i for i, message in enumerate(chat.messages) if message.role == "user"][1:]
    found = None
    while starts:  # bisection: the more is left out, the shorter it gets
        middle = len(starts) // 2
        shorter = _without(chat, starts[middle])
        try:
            found, starts = (shorter, await _fitting(engine, shorter)), starts[:middle]
        except RequestError as error:
            if error.code != "context_length_exceeded":
                raise
            starts = starts[middle + 1 :]
    if found is None:
        raise refusal
    return found


async def _fitting(engine: Engine, chat: ChatRequest) -> Prompt:
    try:
        prompt = await read_conversation(engine, chat.messages, chat)
    except RequestError as error:
        error.param = "input" if error.param == "messages" else error.param  # the client sent no messages
        raise
    check_fits(engine, len(prompt.ids), None, "input")
    return prompt


def _without(chat: ChatRequest, start: int) -> ChatRequest:
    kept = list(takewhile(lambda message: message.role in ("system", "developer"), chat.messages))
    return chat.model_copy(update={"messages": [*kept, *chat.messages[start:]]})
