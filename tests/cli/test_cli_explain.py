"""`milepost explain`, on a tiny hybrid model's folder and on a server."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from byte_llama import byte_tokenizer
from fake_engine import FakeEngine, serving, state_of
from families import FAMILIES, tiny_model

from milepost.cli.explanation import quoted
from milepost.cli.main import main
from milepost.outputs import CacheReport

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SYSTEM = "You are a patient helper of students. It is 2026-11-30 {time}. " + "Answer in plain words. " * 10
CHAT = [
    {"role": "system", "content": SYSTEM.replace("{time}", "10:15")},
    {"role": "user", "content": "Where is Paris?"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each byte is a token."""
    path = tmp_path_factory.mktemp("hybrid")
    tiny_model(FAMILIES["granitemoehybrid"]).save_pretrained(path)
    byte_tokenizer().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return path


def write(folder: Path, **prompts: Any) -> list[str]:
    names = []
    for name, prompt in prompts.items():
        names.append(str(folder / name))
        Path(names[-1]).write_text(prompt if isinstance(prompt, str) else json.dumps(prompt))
    return names


def told(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["explain", *args]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def test_two_chats(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    later = [CHAT[0] | {"content": SYSTEM.replace("{time}", "10:16")}, CHAT[1]]
    a, b = write(tmp_path, a=CHAT, b={"messages": later})
    text = "<|system|>" + CHAT[0]["content"] + "\n<|user|>Where is Paris?\n<|assistant|>"
    place = text.index("10:15") + 4
    assert 64 <= place < 80
    assert told(capsys, str(folder), a, b).splitlines() == [
        f"model    {folder}: recurrent states on a grid of 64 tokens, of which all of them are kept",
        f"A        {len(text)} tokens, 2 messages ({a})",
        f"B        {len(text)} tokens, 2 messages ({b})",
        f"parting  at token {place}, in message 1 of 2 (system)",
        '         A: "-30 10:1" then "5. Answe"',
        '         B: "-30 10:1" then "6. Answe"',
        f"resumed  64 of {len(text)} tokens of B",
        f"computed {len(text) - 64} tokens",
        f"           {len(text) - place} that A does not have there",
        f"           {place - 64} known ones: only whole blocks of 16 are shared, "
        "and the last token is always computed",
        "cause    a date or a time differs there: what changes with each request belongs behind what stays the same",
    ]


def test_as_json(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = write(tmp_path, a="x" * 200, b="x" * 150 + "y" * 50)
    found = json.loads(told(capsys, str(folder), a, b, "--json", "--prefix-cache-retention-interval", "0"))
    assert found == {
        "model": str(folder),
        "grid_tokens": 64,
        "retention_interval": 0,
        "a": {"file": a, "tokens": 200, "messages": None, "before": "x" * 8, "after": "x" * 8},
        "b": {"file": b, "tokens": 200, "messages": None, "before": "x" * 8, "after": "y" * 8},
        "position": 150,
        "message": None,
        "matched_tokens": 144,
        "resumed_tokens": 0,
        "recomputed_tokens": 144,
        "reason": "state thinned",
        "reason_position": 0,
        "causes": ["--prefix-cache-retention-interval 0: states at each 64 tokens would resume 128"],
    }


def test_no_weights_are_read(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = write(tmp_path, a="x" * 100, b="x" * 120)
    monkeypatch.setattr("milepost.models.loader.load.load_model", None)
    monkeypatch.setattr("milepost.models.loader.safetensors_folder.SafetensorsFiles.read", None)
    assert main(["explain", str(folder), a, b]) == 0


def test_one_prompt_from_stdin(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (a,) = write(tmp_path, a="x" * 100)
    monkeypatch.setattr(sys, "stdin", io.StringIO("x" * 100))
    assert "none: the prompts are the same" in told(capsys, str(folder), a, "-")
    assert main(["explain", str(folder), "-", "-"]) == 2


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ([], "explain needs a model and two prompts"),
        (["MODEL", "A"], "explain needs a model and two prompts"),
        (["MODEL", "A", "B", "--url", "http://127.0.0.1:1"], "explain takes either --url or two prompts"),
        (["MODEL", "nowhere", "nowhere"], "no file at nowhere"),
        (["MODEL", "A", "B", "--prefix-cache-retention-interval", "100"], "the retention interval must be a multiple"),
        (["--url", "http://127.0.0.1:1"], "no Milepost server answers at http://127.0.0.1:1"),
        (["--url", "127.0.0.1:8000"], "--url cannot be"),
        (["--url", "http://127.0.0.1:1", "--last", "0"], "invalid value for '--last'"),
    ],
)
def test_wrong_usage(
    args: list[str], error: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = dict(zip("AB", write(tmp_path, a="x", b="y"), strict=True)) | {"MODEL": str(folder)}
    assert main(["explain", *(names.get(arg, arg) for arg in args)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"error: {error}")
    assert said.err.splitlines()[1].startswith("hint: ")


def test_the_last_requests_of_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine()
    with serving(state_of(engine, api_keys=("one", "two"))) as url:
        assert told(capsys, "--url", url, "--api-key", "one") == "no requests yet\n"
        headers = {"Authorization": "Bearer one"}
        for report in (CacheReport(1040, 32, 16, "diverged", 3), CacheReport(20, 16, 16), CacheReport(9, 0, 0)):
            engine.report = report
            body = {"model": "", "prompt": "\x1b[1mwords", "max_tokens": 1, "add_special_tokens": False}
            httpx.post(f"{url}/v1/completions", json=body, headers=headers).raise_for_status()
        head, first, second = told(capsys, "--url", f"{url}/v1/", "--api-key", "one two", "--last", "2").splitlines()
        assert head.split()[:5] == ["time", "request", "prompt", "matched", "resumed"]
        assert first.split()[3:] == ["9", "0", "0", "-"]
        assert second.split()[3:] == ["20", "16", "16", "-"]
        found = json.loads(told(capsys, "--url", url, "--api-key", "one", "--json"))["requests"]
        assert [one["prompt_tokens"] for one in found] == [9, 20, 1040]
        *_, oldest = told(capsys, "--url", url, "--api-key", "one").splitlines()
        assert oldest.split()[3:8] == ["1,040", "32", "16", "diverged", "3"]
        assert oldest.rstrip().endswith('"\\u001b[1mwor"'), "its text cannot steer the terminal"
        assert main(["explain", "--url", url]) == 2
        assert "hint: give --api-key" in capsys.readouterr().err


def test_text_of_prompts_cannot_steer_the_terminal() -> None:
    assert quoted("\x9b1m\x1b[2J\n") == '"1m\\u001b[2J\\n"'
