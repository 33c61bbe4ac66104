"""The AI SDK of JavaScript, where Node and the package are: `npm install` in tools/ai_sdk."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from fake_engine import REPLY
from sdk_script import scripted

SCRIPT = Path(__file__).parents[2] / "tools" / "ai_sdk" / "chat.mjs"
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None or not (SCRIPT.parent / "node_modules" / "ai").is_dir(), reason="no AI SDK here")
def test_it_streams_text_and_calls_a_tool() -> None:
    assert NODE is not None
    with scripted() as (url, engine):
        run = subprocess.run(
            [NODE, str(SCRIPT), f"{url}/v1", "fake"], capture_output=True, text=True, timeout=60, check=False
        )
        prompt = engine.asked[-1][0]["prompt"]
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert (told["text"], told["outputTokens"]) == (REPLY, len(REPLY.encode()))
    assert told["pieces"] > 5
    assert (told["cities"], told["answer"]) == (["Paris"], "It rains.")
    assert prompt.startswith("[weather]<user>Weather?<assistant>")
    assert prompt.endswith("</tool_call><tool>rain<assistant>")
