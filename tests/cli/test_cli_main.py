"""What every command has in common: help, errors, exit codes."""

import subprocess
import sys

import pytest

import milepost
from milepost.cli.main import main
from milepost.errors import ModelError, RequestError


def test_version(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"milepost {milepost.__version__}\n"


def test_help_imports_nothing_heavy():
    code = """
import sys
from milepost.cli.main import main
try:
    main(["serve", "--help"])
finally:
    heavy = ("torch", "fastapi", "uvicorn", "transformers", "tokenizers", "numpy")
    print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "--max-num-batched-tokens" in done.stdout
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["nothing"], "no such command 'nothing'"),
        (["serve", "--no-such-flag"], "no such option: --no-such-flag"),
        (["serve", "--port", "70000"], "invalid value for '--port': "),
        (["serve", "--port", "many"], "invalid value for '--port': "),
        (["serve", "--max-model-len", "4x"], "invalid value for '--max-model-len': '4x' is not a size"),
        (["serve", "--prefix-cache-retention-interval", "x"], "--prefix-cache-retention-interval: 'x' is not a number"),
        (["serve", "a", "b"], "got unexpected extra argument"),
        (["generate"], "missing option '--prompt'"),
        (["generate", "--prompt"], "option '--prompt' requires an argument"),
        (["generate", "--prompt", "x", "--max-tokens", "0"], "invalid value for '--max-tokens': "),
        (["chat", "--temperature", "warm"], "invalid value for '--temperature': "),
    ],
)
def test_wrong_usage(args: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(args) == 2
    said = capsys.readouterr()
    error, hint, *rest = said.err.splitlines()
    assert (said.out, rest) == ("", [])
    assert error.startswith(f"error: {told}")
    assert hint.startswith("hint: ")
    assert args[0] == "nothing" or "--help` lists" in hint or "multiple of 64" in hint


def test_a_mistyped_flag_gets_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "--max-num-seq", "3"]) == 2
    said = capsys.readouterr().err
    assert "hint: did you mean --max-num-seqs" in said
    assert "`milepost serve --help` lists what it takes" in said


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("Usage: milepost")
    assert "doctor" in said.err


@pytest.mark.parametrize("failure", [ModelError("no such model", "choose another"), RequestError("too long")])
def test_errors_are_told_without_traceback(loaded, failure: Exception, capsys: pytest.CaptureFixture[str]):
    loaded.failure = failure
    assert main(["generate", "--prompt", "x"]) == 2
    told = capsys.readouterr()
    hint = f"hint: {failure.hint}\n" if failure.hint else ""
    assert (told.out, told.err) == ("", f"error: {failure.message}\n{hint}")


def test_settings_that_cannot_work(loaded, capsys: pytest.CaptureFixture[str]):
    for args in (
        ["serve", "--dtype", "int3"],
        ["serve", "--max-num-seqs", "0"],
        ["serve", "--chat-template", "no/such/file"],
        ["serve", "--scheduling-policy", "random"],
        ["serve", "--api-key", ""],
        ["serve", "--served-model-name", ""],
        ["serve", "--served-model-name", "a", ""],
        ["serve", "--served-model-name", "a", "/"],
        ["chat", "--seed", "-1"],
    ):
        assert main(args) == 2
        assert capsys.readouterr().err.startswith(f"error: {'no chat template' if 'file' in args[2] else '--'}"), args
    assert loaded.configs == []


def test_interrupt_is_quiet(loaded, capsys: pytest.CaptureFixture[str]):
    loaded.failure = KeyboardInterrupt()
    assert main(["generate", "--prompt", "x"]) == 130
    assert capsys.readouterr().err == ""
