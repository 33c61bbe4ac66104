"""The answers of /v1/chat/completions: whole, and as chunks of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from milepost.outputs import CompletionOutput, RequestOutput
from milepost.server.answers import AnswerForm, AnswerReader, reasoning_usage
from milepost.server.explaining import Explained
from milepost.server.generation import Job, PromptOutput, Usage
from milepost.server.input_usage import InputUsage
from milepost.server.logprobs import chat_logprobs, prompt_logprobs
from milepost.server.parsers.events import CallArguments, CallEnd, CallStart, Content, Event, Reasoning
from milepost.server.schemas import StreamOptions
from milepost.server.state import Tokenizer

Delta = dict[str, Any]


@dataclass(frozen=True)
class ChatFormat:
    """What answers to one request look like. `num_top`: alternatives beside each token; `echoed`: text of the client's
    that they start with; `tells_ids`: those of the tokens, too, as vLLM does."""

    job: Job
    form: AnswerForm
    tokenizer: Tokenizer | None
    inputs: InputUsage
    num_top: int = 0
    echoed: str = ""
    tells_ids: bool = False

    def usage(self, counted: Usage, readers: Mapping[int, AnswerReader]) -> dict[str, Any]:
        """`cache_write_tokens`: computed now, and not again by a prompt that goes on from this one."""
        num_written = max(0, self.inputs.num_resumable_tokens - counted.num_cached_tokens)
        told = counted.as_dict()
        told["prompt_tokens_details"]["cache_write_tokens"] = num_written
        return told | reasoning_usage(readers)

    def logprobs(self, sample: CompletionOutput) -> dict[str, Any] | None:
        return None if sample.logprobs is None else chat_logprobs(sample.logprobs, self.num_top, self.tokenizer)


def chat_answer(format: ChatFormat, output: RequestOutput) -> dict[str, Any]:
    """The answer that is not streamed, of the finished output."""
    job, usage = format.job, Usage()
    usage.add(0, output)
    readers = {sample.index: format.form.reader() for sample in output.outputs}
    choices = [
        {
            "index": sample.index,
            "message": _message(readers[sample.index].take(sample), format.echoed),
            "logprobs": format.logprobs(sample),
            "finish_reason": readers[sample.index].finish_reason(sample),
            "stop_reason": sample.stop_reason,
            **({"token_ids": sample.token_ids} if format.tells_ids else {}),
        }
        for sample in sorted(output.outputs, key=lambda sample: sample.index)
    ]
    answer = {**job.head("chat.completion"), "choices": choices, "usage": format.usage(usage, readers)}
    if format.tells_ids:
        answer["prompt_token_ids"] = output.prompt_token_ids
    if job.params.prompt_logprobs is not None:
        answer["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
    if job.explains:
        explained = Explained(format.tokenizer)
        explained.add(0, output)
        answer["cache"] = explained.as_json()
    return answer


@dataclass
class _Whole:
    """Events put together."""

    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)

    def add(self, event: Event) -> None:
        if isinstance(event, Content):
            self.content += event.text
        elif isinstance(event, Reasoning):
            self.reasoning += event.text
        elif isinstance(event, CallStart):
            function = {"name": event.name, "arguments": ""}
            self.calls.append({"id": event.id, "type": "function", "function": function})
        elif isinstance(event, CallArguments):
            self.calls[event.index]["function"]["arguments"] += event.text


def _message(events: list[Event], echoed: str) -> dict[str, Any]:
    """Fields that an answer has nothing for are left out, but for those that OpenAI's API always has; `content` is null
    beside calls."""
    whole = _Whole(echoed)
    for event in events:
        whole.add(event)
    content = None if whole.calls and not whole.content else whole.content
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None, "annotations": []}
    if whole.reasoning:
        message |= _reasoning(whole.reasoning)
    if whole.calls:
        message["tool_calls"] = whole.calls
    return message


def _reasoning(text: str) -> Delta:
    """vLLM's name of today and its older one, which is also DeepSeek's: clients read the one or the other."""
    return {"reasoning": text, "reasoning_content": text}


class ChatChunks:
    """The chunks of a streamed answer: the role of each choice, then what comes, then the usage if asked for."""

    def __init__(self, format: ChatFormat, options: StreamOptions) -> None:
        self._format, self._options = format, options
        self._head = format.job.head("chat.completion.chunk")
        self._readers = {index: format.form.reader() for index in range(format.job.params.n)}
        self._usage = Usage()
        self._explained = Explained(format.tokenizer) if format.job.explains else None
        self._begun = False

    def take(self, item: PromptOutput | None) -> Iterator[dict[str, Any]]:
        if item is None:
            return
        number, output = item
        self._usage.add(number, output)
        if self._explained is not None:
            self._explained.add(number, output)
        if not self._begun:
            self._begun = True
            for index in self._readers:
                ids = {"prompt_token_ids": output.prompt_token_ids} if self._format.tells_ids and index == 0 else {}
                yield {**self._chunk(index, {"role": "assistant", "content": self._format.echoed}), **ids}
        for sample in output.outputs:
            yield from self._of_sample(sample, self._readers[sample.index])

    def end(self) -> Iterator[dict[str, Any]]:
        last: dict[str, Any] = {}
        if self._options.include_usage:
            last["usage"] = self._counts()
        if self._explained is not None:
            last["cache"] = self._explained.as_json()
        if last:
            yield {**self._head, "choices": [], **last}

    def _of_sample(self, sample: CompletionOutput, reader: AnswerReader) -> Iterator[dict[str, Any]]:
        """Tokens and their log probabilities go with the first chunk, the end with the last."""
        ids = sample.token_ids if self._format.tells_ids else []
        deltas = [delta for event in reader.take(sample) if (delta := _delta(event))]
        # Tokens may come before what is made of them: half a character or a tag waits for its other half.
        if not deltas and not sample.logprobs and not ids and not sample.finished:
            return
        deltas = deltas or [{}]
        for i, delta in enumerate(deltas):
            chunk = self._chunk(sample.index, delta)
            (choice,) = chunk["choices"]
            if i == 0 and sample.logprobs:
                choice["logprobs"] = self._format.logprobs(sample)
            if i == 0 and self._format.tells_ids:
                choice["token_ids"] = ids
            if i == len(deltas) - 1 and sample.finished:
                choice |= {"finish_reason": reader.finish_reason(sample), "stop_reason": sample.stop_reason}
            yield chunk

    def _chunk(self, index: int, delta: Delta) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        chunk = {**self._head, "choices": [choice]}
        if self._options.continuous_usage_stats:
            chunk["usage"] = self._counts()
        elif self._options.include_usage:
            chunk["usage"] = None
        return chunk

    def _counts(self) -> dict[str, Any]:
        return self._format.usage(self._usage, self._readers)


def _delta(event: Event) -> Delta:
    if isinstance(event, Content):
        return {"content": event.text}
    if isinstance(event, Reasoning):
        return _reasoning(event.text)
    if isinstance(event, CallEnd):
        return {}
    if isinstance(event, CallArguments):
        return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
    function = {"name": event.name, "arguments": ""}
    return {"tool_calls": [{"index": event.index, "id": event.id, "type": "function", "function": function}]}
