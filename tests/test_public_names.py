"""`from milepost import ...`, and what the import costs."""

import subprocess
import sys

import pytest

import milepost


def test_public_names() -> None:
    assert milepost.LLM.__module__ == "milepost.engine.llm"
    assert milepost.AsyncLLM.__module__ == "milepost.engine.async_llm"
    assert milepost.SamplingParams().n == 1
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        milepost.Nothing  # noqa: B018


def test_neither_the_package_nor_the_help_imports_torch() -> None:
    code = "import sys, milepost, milepost.cli.main; sys.exit('torch' in sys.modules or 'fastapi' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
