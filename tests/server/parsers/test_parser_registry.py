"""Which family a model is of, by its chat template and its special tokens."""

from __future__ import annotations

import pytest
from samples import DS_CALLS

from milepost.server.parsers.family import Traits
from milepost.server.parsers.reasoning import GRANITE, MISTRAL, THINK, Thinking, thinking_of
from milepost.server.parsers.registry import FAMILIES, family_of

LLAMA = "<|start_header_id|>{{ role }}<|end_header_id|>"

CASES = [
    ("hermes", '<tool_call>\n{"name": ...}\n</tool_call> <think>', (), THINK),
    ("hermes", "granite 4: <|start_of_role|><tool_call>", ("<|tool_call|>",), None),
    ("qwen_xml", "<tool_call>\n<function=f>\n<parameter=a>", (), None),
    ("llama3", LLAMA + 'Respond in the format {"name": ..., "parameters": ...}', (), None),
    ("llama3", LLAMA + "<|python_tag|>", (), None),
    ("plain", LLAMA, (), None),
    ("mistral", "[AVAILABLE_TOOLS] [TOOL_CALLS] [THINK]", (), MISTRAL),
    ("granite", "<|start_of_role|> <|tool_call|> <think></think> <response></response>", (), GRANITE),
    ("nemotron", "<TOOLCALL>[]</TOOLCALL> <think>", (), THINK),
    ("lfm2", "List of tools: [", ("<|tool_call_start|>", "<think>"), THINK),
    ("hermes", "<tool_call></tool_call>", ("<|tool_call_start|>",), None),
    ("deepseek", f"{DS_CALLS} </think>", (), THINK),
    ("plain", "{{ messages }}", (), None),
]


@pytest.mark.parametrize(("name", "template", "special", "thinking"), CASES)
def test_family(name: str, template: str, special: tuple[str, ...], thinking: Thinking | None):
    traits = Traits(template, frozenset(special))
    assert family_of(traits).name == name
    assert thinking_of(traits) == thinking


def test_names_are_different():
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


def test_whether_the_prompt_opens_reasoning():
    assert THINK.opened_by("<|im_start|>assistant\n<think>\n")
    assert not THINK.opened_by("<think> is a tag<|im_start|>assistant\n")
    assert not THINK.opened_by("<think>\n\n</think>\n\n")
    assert THINK.open_in("<think>one, two")
    assert not THINK.open_in("<think>one</think> two")
    assert not THINK.open_in("one")
