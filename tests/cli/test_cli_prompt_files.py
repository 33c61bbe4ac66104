"""Prompts in files, read as a server would read them."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_engine import BOS, FakeTokenizer

from milepost.cli.prompt_files import FileModel, FilePrompt, read_file, read_prompt
from milepost.engine.chat import ChatTemplate
from milepost.errors import ConfigError, RequestError

TEMPLATE = ChatTemplate(
    "{% for m in messages %}<{{ m.content }}>{% endfor %}{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
    "{% if add_generation_prompt %}!{% endif %}{{ mood }}"
)
MODEL = FileModel(FakeTokenizer(), TEMPLATE, 258)  # type: ignore[arg-type]
MESSAGES = [{"role": "user", "content": "Where?"}]


def read(content: Any, name: str = "a.json") -> FilePrompt:
    text = content if isinstance(content, str) else json.dumps(content)
    return read_prompt(name, text, MODEL)


def test_text_and_ids() -> None:
    plain = read("Where?\n", "a.txt")
    assert (plain.text, plain.ids, plain.messages) == ("Where?\n", [BOS, *b"Where?\n"], None)
    assert read({"prompt": "Where?"}).ids == [BOS, *b"Where?"]
    assert (read({"prompt": [65, 66]}).text, read({"prompt": [65, 66]}).ids) == ("AB", [65, 66])


def test_messages_go_through_the_template() -> None:
    assert (read(MESSAGES).text, read(MESSAGES).ids) == ("<Where?>!", list(b"<Where?>!"))
    assert read({"messages": MESSAGES, "model": "x"}).text == "<Where?>!"
    body = {
        "messages": MESSAGES,
        "tools": [{"type": "function", "function": {"name": "f"}}, {"type": "web_search"}],
        "chat_template_kwargs": {"mood": "glad"},
    }
    assert read(body).text == "<Where?>[f]!glad"
    assert read({"messages": MESSAGES, "add_generation_prompt": False}).text == "<Where?>"
    continued = [*MESSAGES, {"role": "assistant", "content": "In"}]
    assert read({"messages": continued, "continue_final_message": True}).text == "<Where?><In"


def test_places_where_others_part() -> None:
    assert read({"prompt": list(range(65, 75)), "cache_breakpoints": [3, 7]}).places.breakpoints == (3, 7)
    assert read(MESSAGES).places.boundaries, "of messages"
    assert not read("Where?", "a.txt").places
    with pytest.raises(RequestError, match="cache_breakpoints"):
        read({"prompt": "Where?", "cache_breakpoints": [100]})


@pytest.mark.parametrize("text", ["[1] is a footnote", "{x} is a set", "[]", "[1, 2]", '{"a": 1}', "[" * 100_000])
def test_text_that_looks_like_json_stays_text(text: str) -> None:
    assert read(text, "a.txt").text == text


def test_what_cannot_be_read() -> None:
    with pytest.raises(ConfigError, match=r"a\.json is not valid JSON"):
        read('{"messages": [')
    with pytest.raises(ConfigError, match=r"a\.json: messages\.0\.role"):
        read({"messages": [{"content": "Where?"}]})
    for wrong in ({"chat_template_kwargs": 5}, {"tools": 5}, {"messages": "Where?"}, {"add_generation_prompt": "oh"}):
        with pytest.raises(ConfigError, match=r"a\.json: "):
            read({"messages": MESSAGES, **wrong})
    with pytest.raises(RequestError, match="chat_template_kwargs cannot hold messages"):
        read({"messages": MESSAGES, "chat_template_kwargs": {"messages": []}})
    with pytest.raises(RequestError, match="messages is empty"):
        read({"messages": []})
    for ids in ([258], [-1], [65, 999_999]):
        with pytest.raises(ConfigError, match=r"is not in the vocabulary \(0 to 257\)"):
            read({"prompt": ids})
    with pytest.raises(ConfigError, match="prompt must be"):
        read({"prompt": ["a", "b"]})
    with pytest.raises(RequestError, match="no chat template") as refused:
        read_prompt("a", json.dumps(MESSAGES), replace(MODEL, chat_template=None))
    assert "--chat-template" in refused.value.hint


def test_files_and_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("é\n", encoding="utf-8")
    assert read_file(str(tmp_path / "a")) == "é\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    assert read_file("-") == "from a pipe"
    with pytest.raises(ConfigError, match="no file at"):
        read_file(str(tmp_path / "nowhere"))
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="no UTF-8"):
        read_file(str(tmp_path / "b"))
