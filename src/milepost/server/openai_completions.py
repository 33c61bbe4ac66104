"""POST /v1/completions, OpenAI's older API: text or token ids in, text out."""

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
from milepost.server.logprobs import LegacyLogprobs, prompt_logprobs
from milepost.server.prompts import MAX_PROMPTS, Prompt, num_prompts, read_prompts, with_breakpoints
from milepost.server.queue_limit import admit
from milepost.server.sampling import check_fits, check_logprobs, check_shared, sampling_params
from milepost.server.schemas import CompletionRequest, StreamOptions
from milepost.server.state import Engine, Tokenizer, server_state
from milepost.server.stream import stream_response, until_hangup

router = APIRouter()


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    state = server_state(request)
    body = await read_json(request, CompletionRequest)
    state.served_name(body.model)
    _check(body)
    engine = state.engine
    params = _params(body, engine)
    admit(request, params.n * num_prompts(body.prompt))
    special = body.add_special_tokens is not False
    prompts = await until_hangup(request, read_prompts(engine, body.prompt, add_special_tokens=special))
    prompts = with_breakpoints(prompts, body.cache_breakpoints)
    if len(prompts) * params.n > MAX_PROMPTS:
        raise RequestError(f"at most {MAX_PROMPTS} answers in one request", "send fewer prompts, or lower n", param="n")
    for prompt in prompts:
        check_fits(engine, len(prompt.ids), params.max_tokens, "prompt")
    job = new_job("cmpl", request, body, prompts, params)
    choices = Choices(job, body, engine.tokenizer)
    if body.stream:
        chunks = CompletionChunks(job, choices, body, engine.tokenizer)
        return await stream_response(request, run(engine, job), chunks, state.ping_seconds(body.sse_ping_interval))
    outputs = await until_hangup(request, finals(engine, job))
    return ApiResponse(_answer(job, choices, outputs, engine.tokenizer))


def _check(body: CompletionRequest) -> None:
    check_shared(body)
    check_logprobs("logprobs", body.logprobs)
    if body.suffix:
        raise RequestError("suffix is not supported by this server", "leave suffix out", param="suffix")


def _params(body: CompletionRequest, engine: Engine) -> SamplingParams:
    """`echo` with `logprobs` needs those of the prompt too."""
    scored = body.logprobs if body.echo else None
    wanted = [count for count in (scored, body.prompt_logprobs) if count is not None]
    return sampling_params(
        body,
        engine,
        max_tokens=body.max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=max(wanted) if wanted else None,
    )


class Choices:
    """Turns samples into choices; remembers of each how far it has come. Choice i * n + j is sample j of prompt i."""

    def __init__(self, job: Job, body: CompletionRequest, tokenizer: Tokenizer | None) -> None:
        self._job, self._body, self._tokenizer = job, body, tokenizer
        self._logprobs: dict[int, LegacyLogprobs] = {}
        self._begun: set[int] = set()

    def of(self, number: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """Choices for what is new in an output of prompt `number`."""
        for sample in output.outputs:
            index = number * self._job.params.n + sample.index
            first = index not in self._begun
            self._begun.add(index)
            echo = self._echoed_text(self._job.prompts[number]) if first and self._body.echo else ""
            logprobs = None if self._body.logprobs is None else self._new_logprobs(index, sample, output, first)
            choice = {
                "index": index,
                "text": echo + sample.text,
                "logprobs": logprobs,
                "finish_reason": sample.finish_reason,
                "stop_reason": sample.stop_reason,
            }
            if self._body.return_token_ids:
                choice |= {"prompt_token_ids": output.prompt_token_ids} if first else {}
                choice["token_ids"] = sample.token_ids
            if self._body.prompt_logprobs is not None:
                choice["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
            yield choice

    def _new_logprobs(self, index: int, sample: CompletionOutput, output: RequestOutput, first: bool) -> dict[str, Any]:
        logprobs = self._logprobs.setdefault(index, LegacyLogprobs(self._tokenizer))
        if first and self._body.echo:
            logprobs.add(output.prompt_token_ids, output.prompt_logprobs or [])
        logprobs.add(sample.token_ids, sample.logprobs or [])
        return logprobs.take()

    def _echoed_text(self, prompt: Prompt) -> str:
        if prompt.text is not None or self._tokenizer is None:
            return prompt.text or ""
        return self._tokenizer.decode(prompt.ids, skip_special_tokens=self._job.params.skip_special_tokens)


def _answer(job: Job, choices: Choices, outputs: list[RequestOutput], tokenizer: Tokenizer | None) -> dict[str, Any]:
    usage, explained = Usage(), Explained(tokenizer)
    listed: list[dict[str, Any]] = []
    for number, output in enumerate(outputs):
        usage.add(number, output)
        explained.add(number, output)
        listed.extend(choices.of(number, output))
    listed.sort(key=lambda choice: choice["index"])
    answer = {**job.head("text_completion"), "choices": listed, "usage": usage.as_dict()}
    return {**answer, "cache": explained.as_json()} if job.explains else answer


class CompletionChunks:
    """The chunks of a streamed answer, then the usage if asked for."""

    def __init__(self, job: Job, choices: Choices, body: CompletionRequest, tokenizer: Tokenizer | None) -> None:
        self._head = job.head("text_completion")
        self._choices = choices
        self._options = body.stream_options or StreamOptions()
        self._usage = Usage()
        self._explained = Explained(tokenizer) if job.explains else None

    def take(self, item: PromptOutput | None) -> Iterator[dict[str, Any]]:
        if item is None:
            return
        number, output = item
        self._usage.add(number, output)
        if self._explained is not None:
            self._explained.add(number, output)
        for choice in self._choices.of(number, output):
            logprobs = choice["logprobs"]
            # Tokens may come before their text: half a character waits for its other half.
            tokens = choice.get("token_ids") or (logprobs and logprobs["tokens"])
            if choice["text"] or choice["finish_reason"] or tokens:
                yield self._chunk([choice], self._options.continuous_usage_stats)

    def end(self) -> Iterator[dict[str, Any]]:
        if self._options.include_usage or self._explained is not None:
            last = self._chunk([], self._options.include_usage)
            yield last if self._explained is None else {**last, "cache": self._explained.as_json()}

    def _chunk(self, choices: list[dict[str, Any]], with_usage: bool | None) -> dict[str, Any]:
        chunk = {**self._head, "choices": choices}
        if with_usage:
            chunk["usage"] = self._usage.as_dict()
        elif self._options.include_usage:
            chunk["usage"] = None
        return chunk
