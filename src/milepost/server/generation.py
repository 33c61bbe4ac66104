"""Running a checked request: one stream of outputs for each prompt, and what an answer says about its tokens."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, cast

from fastapi import Request

from milepost.errors import RequestFailed
from milepost.outputs import RequestOutput
from milepost.sampling_params import SamplingParams
from milepost.server.explaining import wants_explanation
from milepost.server.prompts import Prompt
from milepost.server.recent import Remember, remembering
from milepost.server.request_ids import id_of
from milepost.server.schemas import Ask
from milepost.server.state import Engine, server_state
from milepost.server.stream import merge

PromptOutput = tuple[int, RequestOutput]
"""The prompt's number in its request, and an output of it."""


@dataclass(frozen=True)
class Job:
    """A request that passed all checks."""

    request_id: str
    created: int
    model: str
    system_fingerprint: str
    prompts: list[Prompt]
    params: SamplingParams
    priority: int
    scope: str
    explains: bool
    remember: Remember

    def head(self, kind: str) -> dict[str, Any]:
        """What every answer and every chunk starts with."""
        return {
            "id": self.request_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }


def new_job(prefix: str, request: Request, body: Ask, prompts: list[Prompt], params: SamplingParams) -> Job:
    """`prefix` begins the request's id."""
    state, created, salt = server_state(request), int(time.time()), body.cache_salt or ""
    return Job(
        request_id=f"{prefix}{'' if prefix.endswith('_') else '-'}{id_of(request)}",
        created=created,
        model=state.served_name(body.model),
        system_fingerprint=state.system_fingerprint,
        prompts=prompts,
        params=params,
        priority=body.priority or 0,
        scope=state.scope_of(request, salt),
        explains=wants_explanation(request, body),
        remember=remembering(request, salt, created),
    )


def run(engine: Engine, job: Job) -> AsyncGenerator[PromptOutput, None]:
    """Outputs of all prompts as they come. Closing it ends the request within a step."""
    streams = [_one(engine, job, number) for number in range(len(job.prompts))]
    return merge(streams) if len(streams) > 1 else _numbered(streams[0])


async def finals(engine: Engine, job: Job) -> list[RequestOutput]:
    """The finished output of each prompt, in their order."""
    async with contextlib.aclosing(run(engine, job)) as outputs:
        done = {number: output async for number, output in outputs}
    return [done[number] for number in range(len(job.prompts))]


class Usage:
    """Counts tokens over the outputs of a request, streamed or not."""

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[int, int]] = {}
        self._num_completion = 0

    def add(self, number: int, output: RequestOutput) -> None:
        self._prompts[number] = (len(output.prompt_token_ids), output.num_cached_tokens)
        self._num_completion += sum(len(sample.token_ids) for sample in output.outputs)

    @property
    def num_cached_tokens(self) -> int:
        return sum(cached for _, cached in self._prompts.values())

    @property
    def num_completion_tokens(self) -> int:
        return self._num_completion

    def as_dict(self) -> dict[str, Any]:
        """`cached_tokens` is always there: 0 says that nothing was reused."""
        num_prompt = sum(tokens for tokens, _ in self._prompts.values())
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": self._num_completion,
            "total_tokens": num_prompt + self._num_completion,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }


async def _one(engine: Engine, job: Job, number: int) -> AsyncGenerator[RequestOutput, None]:
    request_id = job.request_id if len(job.prompts) == 1 else f"{job.request_id}-{number}"
    prompt = job.prompts[number].for_engine()
    outputs = cast(
        "AsyncGenerator[RequestOutput, None]",
        engine.generate(prompt, job.params, request_id, priority=job.priority, cache_salt=job.scope),
    )
    async with contextlib.aclosing(_remembered(outputs, job, request_id)) as remembered:
        async for output in remembered:
            if output.error is not None:
                raise output.error
            if any(sample.finish_reason in ("abort", "error") for sample in output.outputs):
                raise RequestFailed("the request was ended by the server", "send it again")
            yield output


async def _remembered(
    outputs: AsyncGenerator[RequestOutput, None], job: Job, request_id: str
) -> AsyncGenerator[RequestOutput, None]:
    """`outputs`, of which the first that says what was found in the cache is remembered, or the one that failed."""
    known = False
    async with contextlib.aclosing(outputs):
        try:
            async for output in outputs:
                if output.cache is not None and not known:
                    known = True
                    job.remember(request_id, output)
                yield output
        except RequestFailed as error:
            if isinstance(error.output, RequestOutput) and not known:
                job.remember(request_id, error.output)
            raise


async def _numbered(stream: AsyncGenerator[RequestOutput, None]) -> AsyncGenerator[PromptOutput, None]:
    async with contextlib.aclosing(stream):
        async for output in stream:
            yield 0, output
