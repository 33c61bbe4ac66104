"""An answer in the shape of the Responses API: the events of a stream, and the response that they add up to.

response.created, response.in_progress    once, as soon as the prompt is read, or at the first ping before that
events of items                           see `responses_output.py`
response.completed                        the end; or incomplete (cut off, or cancelled), or failed
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from milepost.outputs import CompletionOutput
from milepost.server.answers import AnswerForm
from milepost.server.explaining import Explained
from milepost.server.generation import Job, PromptOutput, Usage
from milepost.server.input_usage import InputUsage
from milepost.server.logprobs import chat_logprobs
from milepost.server.responses_diagnostics import Diagnose
from milepost.server.responses_object import usage_object
from milepost.server.responses_output import Output, Told
from milepost.server.state import Tokenizer

ResponseEvent = dict[str, Any]

TERMINAL = {"cancelled": "response.incomplete"}
"""The last event by the response's status, where it is not named after it: the API knows no event for this one."""

CODES = {429: "rate_limit_exceeded"}
"""`error.code` of a response that failed, where it is not "invalid_prompt" (4xx) or "server_error" (5xx)."""


@dataclass(frozen=True)
class ResponseForm:
    """What answers to one request look like. `head`: of the response object; `num_top`: alternatives beside each token,
    None without log probabilities; `diagnose`: for a client that asks why its prompt was not cached; `seals`: it wants
    `encrypted_content`; `prewarms`: nothing is to be generated."""

    job: Job
    head: dict[str, Any]
    form: AnswerForm
    tokenizer: Tokenizer | None
    inputs: InputUsage
    num_top: int | None = None
    diagnose: Diagnose | None = None
    seals: bool = False
    prewarms: bool = False


class ResponseEvents:
    """The events of one answer. `on_end` is told the response once, when it has ended in whatever way."""

    def __init__(self, form: ResponseForm, on_end: Callable[[dict[str, Any]], None]) -> None:
        self._form, self._on_end = form, on_end
        self._reader, self._output = form.form.reader(), Output(form.seals)
        self._usage = Usage()
        self._explained = Explained(form.tokenizer) if form.job.explains else None
        self._last = CompletionOutput(0)
        self._logprobs: list[dict[str, Any]] = []
        self._number = 0
        self._is_read = False
        self._final: dict[str, Any] | None = None

    def take(self, item: PromptOutput | None) -> Iterator[ResponseEvent]:
        if item is not None:
            self._is_read = True
            self._usage.add(*item)
            if self._explained is not None:
                self._explained.add(*item)
        if self._number == 0:
            for kind in ("response.created", "response.in_progress"):
                yield self._event(kind, response=self.response)
        if item is not None:
            (self._last,) = item[1].outputs
            yield from self._of_last()

    def end(self) -> Iterator[ResponseEvent]:
        """A stream that stopped before its answer had ended was cancelled."""
        is_cut = self._last.finish_reason == "length" and not self._form.prewarms
        status = "incomplete" if is_cut else "completed" if self._last.finished else "cancelled"
        answers = status == "completed" and not self._form.prewarms
        yield from self._numbered(self._output.end("completed" if status == "completed" else "incomplete", answers))
        response = self._finish(status)
        yield self._event(TERMINAL.get(status, f"response.{status}"), response=response)

    def failed(self, http_status: int, error: dict[str, Any]) -> ResponseEvent:
        """The last event where something failed; `error` is OpenAI's error object."""
        code = CODES.get(http_status, "invalid_prompt" if http_status < 500 else "server_error")
        response = self._finish("failed", {"code": code, "message": error["error"]["message"]})
        return self._event("response.failed", response=response)

    def abandon(self) -> None:
        """The client is gone."""
        self._finish("cancelled")

    @property
    def are_told(self) -> bool:
        """Whether there was an event."""
        return self._number > 0

    @property
    def response(self) -> dict[str, Any]:
        """As it is now."""
        return self._final or self._response("in_progress", None)

    def _of_last(self) -> Iterator[ResponseEvent]:
        """Log probabilities wait until it is known whether their tokens are text."""
        form, found = self._form, self._reader.take(self._last)
        if form.num_top is not None and self._last.logprobs:
            self._logprobs += chat_logprobs(self._last.logprobs, form.num_top, form.tokenizer)["content"]
        if found:
            logprobs, self._logprobs = self._logprobs, []
            yield from self._numbered(self._output.take(found, logprobs))

    def _numbered(self, told: Iterable[Told]) -> Iterator[ResponseEvent]:
        for kind, fields in told:
            yield self._event(kind, **fields)

    def _event(self, kind: str, **fields: Any) -> ResponseEvent:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event

    def _finish(self, status: str, error: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ends once: what comes later changes nothing."""
        if self._final is None:
            list(self._output.close("incomplete"))
            response = self._response(status, error)
            self._on_end(response)  # where that fails, so has the response
            self._final = response
        return self._final

    def _response(self, status: str, error: dict[str, Any] | None) -> dict[str, Any]:
        form, has_ended = self._form, status != "in_progress"
        usage = usage_object(self._usage, form.inputs, self._reader.num_reasoning_tokens)
        response = {
            **form.head,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": self._output.items,
            "usage": usage if has_ended and self._is_read else None,
        }
        if form.diagnose is not None:
            told = form.diagnose(self._usage.num_cached_tokens) if self._is_read else None
            response["prompt_cache_diagnostics"] = told
        if self._explained is not None and has_ended:
            response["cache"] = self._explained.as_json()
        return response
