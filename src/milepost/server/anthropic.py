"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from milepost.errors import RequestError
from milepost.server.answers import answer_form, with_grammar, with_tags
from milepost.server.anthropic_diagnostics import diagnosing
from milepost.server.anthropic_errors import NO_THREADS, TOO_LONG, anthropic_error
from milepost.server.anthropic_events import AnthropicEvent, MessageEvents, message_of
from milepost.server.anthropic_prompt import read_request
from milepost.server.anthropic_schemas import CountRequest, MessagesRequest
from milepost.server.body import read_json
from milepost.server.errors import ApiResponse
from milepost.server.generation import finals, new_job, run
from milepost.server.ignored import TOOLS, note
from milepost.server.images import note_images
from milepost.server.input_usage import input_usage
from milepost.server.prompts import read_conversation
from milepost.server.queue_limit import admit
from milepost.server.request_ids import told_id
from milepost.server.sampling import check_shared, sampling_params
from milepost.server.schemas import ChatRequest
from milepost.server.state import Engine, server_state
from milepost.server.stream import Wire, stream_response, until_hangup
from milepost.server.tool_choice import read_tool_choice

router = APIRouter()

REMOVED = "X-Milepost-Removed"
"""Names what of a prompt was taken out of it."""


def _event(content: AnthropicEvent) -> bytes:
    return f"event: {content['type']}\ndata: ".encode() + to_json(content, inf_nan_mode="null") + b"\n\n"


@router.post("/v1/messages")
async def messages(request: Request) -> Response:
    state = server_state(request)
    engine, body = state.engine, await read_json(request, MessagesRequest)
    state.served_name(body.model)
    chat = _chat(request, body)
    check_shared(chat)
    read_tool_choice(chat)
    params = sampling_params(chat, engine, max_tokens=chat.max_tokens, logprobs=None, prompt_logprobs=None)
    admit(request)
    prompt = await until_hangup(request, read_conversation(engine, chat.messages, chat))
    room = _room(engine, len(prompt.ids), body.max_tokens)
    form = answer_form(engine, chat, prompt)
    params = with_tags(replace(params, max_tokens=min(body.max_tokens, room)), engine)
    job = new_job("msg_", request, chat, [prompt], with_grammar(params, form))
    inputs = input_usage(engine, prompt)
    diagnose = diagnosing(request.app.state.fingerprints, body, job.scope, job.request_id, inputs.num_resumable_tokens)
    events = MessageEvents(job, form, engine.tokenizer, inputs, room, diagnose)
    if chat.stream:
        seconds = state.ping_seconds(chat.sse_ping_interval)
        wire = Wire(_event, partial(anthropic_error, told_id(request.scope)))
        return await stream_response(request, run(engine, job), events, seconds, wire)
    (output,) = await until_hangup(request, finals(engine, job))
    return ApiResponse(message_of([*events.take((0, output)), *events.end()]))


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request) -> Response:
    state = server_state(request)
    body = await read_json(request, CountRequest)
    state.served_name(body.model)
    chat = _chat(request, body)
    prompt = await until_hangup(request, read_conversation(state.engine, chat.messages, chat))
    return ApiResponse({"input_tokens": len(prompt.ids)})


def _chat(request: Request, body: CountRequest) -> ChatRequest:
    """The request in OpenAI's shape; headers of the answer say what is left out of it."""
    if body.thread is not None:  # ignored, the model would see the last message of a conversation alone
        raise RequestError(
            "this server keeps no threads",
            "send the whole conversation without `thread`",
            code=NO_THREADS,
            param="thread",
        )
    read = read_request(body)
    note(request, REMOVED, read.removed)
    note(request, TOOLS, read.skipped_tools)
    note_images(request, read.chat.messages)
    return read.chat


def _room(engine: Engine, num_prompt_tokens: int, max_tokens: int) -> int:
    """Tokens that the context has left. Agents ask for more than a small context has: that ends the answer, not the
    request. Raises `RequestError` for a prompt that leaves no room."""
    room = engine.max_model_len - num_prompt_tokens
    if room < min(max_tokens, 1):
        longest = engine.max_model_len - 1
        raise RequestError(
            f"{TOO_LONG}{num_prompt_tokens} tokens > {longest} maximum",
            "shorten the conversation",
            code="context_length_exceeded",
            param="messages",
        )
    return room
