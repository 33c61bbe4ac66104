"""Which special tokens an answer's text shows, and what of it counts as reasoning."""

from __future__ import annotations

import pytest
from fake_engine import FakeEngine, FakeTokenizer

from milepost.engine.chat import ChatTemplate
from milepost.outputs import CompletionOutput
from milepost.sampling_params import SamplingParams
from milepost.server.answers import answer_form, reasoning_usage, with_grammar, with_tags
from milepost.server.dialect import dialect_of
from milepost.server.parsers.events import CallStart, Content, Reasoning
from milepost.server.parsers.family import Traits
from milepost.server.parsers.hermes import HERMES
from milepost.server.prompts import Prompt
from milepost.server.schemas import ChatRequest
from milepost.structured_outputs import StructuredOutputsParams, ToolCalls

TAGS = {258: "<think>", 259: "</think>", 260: "<|tool_call_start|>", 261: "<|tool_call_end|>", 262: "<|im_end|>"}
THINK, THINK_END = 258, 259
WEATHER = {"type": "function", "function": {"name": "weather"}}


class TagTokenizer(FakeTokenizer):
    """Its tags are tokens; those that open and close reasoning are not special."""

    special_token_ids = frozenset({256, 257, 260, 261, 262})

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = {tag: token for token, tag in TAGS.items()}
        return [ids[text]] if text in ids else super().encode(text, add_special_tokens)

    def token_text(self, token_id: int) -> str:
        return TAGS.get(token_id) or super().token_text(token_id)


def engine_of(template: str = "List of tools: [") -> FakeEngine:
    engine = FakeEngine()
    engine.tokenizer, engine.chat_template = TagTokenizer(), ChatTemplate(template)
    return engine


def asked(**fields: object) -> ChatRequest:
    return ChatRequest.model_validate({"model": "", "messages": [{"role": "user", "content": "x"}], **fields})


def test_a_special_token_can_tell_the_family_and_the_parser_sees_it():
    engine = engine_of()
    assert dialect_of(engine).family.name == "lfm2"
    assert with_tags(SamplingParams(), engine).shown_special_token_ids == {260, 261}


@pytest.mark.parametrize("with_text", [False, True])
def test_without_special_tags_and_forced_calls_nothing_changes(with_text: bool):
    engine, params = FakeEngine(with_text=with_text), SamplingParams()
    assert with_tags(params, engine) is params
    assert with_grammar(params, answer_form(engine, asked(tools=[WEATHER]), Prompt("x", [1]))) == params


def test_a_forced_call_is_a_grammar_in_the_family_s_form():
    two = [WEATHER, {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}]
    engine = engine_of("<tool_call></tool_call><think>")
    form = answer_form(engine, asked(tools=two, tool_choice="required"), Prompt("x<think>\n", [1]))
    grammar = with_grammar(SamplingParams(), form).structured_outputs
    assert grammar.tool_calls == ToolCalls({"weather": {}, "time": {"type": "object"}}, HERMES.form(Traits("")))
    assert (grammar.after, grammar.param) == ("</think>", "tool_choice")

    json = SamplingParams(structured_outputs=StructuredOutputsParams(json_object=True))
    form = answer_form(engine, asked(), Prompt("x<think>", [1]))
    assert with_grammar(json, form).structured_outputs == StructuredOutputsParams(json_object=True, after="</think>")

    named = {"type": "function", "function": {"name": "time"}}
    form = answer_form(engine, asked(tools=two, tool_choice=named), Prompt("x", [1]))
    grammar = with_grammar(SamplingParams(), form).structured_outputs
    assert (list(grammar.tool_calls.tools), grammar.tool_calls.max_calls, grammar.after) == (["time"], 1, None)


@pytest.mark.parametrize("delta", [False, True])
def test_reasoning_is_counted_in_tokens(delta: bool):
    form = answer_form(engine_of("<think>"), asked(), Prompt("x", [1]))
    reader = form.reader()
    ids, text = [THINK, 1, 2, 3, THINK_END, 4], "<think>abc</think>d"
    samples = [CompletionOutput(0, text, ids, finish_reason="stop")]
    if delta:
        samples = [CompletionOutput(0, "", [token]) for token in ids]
        samples += [CompletionOutput(0, text, [], finish_reason="stop")]
    assert [event for sample in samples for event in reader.take(sample)] == [Reasoning("abc"), Content("d")]
    assert reasoning_usage({0: reader, 1: reader}) == {"completion_tokens_details": {"reasoning_tokens": 6}}


def test_reasoning_that_the_prompt_opened_counts_from_the_start():
    reader = answer_form(engine_of("<think>"), asked(), Prompt("x<think>\n", [1])).reader()
    reader.take(CompletionOutput(0, "ab</think>c", [1, 2, THINK_END, 3], finish_reason="stop"))
    assert reader.num_reasoning_tokens == 2


def test_what_cannot_be_counted_is_not_told():
    assert reasoning_usage({0: answer_form(FakeEngine(), asked(), Prompt("x", [1])).reader()}) == {}
    tags_of_many_tokens = FakeEngine(template="<think>")
    assert reasoning_usage({0: answer_form(tags_of_many_tokens, asked(), Prompt("x", [1])).reader()}) == {}


def test_a_call_is_why_an_answer_stopped_unless_it_was_cut_off():
    form = answer_form(engine_of(), asked(tools=[WEATHER]), Prompt("x", [1]))
    for engine_says, told in (("stop", "tool_calls"), ("length", "length")):
        reader = form.reader()
        text = '<|tool_call_start|>[weather(city="é")]<|tool_call_end|>'
        sample = CompletionOutput(0, text, [1], finish_reason=engine_says)
        assert [event.name for event in reader.take(sample) if isinstance(event, CallStart)] == ["weather"]
        assert reader.finish_reason(sample) == told
    assert form.reader().finish_reason(CompletionOutput(0, finish_reason="stop")) == "stop"


def test_in_an_answer_that_keeps_a_format_nothing_is_a_call():
    json = asked(tools=[WEATHER], response_format={"type": "json_object"})
    text = '{"a": "<tool_call>{\\"name\\": \\"weather\\"}"}'
    reader = answer_form(engine_of("<tool_call>"), json, Prompt("x", [1])).reader()
    assert reader.take(CompletionOutput(0, text, [1], finish_reason="stop")) == [Content(text)]
    forced = asked(tools=[WEATHER], tool_choice="required", response_format={"type": "json_object"})
    assert answer_form(engine_of("<tool_call>"), forced, Prompt("x", [1])).tools == {"weather": {}}
