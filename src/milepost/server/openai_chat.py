"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request, Response

from milepost.errors import RequestError
from milepost.outputs import CompletionOutput, RequestOutput
from milepost.sampling_params import SamplingParams
from milepost.server.body import read_json
from milepost.server.errors import ApiResponse
from milepost.server.explaining import Explained
from milepost.server.generation import Job, PromptOutput, Usage, finals, new_job, run
from milepost.server.logprobs import chat_logprobs, prompt_logprobs
from milepost.server.prompts import content_text, read_conversation
from milepost.server.sampling import check_fits, check_logprobs, check_shared, refuse_forced_tools, sampling_params
from milepost.server.schemas import ChatRequest, StreamOptions
from milepost.server.state import Engine, Tokenizer, server_state
from milepost.server.stream import stream_response, until_hangup

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    state = server_state(request)
    body = await read_json(request, ChatRequest)
    state.served_name(body.model)
    _check(body)
    engine = state.engine
    params = _params(body, engine)
    prompt = await until_hangup(request, read_conversation(engine, body.messages, body))
    check_fits(engine, len(prompt.ids), params.max_tokens, "messages")
    job = new_job("chatcmpl", request, body, [prompt], params)
    echoed = _echoed(body)
    if body.stream:
        writer = ChatChunks(
            job, body.stream_options or StreamOptions(), body.top_logprobs or 0, engine.tokenizer, echoed
        )
        return await stream_response(request, run(engine, job), writer)
    (output,) = await until_hangup(request, finals(engine, job))
    return ApiResponse(_answer(job, output, body.top_logprobs or 0, engine.tokenizer, echoed))


def _check(body: ChatRequest) -> None:
    check_shared(body)
    check_logprobs("top_logprobs", body.top_logprobs)
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs=true", "set logprobs", param="top_logprobs")
    refuse_forced_tools({"tool_choice": body.tool_choice, "function_call": body.function_call})


def _params(body: ChatRequest, engine: Engine) -> SamplingParams:
    return sampling_params(
        body,
        engine,
        max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
    )


def _echoed(body: ChatRequest) -> str:
    """With `echo`, an answer that continues the assistant's last message starts with it."""
    last = body.messages[-1]
    return content_text(last.content) if body.echo and last.role == "assistant" else ""


def _answer(job: Job, output: RequestOutput, num_top: int, tokenizer: Tokenizer | None, echoed: str) -> dict[str, Any]:
    usage = Usage()
    usage.add(0, output)
    choices = [
        {
            "index": sample.index,
            "message": {"role": "assistant", "content": echoed + sample.text, "refusal": None},
            "logprobs": _logprobs(sample, num_top, tokenizer),
            "finish_reason": sample.finish_reason,
            "stop_reason": sample.stop_reason,
        }
        for sample in sorted(output.outputs, key=lambda sample: sample.index)
    ]
    answer = {**job.head("chat.completion"), "choices": choices, "usage": usage.as_dict()}
    if job.params.prompt_logprobs is not None:
        answer["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
    if job.explains:
        explained = Explained(tokenizer)
        explained.add(0, output)
        answer["cache"] = explained.as_json()
    return answer


def _logprobs(sample: CompletionOutput, num_top: int, tokenizer: Tokenizer | None) -> dict[str, Any] | None:
    return None if sample.logprobs is None else chat_logprobs(sample.logprobs, num_top, tokenizer)


class ChatChunks:
    """The chunks of a streamed answer: the role of each choice, then text as it comes, then the usage if asked for."""

    def __init__(
        self, job: Job, options: StreamOptions, num_top: int, tokenizer: Tokenizer | None, echoed: str
    ) -> None:
        self._head = job.head("chat.completion.chunk")
        self._n = job.params.n
        self._options, self._num_top, self._tokenizer, self._echoed = options, num_top, tokenizer, echoed
        self._usage = Usage()
        self._explained = Explained(tokenizer) if job.explains else None
        self._begun = False

    def take(self, item: PromptOutput) -> Iterator[dict[str, Any]]:
        number, output = item
        self._usage.add(number, output)
        if self._explained is not None:
            self._explained.add(number, output)
        if not self._begun:
            self._begun = True
            for index in range(self._n):
                yield self._chunk(index, {"role": "assistant", "content": self._echoed})
        for sample in output.outputs:
            # Tokens may come before their text: half a character waits for its other half.
            if sample.text or sample.logprobs or sample.finished:
                yield self._chunk(sample.index, {"content": sample.text} if sample.text else {}, sample)

    def end(self) -> Iterator[dict[str, Any]]:
        last: dict[str, Any] = {}
        if self._options.include_usage:
            last["usage"] = self._usage.as_dict()
        if self._explained is not None:
            last["cache"] = self._explained.as_json()
        if last:
            yield {**self._head, "choices": [], **last}

    def _chunk(self, index: int, delta: dict[str, Any], sample: CompletionOutput | None = None) -> dict[str, Any]:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": _logprobs(sample, self._num_top, self._tokenizer) if sample and sample.logprobs else None,
            "finish_reason": sample.finish_reason if sample else None,
        }
        if sample is not None and sample.finished:
            choice["stop_reason"] = sample.stop_reason
        chunk = {**self._head, "choices": [choice]}
        if self._options.continuous_usage_stats:
            chunk["usage"] = self._usage.as_dict()
        elif self._options.include_usage:
            chunk["usage"] = None
        return chunk
