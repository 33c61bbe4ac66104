"""POST /v1/responses and /v1/responses/input_tokens: OpenAI's Responses API."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from milepost.errors import RequestError
from milepost.sampling_params import RequestOutputKind, SamplingParams
from milepost.server.answers import answer_form, with_grammar, with_tags
from milepost.server.body import read_json
from milepost.server.errors import ApiResponse
from milepost.server.generation import PromptOutput, new_job, run
from milepost.server.ignored import TOOLS, note
from milepost.server.images import note_images
from milepost.server.input_usage import input_usage
from milepost.server.prompts import Prompt
from milepost.server.queue_limit import admit
from milepost.server.responses_diagnostics import diagnosing
from milepost.server.responses_events import ResponseEvent, ResponseEvents, ResponseForm
from milepost.server.responses_object import response_head
from milepost.server.responses_request import ReadResponse, prewarms, read_request, wants_logprobs
from milepost.server.responses_running import KeyResponses, Running, or_abandoned, responses_of
from milepost.server.responses_schemas import InputTokensRequest, ResponsesRequest
from milepost.server.responses_truncation import read_prompt
from milepost.server.sampling import check_logprobs, check_shared, sampling_params
from milepost.server.schemas import ChatRequest
from milepost.server.state import Engine, server_state
from milepost.server.stream import Wire, stream_response, until, until_hangup
from milepost.server.tool_choice import read_tool_choice

router = APIRouter()

SEALED = "reasoning.encrypted_content"


@router.post("/v1/responses")
async def create(request: Request) -> Response:
    state = server_state(request)
    engine, body = state.engine, await read_json(request, ResponsesRequest)
    state.served_name(body.model)
    own = responses_of(request)
    read = _read(request, body, own)
    check_shared(read.chat)
    check_logprobs("top_logprobs", body.top_logprobs)
    params = _params(body, read.chat, engine)
    admit(request)
    chat, prompt = await until_hangup(request, read_prompt(engine, read.chat, body.truncation))
    form = _form(request, body, chat, prompt, params, own)
    return await _answer(request, body, read, form, own)


@router.post("/v1/responses/input_tokens")
async def input_tokens(request: Request) -> Response:
    state = server_state(request)
    body = await read_json(request, InputTokensRequest)
    state.served_name(body.model)
    read = _read(request, body, responses_of(request))
    _, prompt = await until_hangup(request, read_prompt(state.engine, read.chat, body.truncation))
    return ApiResponse({"object": "response.input_tokens", "input_tokens": len(prompt.ids)})


def _read(request: Request, body: InputTokensRequest, own: KeyResponses) -> ReadResponse:
    if body.previous_response_id in own.running:
        raise RequestError(
            "the response that previous_response_id names is still being made",
            "wait for its end, or cancel it",
            param="previous_response_id",
        )
    read = read_request(body, own.store)
    note(request, TOOLS, read.skipped_tools)
    note_images(request, read.chat.messages)
    read_tool_choice(read.chat)
    return read


def _params(body: ResponsesRequest, chat: ChatRequest, engine: Engine) -> SamplingParams:
    """Log probabilities come token by token, so that those of reasoning and calls can be told from those of text."""
    logprobs = (body.top_logprobs or 0) if wants_logprobs(body) else None
    params = sampling_params(chat, engine, max_tokens=chat.max_tokens, logprobs=logprobs, prompt_logprobs=None)
    grammar = params.structured_outputs
    if grammar is not None and grammar.param == "response_format":
        params = replace(params, structured_outputs=replace(grammar, param="text.format"))
    return with_tags(params if logprobs is None else replace(params, output_kind=RequestOutputKind.DELTA), engine)


def _form(
    request: Request,
    body: ResponsesRequest,
    chat: ChatRequest,
    prompt: Prompt,
    params: SamplingParams,
    own: KeyResponses,
) -> ResponseForm:
    """Agents ask for more tokens than a small context has left: that ends the answer, not the request."""
    engine = server_state(request).engine
    if params.max_tokens is not None:
        params = replace(params, max_tokens=min(params.max_tokens, engine.max_model_len - len(prompt.ids)))
    closed = all(tool.get("strict") is not False for tool in body.tools or ())
    form = replace(answer_form(engine, chat, prompt), closed=closed)
    params = with_grammar(params, form)
    job = new_job("resp_", request, chat, [prompt], params)
    inputs = input_usage(engine, prompt)
    compared = body.prompt_cache_options.comparison_response_id if body.prompt_cache_options else None
    return ResponseForm(
        job,
        response_head(body, chat, job),
        form,
        engine.tokenizer,
        inputs,
        num_top=params.logprobs,
        diagnose=diagnosing(own.fingerprints, job.scope, job.request_id, chat, inputs.num_resumable_tokens, compared),
        seals=SEALED in (body.include or ()),
        prewarms=prewarms(body),
    )


async def _answer(
    request: Request, body: ResponsesRequest, read: ReadResponse, form: ResponseForm, own: KeyResponses
) -> Response:
    """A request that is refused, or whose client goes before it was told anything, leaves nothing behind."""
    state, response_id = server_state(request), form.job.request_id
    events = ResponseEvents(form, partial(own.end, items=read.items, parent=read.parent))
    running = own.running[response_id] = Running(events, is_kept=body.store is not False)
    outputs = until(running.cancelled, run(state.engine, form.job))
    try:
        if body.stream:
            wire = Wire(_event, events.failed, b": ping\n\n")
            seconds = state.ping_seconds(body.sse_ping_interval)
            return await stream_response(request, or_abandoned(outputs, running), events, seconds, wire)
        return ApiResponse(await until_hangup(request, _whole(outputs, events)))
    except BaseException:
        own.drop(response_id)
        raise


async def _whole(outputs: AsyncGenerator[PromptOutput, None], events: ResponseEvents) -> dict[str, Any]:
    async with contextlib.aclosing(outputs):
        async for output in outputs:
            list(events.take(output))
    list(events.end())
    return events.response


def _event(content: ResponseEvent) -> bytes:
    return f"event: {content['type']}\ndata: ".encode() + to_json(content, inf_nan_mode="null") + b"\n\n"
