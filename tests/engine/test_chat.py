"""Chat templates against transformers' `apply_chat_template`, and what it does not do: parts, bounds, clear errors."""

import itertools
import threading
from datetime import datetime
from typing import Any

import chat_templates
import pytest
import tokenizers
import toy_tokenizers
import transformers
from tokenizers import models

from milepost.engine.chat import ChatTemplate
from milepost.errors import RequestError

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Today's weather <b>& more</b>, in °C",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {
    "id": "abcdefgh1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}},
}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "  What's <b>1 + 1</b>? 'é' \"😀\"\n "}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "turns": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb "},
        {"role": "user", "content": "c\nd"},
        {"role": "assistant", "content": "e", "reasoning_content": "so e"},
    ],
    "reasoning by another name": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning": "because"},
    ],
    "tools": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "7", "tool_call_id": "abcdefgh1"},
        {"role": "tool", "content": "8", "tool_call_id": "abcdefgh1"},
        {"role": "assistant", "content": "7"},
        {"role": "user", "content": "And now?"},
    ],
    "not alternating": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    "developer": [{"role": "developer", "content": "a"}, {"role": "user", "content": "b"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
}
WAYS: list[dict[str, Any]] = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "tools": [WEATHER, WEATHER], "enable_thinking": False},
    {"add_generation_prompt": False, "documents": [{"title": "t", "text": "x\ny"}, {"title": "u", "text": "z"}]},
    {"add_generation_prompt": False, "continue_final_message": True},
    {"add_generation_prompt": True, "bos_token": "<other>"},
]


@pytest.fixture(scope="module")
def theirs() -> transformers.PreTrainedTokenizerFast:
    backend = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL)


def rendered_by_theirs(
    theirs: transformers.PreTrainedTokenizerFast, template: str, messages: list[dict[str, Any]], way: dict[str, Any]
) -> str | None:
    """None where transformers, too, refuses or fails."""
    try:
        return theirs.apply_chat_template(messages, tokenize=False, chat_template=template, **way)
    except Exception:
        return None


@pytest.mark.parametrize("name", chat_templates.TEMPLATES)
def test_parity_with_transformers(theirs: transformers.PreTrainedTokenizerFast, name: str) -> None:
    source = chat_templates.TEMPLATES[name]
    ours = ChatTemplate(source, SPECIAL)
    assert ours.problem is None
    num_rendered = 0
    for (kind, messages), way in itertools.product(CONVERSATIONS.items(), WAYS):
        expected = rendered_by_theirs(theirs, source, messages, way)
        if kind == "parts" and name != "parts or text":
            continue  # theirs spells the list out, or fails; ours makes it text
        if expected is None:
            with pytest.raises(RequestError) as caught:
                ours.render(messages, **way)
            assert caught.value.status == 400
        else:
            assert ours.render(messages, **way) == expected, (kind, way)
            num_rendered += 1
    assert num_rendered >= 12


def test_parity_on_smollm2s_own_template(theirs: transformers.PreTrainedTokenizerFast) -> None:
    source = toy_tokenizers.smollm2_source()
    ours = ChatTemplate(source.chat_template, source.special_tokens)
    assert isinstance(source.chat_template, str)
    for kind in ("one", "system", "turns", "not alternating"):
        for way in WAYS:
            messages = CONVERSATIONS[kind]
            assert ours.render(messages, **way) == rendered_by_theirs(theirs, source.chat_template, messages, way)


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


TWO_PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def test_parts_become_text_where_the_template_wants_text() -> None:
    template = ChatTemplate(chat_templates.CHATML, SPECIAL)
    assert template.render(user(TWO_PARTS)) == template.render(user("a\nb"))
    assert template.render(user(["a", {"type": "input_text", "text": "b"}])) == template.render(user("a\nb"))


def test_parts_stay_parts_where_the_template_reads_them() -> None:
    template = ChatTemplate(chat_templates.PARTS_OR_TEXT, SPECIAL)
    assert template.render(user(TWO_PARTS)) == "<user>ab</user>\n<assistant>"
    assert template.render(user("ab")) == "<user>ab</user>\n<assistant>"


def test_text_becomes_a_part_where_the_template_reads_parts_only() -> None:
    template = ChatTemplate(chat_templates.ONLY_PARTS, SPECIAL)
    messages = [{"role": "system", "content": "s"}, *user("hello"), {"role": "assistant", "content": TWO_PARTS}]
    assert template.render(messages) == "system:s;user:hello;assistant:ab;"


def test_a_template_that_would_spell_the_list_out_gets_text() -> None:
    for source in ("{% for m in messages %}{{ m.content }}{% endfor %}", "{{ messages[0].content | tojson }}"):
        assert "type" not in ChatTemplate(source).render(user(TWO_PARTS))


def test_each_role_by_itself() -> None:
    """The system message is joined to a text here, so it must be one, though the user's may have parts."""
    source = (
        "{% if messages[0].role == 'system' %}{{ 'S:' + messages[0].content }}{% endif %}"
        "{% for m in messages if m.role == 'user' %}"
        "{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}"
        "{% endfor %}"
    )
    messages = [{"role": "system", "content": TWO_PARTS}, *user(TWO_PARTS)]
    assert ChatTemplate(source).render(messages) == "S:a\nb[a][b]"


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "messages is empty"),
        (7, "messages must be a list"),
        (None, "messages must be a list"),
        (user([{"type": "image_url", "image_url": {"url": "x"}}]), "part of type 'image_url'"),
        (user([{"type": "text"}]), "text part without text"),
        (user([{"text": "no type"}]), "part of type None"),
        (user([3]), "part of type None"),
        (user(3), "content must be text or a list"),
        (user({"type": "text", "text": "a"}), "content must be text or a list"),
        ([{"content": "a"}], "messages.0: must be an object with a role"),
        ([*user("a"), {"role": 7, "content": "a"}], "messages.1: must be an object with a role"),
        ([*user("a"), "b"], "messages.1: must be an object with a role"),
        ([{"role": "assistant", "tool_calls": [1]}], "tool_calls must be objects with a function"),
        ([{"role": "assistant", "tool_calls": {}}], "tool_calls must be a list"),
    ],
)
def test_bad_messages(messages: Any, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate(chat_templates.CHATML).render(messages)
    assert said in caught.value.message
    assert caught.value.param == "messages"
    assert caught.value.status == 400


@pytest.mark.parametrize("name", ["tools", "documents"])
@pytest.mark.parametrize("value", [5, "text", ["text"], [None], {"a": 1}])
def test_tools_and_documents_must_be_objects(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"{name} must be a list of objects"):
        ChatTemplate(chat_templates.CHATML).render(user("a"), **{name: value})


def test_what_a_template_raises_is_the_message() -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate(chat_templates.LLAMA2, SPECIAL).render(CONVERSATIONS["not alternating"])
    assert caught.value.message == "Conversation roles must alternate user/assistant/user/assistant/..."
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.nothing.there }}",
        "{{ 1 / 0 }}",
        "{% for x in none %}{% endfor %}",
        "{{ unknown() }}",
        "{% include 'file' %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_that_breaks_is_the_requests_error(source: str) -> None:
    with pytest.raises(RequestError, match="cannot put these messages into text") as caught:
        ChatTemplate(source).render(user("a"))
    assert "\n" not in caught.value.message


def test_a_template_that_is_not_valid() -> None:
    template = ChatTemplate("{% for %}", SPECIAL)
    assert template.problem is not None
    assert "line 1" in template.problem
    with pytest.raises(RequestError, match="not valid") as caught:
        template.render(user("a"))
    assert "--chat-template" in caught.value.hint


def test_no_template() -> None:
    with pytest.raises(RequestError, match="no chat template") as caught:
        ChatTemplate(None).render(user("a"))
    assert "--chat-template" in caught.value.hint
    assert "/v1/completions" in caught.value.hint


def test_templates_by_name() -> None:
    both = ChatTemplate({"default": "plain", "tool_use": "with tools"})
    assert both.render(user("a")) == "plain"
    assert both.render(user("a"), tools=[]) == "plain"
    assert both.render(user("a"), tools=[WEATHER]) == "with tools"
    assert ChatTemplate({"default": "plain", "rag": "rag"}).render(user("a"), tools=[WEATHER]) == "plain"
    with pytest.raises(RequestError, match="only: rag"):
        ChatTemplate({"rag": "rag"}).render(user("a"))


def test_the_clock_is_passed_in() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2031, 7, 5))
    assert template.render(user("a")) == "05 Jul 2031"


def test_arguments_of_tool_calls_are_read_from_json() -> None:
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"

    def arguments(value: Any) -> str:
        call = {"id": "1", "function": {"name": "f", "arguments": value}}
        return ChatTemplate(source).render([{"role": "assistant", "tool_calls": [call]}])

    assert arguments('{"a": [1, 2]}') == '{"a": [1, 2]}'
    assert arguments({"a": 1}) == '{"a": 1}'
    assert arguments("") == "{}"
    assert arguments('{"a": ') == '"{\\"a\\": "'
    assert arguments("[1]") == '"[1]"'


def test_an_assistant_without_content_has_an_empty_one() -> None:
    source = "{% for m in messages %}{{ m.role + m.content + m.get('name', '-') }}{% endfor %}"
    messages = [{"role": "assistant", "content": None, "name": None}, {"role": "assistant"}]
    assert ChatTemplate(source).render(messages) == "assistant-assistant-"


def test_messages_are_left_as_they_were() -> None:
    messages = [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}]
    before = repr(messages)
    ChatTemplate(chat_templates.CHATML).render(messages, add_generation_prompt=False, continue_final_message=False)
    assert repr(messages) == before


def test_cache_control_in_tool_calls_is_no_part_of_the_prompt() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    marked = {**call, **mark, "function": {**call["function"], **mark}}  # type: ignore[dict-item]
    template = ChatTemplate("{% for m in messages %}{{ m | tojson }}{% endfor %}")
    plain, told = (template.render([{"role": "assistant", "tool_calls": [one]}]) for one in (call, marked))
    assert told == plain


def test_continue_and_generation_prompt_together() -> None:
    with pytest.raises(RequestError, match="cannot both be true"):
        ChatTemplate(chat_templates.CHATML).render(user("a"), continue_final_message=True)


def test_continuing_what_cannot_be() -> None:
    way = {"add_generation_prompt": False, "continue_final_message": True}
    with pytest.raises(RequestError, match="does not show the final message"):
        ChatTemplate("fixed").render(user("a"), **way)
    with pytest.raises(RequestError, match="needs a final message with content"):
        ChatTemplate(chat_templates.CHATML).render([{"role": "user"}], **way)


def test_continuing_the_last_of_several_parts() -> None:
    way = {"add_generation_prompt": False, "continue_final_message": True}
    assert ChatTemplate(chat_templates.PARTS_OR_TEXT).render(user(TWO_PARTS), **way) == "<user>ab"
    assert ChatTemplate(chat_templates.CHATML).render(user(TWO_PARTS), **way) == "<|im_start|>user\na\nb"


def test_a_template_can_be_used_from_many_threads() -> None:
    template = ChatTemplate(chat_templates.THINKING, SPECIAL)
    wrong: list[str] = []

    def work(number: int) -> None:
        for i in range(40):
            text = template.render(user(f"{number}-{i}"))
            if text != f"<|im_start|>user\n{number}-{i}<|im_end|>\n<|im_start|>assistant\n":
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_whether_a_template_shows_tool_calls() -> None:
    shown = "{% for message in messages %}{{ message.content }}{{ message.tool_calls }}{% endfor %}"
    lost = "{% for message in messages %}{{ message.content }}{% endfor %}"
    assert ChatTemplate(shown).shows_calls(False)
    assert not ChatTemplate(lost).shows_calls(True)
    by_name = ChatTemplate({"default": lost, "tool_use": shown})
    assert (by_name.shows_calls(False), by_name.shows_calls(True)) == (False, True)
    assert ChatTemplate("{{ nothing.at.all }}").shows_calls(False), "it says itself what is wrong"
