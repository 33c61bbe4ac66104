"""POST /v1/chat/completions."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from milepost.errors import RequestError
from milepost.sampling_params import SamplingParams
from milepost.server.answers import AnswerForm, answer_form, with_grammar, with_tags
from milepost.server.body import read_json
from milepost.server.chat_answers import ChatChunks, ChatFormat, chat_answer
from milepost.server.errors import ApiResponse
from milepost.server.generation import finals, new_job, run
from milepost.server.ignored import TOOLS, note
from milepost.server.images import note_images
from milepost.server.input_usage import input_usage
from milepost.server.message_text import content_text
from milepost.server.prompts import Prompt, is_function, read_conversation, with_breakpoints
from milepost.server.queue_limit import admit
from milepost.server.sampling import check_fits, check_logprobs, check_shared, sampling_params
from milepost.server.schemas import ChatRequest, StreamOptions
from milepost.server.state import Engine, server_state
from milepost.server.stream import stream_response, until_hangup
from milepost.server.tool_choice import read_tool_choice

router = APIRouter()


@dataclass(frozen=True)
class ReadChat:
    """A request that passed all checks, and the prompt that it makes."""

    body: ChatRequest
    params: SamplingParams
    prompt: Prompt
    form: AnswerForm


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    state = server_state(request)
    engine, read = state.engine, await read_chat(request, queues=True)
    body = read.body
    job = new_job("chatcmpl", request, body, [read.prompt], read.params)
    inputs = input_usage(engine, read.prompt)
    num_top, tells_ids = body.top_logprobs or 0, body.return_token_ids is True
    format = ChatFormat(job, read.form, engine.tokenizer, inputs, num_top, _echoed(body), tells_ids)
    if body.stream:
        chunks = ChatChunks(format, body.stream_options or StreamOptions())
        return await stream_response(request, run(engine, job), chunks, state.ping_seconds(body.sse_ping_interval))
    (output,) = await until_hangup(request, finals(engine, job))
    return ApiResponse(chat_answer(format, output))


async def read_chat(request: Request, *, queues: bool = False) -> ReadChat:
    """`queues`: it is going to run, and counts as in flight. Raises `RequestError`."""
    state = server_state(request)
    body = await read_json(request, ChatRequest)
    state.served_name(body.model)
    _check(body)
    note(request, TOOLS, (str(tool.get("type") or "function") for tool in body.tools or () if not is_function(tool)))
    note_images(request, body.messages)
    engine = state.engine
    params = with_tags(_params(body, engine), engine)
    if queues:
        admit(request, params.n)
    prompt = await until_hangup(request, read_conversation(engine, body.messages, body))
    (prompt,) = with_breakpoints([prompt], body.cache_breakpoints)
    check_fits(engine, len(prompt.ids), params.max_tokens, "messages")
    form = answer_form(engine, body, prompt)
    return ReadChat(body, with_grammar(params, form), prompt, form)


def _check(body: ChatRequest) -> None:
    check_shared(body)
    check_logprobs("top_logprobs", body.top_logprobs)
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs=true", "set logprobs", param="top_logprobs")
    if body.function_call not in (None, "none", "auto"):
        raise RequestError(
            "function_call is not supported by this server", "send tools and tool_choice", param="function_call"
        )
    read_tool_choice(body)


def _params(body: ChatRequest, engine: Engine) -> SamplingParams:
    return sampling_params(
        body,
        engine,
        max_tokens=_max_tokens(body),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
    )


def _max_tokens(body: ChatRequest) -> int | None:
    if body.prompt_cache_options is not None and body.prompt_cache_options.prewarm:
        return 0
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens


def _echoed(body: ChatRequest) -> str:
    """With `echo`, an answer that continues the assistant's last message starts with it."""
    last = body.messages[-1]
    return content_text(last.content) if body.echo and last.role == "assistant" else ""
