"""How the answers to one request are read: which parser, which special tokens it must see, what counts as reasoning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from milepost.outputs import CompletionOutput
from milepost.sampling_params import SamplingParams
from milepost.server.dialect import Dialect, dialect_of
from milepost.server.message_text import content_text
from milepost.server.parsers.answer import AnswerParser
from milepost.server.parsers.calls import Tools
from milepost.server.parsers.events import CallStart, Content, Event, Reasoning
from milepost.server.parsers.family import Family
from milepost.server.parsers.reasoning import Thinking
from milepost.server.prompts import Prompt
from milepost.server.schemas import ChatRequest
from milepost.server.state import Engine
from milepost.server.structured import structured_outputs
from milepost.server.tool_choice import read_tool_choice
from milepost.structured_outputs import StructuredOutputsParams, ToolCalls

JSON_KINDS = ("json", "json_object")
"""Formats beside which calls can be told from an answer."""


@dataclass(frozen=True)
class AnswerForm:
    """How the answers to one request are read.

    `tools`: what may be called, by name, none where calls are not looked for; `forced`: whether one must be;
    `instead`: whether calls stand in place of an answer in a format; `one_call`: whether those after the first are left
    out; `opened`: whether the prompt ends inside of reasoning; `shows_reasoning`: whether the client is told it;
    `closed`: whether a forced call has no arguments beyond those that its schema names.
    """

    dialect: Dialect
    tools: Tools
    forced: bool
    one_call: bool
    opened: bool
    shows_reasoning: bool = True
    instead: bool = False
    closed: bool = True

    @property
    def calls(self) -> ToolCalls:
        """What a grammar lets the model call. Arguments of a call that need not be are free, as without a grammar."""
        tools = dict.fromkeys(self.tools) if self.instead else self.tools
        return ToolCalls(tools, self.dialect.form, 1 if self.one_call else None)

    def reader(self) -> AnswerReader:
        """For one sample."""
        return AnswerReader(self)


def answer_form(engine: Engine, body: ChatRequest, prompt: Prompt) -> AnswerForm:
    """`prompt`: what `read_conversation` made of the request."""
    dialect = dialect_of(engine)
    choice = read_tool_choice(body)
    format = None if choice.forced else structured_outputs(body)
    instead = format is not None and format.kind in JSON_KINDS and dialect.calls_apart
    return AnswerForm(
        dialect,
        choice.tools if format is None or instead else {},  # what looks like a call in it is a part of it
        forced=choice.forced,
        one_call=choice.one or body.parallel_tool_calls is False,
        opened=dialect.thinking is not None and _ends_thinking(dialect.thinking, body, prompt),
        shows_reasoning=body.include_reasoning is not False,
        instead=instead,
        closed=not any(_is_loose(tool) for tool in body.tools or ()),
    )


def with_tags(params: SamplingParams, engine: Engine) -> SamplingParams:
    """The text of the answer has the tags that the parser looks for, also those that are special tokens."""
    tag_ids = dialect_of(engine).tag_ids
    return replace(params, shown_special_token_ids=tag_ids) if tag_ids else params


def with_grammar(params: SamplingParams, form: AnswerForm) -> SamplingParams:
    """Where a tool must be called, a grammar lets the model write nothing else; where one may be, calls or the format
    that is asked for. This and any other grammar begins where the reasoning ends that the prompt opened."""
    grammar = params.structured_outputs
    if form.forced:
        # Open to all names, it would never let a small model that likes to go on come to an end.
        grammar = StructuredOutputsParams(
            tool_calls=form.calls, disable_additional_properties=form.closed, param="tool_choice"
        )
    elif grammar is not None and form.tools:
        grammar = replace(grammar, or_calls=form.calls)
    if grammar is not None and form.opened and form.dialect.thinking:
        grammar = replace(grammar, after=grammar.after or form.dialect.thinking.close)
    return replace(params, structured_outputs=grammar)


def _family(form: AnswerForm) -> Family | None:
    """None where no calls are looked for. Those that stand in place of an answer are looked for at its beginning: in a
    text of its JSON a tag is a text."""
    family = form.dialect.family
    if form.instead:
        family = replace(family, opens=(), starts=(*family.opens, *family.starts))
    return family if form.tools else None


def _is_loose(tool: Mapping[str, Any]) -> bool:
    function = tool.get("function")
    return isinstance(function, Mapping) and function.get("strict") is False


def _ends_thinking(thinking: Thinking, body: ChatRequest, prompt: Prompt) -> bool:
    last = body.messages[-1]
    if body.continue_final_message and last.role == "assistant":
        return thinking.open_in(content_text(last.content))
    return thinking.opened_by(prompt.text or "")


class AnswerReader:
    """Takes the outputs of one sample, new ones or the final, and gives their events.

    `num_reasoning_tokens` leaves out the tags; None where it cannot be counted.
    """

    def __init__(self, form: AnswerForm) -> None:
        dialect = form.dialect
        self._form, self._think_ids = form, dialect.think_ids
        self._thinks = form.opened
        self._parser = AnswerParser(_family(form), form.tools, dialect.thinking, opened=form.opened)
        self.called = False
        self.num_reasoning_tokens = None if dialect.think_ids is None else 0

    def take(self, sample: CompletionOutput) -> list[Event]:
        self._count(sample.token_ids)
        events = self._parser.push(sample.text)
        if sample.finished:
            events += self._parser.close()
        events = [event for event in events if self._wanted(event)]
        self.called |= any(isinstance(event, CallStart) for event in events)
        return events

    def finish_reason(self, sample: CompletionOutput) -> str | None:
        """OpenAI's: an answer that stops after a call stopped for it."""
        return "tool_calls" if self.called and sample.finish_reason == "stop" else sample.finish_reason

    def _wanted(self, event: Event) -> bool:
        if isinstance(event, Reasoning):
            return self._form.shows_reasoning
        return isinstance(event, Content) or not (self._form.one_call and event.index > 0)

    def _count(self, token_ids: Sequence[int]) -> None:
        if self._think_ids is None or self.num_reasoning_tokens is None:
            return
        for token in token_ids:
            if token in self._think_ids:
                self._thinks = token == self._think_ids[0]
            else:
                self.num_reasoning_tokens += self._thinks


def reasoning_usage(readers: Mapping[int, AnswerReader]) -> dict[str, Any]:
    """`completion_tokens_details` of the usage, over all samples; nothing where it cannot be counted."""
    counts = [reader.num_reasoning_tokens for reader in readers.values()]
    if not counts or None in counts:
        return {}
    return {"completion_tokens_details": {"reasoning_tokens": sum(count or 0 for count in counts)}}
