"""`milepost launch`: what agents are given. In place of each, a program of its name writes down what it gets."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_engine import FakeEngine, serving, state_of

from milepost.cli.agents import AGENTS, KEY, Target
from milepost.cli.main import main

RECORDER = """#!/bin/sh
env > "$RECORD"
for argument in "$@"; do printf '%s\\n' "$argument" >> "$RECORD.args"; done
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(state_of(FakeEngine())) as url:
        yield url


def exported(text: str) -> dict[str, str]:
    pairs = [shlex.split(line)[1].partition("=") for line in text.splitlines() if line.startswith("export ")]
    return {name: value for name, _, value in pairs}


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_is_pointed_at_the_server_its_model_and_its_key(
    name: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", name, "--print", "--url", f"{url}/v1", "--api-key", "a 'key"]) == 0
    said = capsys.readouterr().out
    given = exported(said)
    last = said.splitlines()[-1]
    assert last.startswith(f"# then: {AGENTS[name].program}")
    everything = " ".join(given.values()) + last
    assert url in everything
    assert "fake" in everything
    assert "a" in given.values(), "of a variable with all keys, the first"


def test_print_is_read_by_a_shell(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "claude", "--print", "--url", url]) == 0
    script = (
        "export ANTHROPIC_API_KEY=real\n" + capsys.readouterr().out + 'echo "$ANTHROPIC_BASE_URL|$ANTHROPIC_API_KEY"'
    )
    ran = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{url}|\n"


def test_it_starts_the_agent_with_its_own_arguments(url: str, tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.write_text(RECORDER)
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "RECORD": str(tmp_path / "record"),
        "ANTHROPIC_API_KEY": "somebody's",
        "KEPT": "yes",
    }
    command = [sys.executable, "-m", "milepost", "launch", "claude-code", "--url", url, "--", "-p", "two words"]
    subprocess.run(command, env=environment, check=True, timeout=60)
    got = dict(line.partition("=")[::2] for line in (tmp_path / "record").read_text().splitlines())
    assert got["ANTHROPIC_BASE_URL"] == url
    assert got["ANTHROPIC_MODEL"] == got["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "fake"
    assert got["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "256"
    assert got["KEPT"] == "yes"
    assert "ANTHROPIC_API_KEY" not in got
    assert (tmp_path / "record.args").read_text() == "-p\ntwo words\n"


def test_configurations_inside_of_variables_and_arguments() -> None:
    target = Target("http://h:1", 'k"', 'm"1', 4096)
    given = AGENTS["opencode"].environment(target)
    config = json.loads(given["OPENCODE_CONFIG_CONTENT"] or "")
    assert config["model"] == 'milepost/m"1'
    assert config["provider"]["milepost"]["options"] == {"baseURL": "http://h:1/v1", "apiKey": "{env:MILEPOST_API_KEY}"}
    assert config["provider"]["milepost"]["models"]['m"1']["limit"] == {"context": 4096, "output": 1024}
    assert given[KEY] == 'k"'
    arguments = AGENTS["codex"].arguments(target)
    assert arguments[:2] == ["--model", 'm"1']
    assert 'model_providers.milepost.base_url="http://h:1/v1"' in arguments
    assert "model_context_window=4096" in arguments
    assert AGENTS["codex"].environment(target) == {KEY: 'k"'}
    assert AGENTS["goose"].environment(Target("http://h:1", None, "m"))["OPENAI_API_KEY"] == "none"


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(AGENTS)


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (["nobody"], "no agent is known as 'nobody'", "one of: claude, codex, "),
        (["goose", "--print", "--url", "http://127.0.0.1:1"], "no Milepost server answers", "start one with"),
        (["goose", "--print", "--url", "nonsense"], "--url cannot be 'nonsense'", "such as"),
    ],
)
def test_errors(args: list[str], error: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *args]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"error: {error}")
    assert second.startswith(f"hint: {hint}")


def test_an_agent_that_is_not_there(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["launch", "codex", "--url", url]) == 2
    assert capsys.readouterr().err == (
        "error: Codex CLI is not installed: there is no codex on the PATH\nhint: npm install -g @openai/codex\n"
    )


def test_another_model_is_named_only_if_it_is_served(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "aider", "--print", "--url", url, "--model", "other"]) == 2
    assert capsys.readouterr().err == "error: the server has no model 'other'\nhint: it has: fake\n"
    assert main(["launch", "aider", "--print", "--url", url, "--model", "fake"]) == 0
    assert exported(capsys.readouterr().out)["AIDER_MODEL"] == "openai/fake"
