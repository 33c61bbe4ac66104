"""What every command has in common: help, errors, exit codes."""

import subprocess
import sys

import pytest

import milepost
from milepost.cli.main import main
from milepost.errors import ModelError, RequestError


def test_version(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"milepost {milepost.__version__}\n"


def test_help_imports_nothing_heavy():
    code = """
import sys
from milepost.cli.main import main
try:
    main(["serve", "--help"])
finally:
    print([name for name in ("torch", "fastapi", "uvicorn", "transformers", "tokenizers") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "--max-num-batched-tokens" in done.stdout
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize(
    "args",
    [
        ["nothing"],
        ["serve", "--no-such-flag"],
        ["serve", "--port", "70000"],
        ["serve", "--port", "many"],
        ["serve", "--max-model-len", "4x"],
        ["generate"],
        ["generate", "--prompt", "x", "--max-tokens", "0"],
        ["chat", "--temperature", "warm"],
    ],
)
def test_wrong_usage(args: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(args)
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "Error" in told.err


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
        ["chat", "--seed", "-1"],
    ):
        assert main(args) == 2
        assert capsys.readouterr().err.startswith(f"error: {'no chat template' if 'file' in args[2] else '--'}"), args
    assert loaded.configs == []


def test_interrupt_is_quiet(loaded, capsys: pytest.CaptureFixture[str]):
    loaded.failure = KeyboardInterrupt()
    with pytest.raises(SystemExit) as ended:
        main(["generate", "--prompt", "x"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == ""
