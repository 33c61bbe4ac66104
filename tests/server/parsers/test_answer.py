"""Each family's answers come apart as they should, however they are cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import DEEPSEEK, DS_CALLS, HERMES, LFM2, LONG, QWEN_XML, SAMPLES, THINK, TOOLS, Sample

from milepost.server.parsers.answer import AnswerParser
from milepost.server.parsers.events import CallArguments, CallEnd, CallStart, Content, Event, Reasoning
from milepost.server.parsers.family import Family, Traits
from milepost.server.parsers.registry import FAMILIES


def events_of(sample: Sample, pieces: Iterable[str]) -> list[Event]:
    """With texts of one kind that follow each other put together."""
    ids = map(str, itertools.count())
    family = sample.family and replace(sample.family, new_id=lambda: next(ids))
    parser = AnswerParser(family, TOOLS, sample.thinking, opened=sample.opened)
    found: list[Event] = [event for piece in pieces for event in parser.push(piece)] + parser.close()
    joined: list[Event] = []
    for event in found:
        last = joined[-1] if joined else None
        if isinstance(event, Content | Reasoning) and type(event) is type(last):
            joined[-1] = type(event)(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            joined[-1] = CallArguments(event.index, last.text + event.text)
        else:
            joined.append(event)
    return joined


def calls_of(events: list[Event]) -> list[tuple[str, object]]:
    """Names and arguments; every call that starts has arguments and ends before the next."""
    told = [event for event in events if not isinstance(event, Content | Reasoning)]
    calls = []
    for i, (start, arguments, end) in enumerate(zip(told[::3], told[1::3], told[2::3], strict=True)):
        assert isinstance(start, CallStart)
        assert isinstance(arguments, CallArguments)
        assert isinstance(end, CallEnd)
        assert (start.index, arguments.index, end.index, start.id) == (i, i, i, str(i))
        calls.append((start.name, json.loads(arguments.text)))
    return calls


def text_of(events: list[Event], kind: type) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample.family.name}: {sample.name}")
def test_what_is_in_it(sample: Sample):
    events = events_of(sample, [sample.text])
    assert text_of(events, Content) == sample.content
    assert text_of(events, Reasoning) == sample.reasoning
    assert calls_of(events) == sample.calls


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample.family.name}: {sample.name}")
def test_character_by_character(sample: Sample):
    assert events_of(sample, sample.text) == events_of(sample, [sample.text])


@given(st.data())
def test_however_it_is_cut(data: st.DataObject):
    sample = data.draw(st.sampled_from(SAMPLES))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(sample.text)), max_size=12)))
    places = [0, *cuts, len(sample.text)]
    pieces = [sample.text[a:b] for a, b in itertools.pairwise(places)]
    assert events_of(sample, pieces) == events_of(sample, [sample.text])


FRAGMENTS = sorted(
    {tag for family in FAMILIES for tag in (*family.tags, *family.starts)}
    | {"<think>", "</think>", "<response>", "<parameter=", "city>", "}", "]", '"name"', ": ", '"weather"', ", ", "\n"}
    | {
        '{"name": "weather", "arguments": ',
        '"arguments"',
        '{"city": "x"}',
        "weather",
        "(",
        ")",
        ">",
        "é",
        "\\",
        "x" * 600,
        "\\ud800",
        "NaN",
        '"function": ',
        '{"x": "',
    }
)


@given(
    st.sampled_from(FAMILIES),
    st.lists(st.sampled_from(FRAGMENTS), max_size=12),
    st.booleans(),
    st.lists(st.integers(0, 200), max_size=6),
)
def test_nonsense_is_cut_the_same_and_not_lost(family: Family, fragments: list[str], opened: bool, cuts: list[int]):
    text = "".join(fragments)
    sample = Sample("nonsense", family, text, opened=opened)
    whole = events_of(sample, [text])
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert events_of(sample, [text[a:b] for a, b in itertools.pairwise(places)]) == whole
    if "é" in text:
        assert "é" in "".join(getattr(event, "text", getattr(event, "name", "")) for event in whole).replace(
            "\\u00e9", "é"
        )
    for event in whole:
        "".join(str(getattr(event, name, "")) for name in ("text", "name")).encode()
    starts = sum(isinstance(event, CallStart) for event in whole)
    assert starts == sum(isinstance(event, CallEnd) for event in whole)


def test_without_tools_a_call_is_content():
    text = '<think>a</think><tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    parser = AnswerParser(None, {}, THINK)
    events = parser.push(text) + parser.close()
    assert text_of(events, Content) == text.removeprefix("<think>a</think>")
    assert text_of(events, Reasoning) == "a"


def test_text_is_told_as_soon_as_it_is_certain():
    parser = AnswerParser(HERMES, TOOLS, THINK)
    assert parser.push("Hello") == [Content("Hello")]
    assert parser.push(" wor") == [Content(" wor")]
    assert parser.push("ld <tool") == [Content("ld")]
    assert parser.push("s>") == [Content(" <tools>")]


@pytest.mark.parametrize(
    ("family", "before"),
    [
        (HERMES, '<tool_call>{"name": "write", "arguments": {"text": "'),
        (QWEN_XML, "<tool_call>\n<function=write>\n<parameter=text>\n"),
    ],
)
def test_long_arguments_come_as_they_are_written(family, before: str):
    parser = AnswerParser(family, TOOLS, THINK)
    assert parser.push(before) == []
    start, first, *_ = [event for _ in range(60) for event in parser.push("x" * 10)]
    assert (start.name, first.text.endswith("xxx")) == ("write", True)
    assert parser.push("yz") == [CallArguments(0, "yz")]


def test_a_long_call_that_is_cut_off_ends():
    text = f"<tool_call>\n<function=write>\n<parameter=text>\n{LONG}"
    *_, arguments, end = events_of(Sample("cut", QWEN_XML, text), [text])
    assert end == CallEnd(0)
    assert json.loads(arguments.text + '"}') == {"text": LONG}


def test_a_long_call_that_breaks_keeps_the_calls_after_it():
    broken = f'<tool_call>{{"name": "write", "arguments": {{"text": "{"x" * 600}", }} }}</tool_call>'
    good = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    events = events_of(Sample("broken", HERMES, ""), [broken + good])
    assert events_of(Sample("broken", HERMES, ""), broken + good) == events
    assert [event.name for event in events if isinstance(event, CallStart)] == ["write", "weather"]
    assert text_of(events, Content) == ""


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("template", ["", "[ARGS] ```json"])
def test_calls_in_the_form_that_a_grammar_makes(family: Family, template: str):
    form = family.form(Traits(template))
    calls = [("weather", {"city": "a } ] b"}), ("weather", {})]
    each = [f"{form.before}{name}{form.between}{json.dumps(arguments)}{form.after}" for name, arguments in calls]
    for text in (form.opening + form.separator.join(each) + form.closing, form.opening + each[0] + form.closing):
        events = events_of(Sample("forced", family, text), [text])
        assert calls_of(events) == calls[: text.count("weather")]
        assert events_of(Sample("forced", family, text), text) == events
        assert text_of(events, Content) == ""


def test_how_deep_a_text_goes_ends_nothing():
    for family, text in (
        (HERMES, '<tool_call>{"function": ' + '{"function": ' * 5000),
        (HERMES, '<tool_call>{"name": "a", "arguments": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}"),
        (LFM2, "<|tool_call_start|>[f(a=" + "[" * 5000 + "]" * 5000 + ")]<|tool_call_end|>"),
        (QWEN_XML, "<tool_call><function=write><parameter=deep>" + "[" * 100_000 + "</parameter></function>"),
        (DEEPSEEK, DS_CALLS * 5000),
    ):
        events = events_of(Sample("deep", family, text), [text])
        assert sum(len(getattr(event, "text", "")) for event in events) > 10_000


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("template", ["", "[ARGS] ```json"])
def test_calls_that_are_spelled_out_for_a_template_are_read_back(family: Family, template: str):
    calls = [("weather", {"city": 'a "b" é\n', "days": None}), ("write", {"deep": {"x": [True, 1.5]}}), ("write", {})]
    text = family.spell(family.form(Traits(template)), calls)
    events = events_of(Sample("spelled", family, text), [text])
    assert calls_of(events) == calls
    assert text_of(events, Content) == ""
