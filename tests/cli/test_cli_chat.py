import signal
from collections.abc import Iterator

import pytest
from fake_engine import REPLY, failed_inside

from milepost.cli.main import main
from milepost.errors import RequestError


def talk(monkeypatch: pytest.MonkeyPatch, lines: list[str], args: tuple[str, ...] = ()) -> int:
    """The exit code of a session in which a user types `lines` and then ends the input."""
    typed: Iterator[str] = iter(lines)

    def read(prompt: str = "") -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    code = main(["chat", *args])
    assert next(typed, None) is None, "all was read"
    return code


def prompts(loaded) -> list[str]:
    return [prompt["prompt"] for prompt, *_ in loaded.engine.asked]


def test_conversation_grows(loaded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert talk(monkeypatch, ["Where?", "", "  Sure?  "], ("--system", "Be brief.")) == 0
    first, second = prompts(loaded)
    assert first == "<system>Be brief.<user>Where?<assistant>"
    assert second == f"<system>Be brief.<user>Where?<assistant>{REPLY}<user>Sure?<assistant>"
    told = capsys.readouterr()
    assert told.out == (REPLY + "\n") * 2 + "\n"
    assert told.err.count("prompt tokens reused") == 2
    assert loaded.engine.shut_down


def test_commands(loaded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert talk(monkeypatch, ["one", "/reset", "two", "/what", "/exit"]) == 0
    assert prompts(loaded) == ["<user>one<assistant>", "<user>two<assistant>"]
    assert "/exit ends" in capsys.readouterr().err


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What is started in the background of a shell ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_interrupt_stops_the_answer_only(loaded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    loaded.engine.step_s = 0.001
    steps = loaded.engine._steps

    async def interrupted(ids, params):
        count = 0
        async for samples in steps(ids, params):
            yield samples
            count += 1
            if count == 3 and len(loaded.engine.asked) == 1:
                signal.raise_signal(signal.SIGINT)

    loaded.engine._steps = interrupted
    assert talk(monkeypatch, ["one", "two"]) == 0
    assert prompts(loaded) == ["<user>one<assistant>", "<user>one<assistant>Caf<user>two<assistant>"]
    assert capsys.readouterr().out == f"Caf [stopped]\n{REPLY}\n\n"
    assert not loaded.engine.running


def test_refused_question_is_forgotten(loaded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    loaded.engine.fail = RequestError("too long", "send less")
    check = loaded.engine._check

    def check_once(ids: list[int]) -> None:
        check(ids)
        loaded.engine.fail = loaded.engine.fail if len(loaded.engine.asked) == 1 else None

    loaded.engine._check = check_once
    assert talk(monkeypatch, ["one", "two"]) == 0
    assert prompts(loaded)[-1] == "<user>two<assistant>"
    assert "error: too long (hint: send less)" in capsys.readouterr().err


def test_failed_answer_does_not_end_the_session_but_a_dead_engine_does(
    loaded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    loaded.engine.fail = failed_inside()
    assert talk(monkeypatch, ["one", "two"]) == 0
    assert capsys.readouterr().err.count("error: the sampler failed") == 2
    loaded.engine.errored = loaded.engine.fail
    monkeypatch.setattr("builtins.input", lambda prompt="": "three")
    assert main(["chat"]) == 2
    assert "error: the sampler failed\nhint: send it again\n" in capsys.readouterr().err


def test_a_model_without_a_template_is_told_before_anything_is_typed(
    loaded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    loaded.engine.chat_template = None
    monkeypatch.setattr("builtins.input", lambda prompt="": pytest.fail("it asks for input"))
    assert main(["chat"]) == 2
    assert capsys.readouterr().err == (
        "error: this model has no chat template\nhint: give one with --chat-template FILE\n"
    )
    assert loaded.engine.shut_down
