"""A request that raises, at whatever place, fails alone: its neighbours' answers are what they are without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fake_engine import serving, state_of, wait_until

from milepost.config import EngineConfig
from milepost.engine import runner
from milepost.engine.async_llm import AsyncLLM
from milepost.engine.detokenizer import Detokenizer
from milepost.engine.grammars import Grammars
from milepost.engine.pooling import Pooled
from milepost.engine.sampler import Sampler
from milepost.engine.tokenizer import Tokenizer
from milepost.server.answers import AnswerReader
from milepost.server.responses_store import ResponseStore

SECRET = "poison"
ASK = [{"role": "user", "content": f"{SECRET}?"}]
CHAT = ("/v1/chat/completions", {"model": "", "messages": ASK, "max_tokens": 5})
RESPONSE = ("/v1/responses", {"model": "", "input": f"{SECRET}?", "max_output_tokens": 5})
MESSAGE = ("/v1/messages", {"model": "", "messages": ASK, "max_tokens": 5})
COMPLETION = ("/v1/completions", {"model": "", "prompt": SECRET, "max_tokens": 5})
EMBEDDING = ("/v1/embeddings", {"model": "", "input": SECRET})
REGEX = (
    "/v1/chat/completions",
    {"model": "", "messages": ASK, "max_tokens": 5, "structured_outputs": {"regex": f"{SECRET}+"}},
)

Ask = tuple[str, dict[str, Any]]


def is_poisoned(detokenizer: Any, *_: Any) -> bool:
    return SECRET in str(getattr(detokenizer, "secret", ""))


HOOKS: dict[str, tuple[Any, str, Callable[..., bool], list[Ask]]] = {
    "tokenizer": (Tokenizer, "encode", lambda self, text, *_, **__: SECRET in text, [COMPLETION, EMBEDDING]),
    "chat's tokenizer": (
        Tokenizer, "encode_with", lambda self, places, text, *_, **__: SECRET in text, [CHAT, RESPONSE, MESSAGE],
    ),
    "grammar": (Grammars, "_compile", lambda self, text, params: SECRET in text, [REGEX]),
    "sampler": (Sampler, "_sample", lambda self, logits, seq: seq.params.max_tokens == 5, [COMPLETION, CHAT, RESPONSE]),
    "detokenizer": (Detokenizer, "append", is_poisoned, [COMPLETION, CHAT, MESSAGE]),
    "parser": (AnswerReader, "take", lambda self, sample: len(sample.token_ids) > 0, [CHAT, RESPONSE, MESSAGE]),
    "rows of a vector": (runner, "pooled_rows", lambda piece, hidden: piece.seq.params.pooling, [EMBEDDING]),
    "pooling": (Pooled, "vector", lambda *_: True, [EMBEDDING]),
    "store": (ResponseStore, "add", lambda *_: True, [RESPONSE]),
}  # fmt: skip
"""What raises, for which arguments, and requests that come to it."""


@pytest.fixture(scope="module")
def llm() -> Iterator[AsyncLLM]:
    config = EngineConfig(model="milepost-tiny", kv_cache_memory_bytes=48 * 2**20, max_num_seqs=16, num_threads=1)
    llm = AsyncLLM.from_config(config)
    yield llm
    llm.shutdown()


@pytest.fixture(scope="module")
def url(llm: AsyncLLM) -> Iterator[str]:
    with serving(state_of(llm)) as url:  # type: ignore[arg-type]
        yield url


async def answers(url: str, failing: list[Ask]) -> tuple[list[str], list[httpx.Response]]:
    """What the neighbours are told, and the answers to `failing`, which are sent twice meanwhile, streamed or not."""
    async with httpx.AsyncClient(base_url=url, timeout=None) as http:

        async def neighbour(number: int) -> str:
            body = {
                "model": "",
                "prompt": f"Once upon a time {number}",
                "max_tokens": 40,
                "seed": number,
                "temperature": number % 2,
            }
            answer = await http.post("/v1/completions", json=body)
            return str(answer.json()["choices"][0]["text"])

        neighbours = [asyncio.ensure_future(neighbour(number)) for number in range(3)]
        asked = [
            http.post(path, json=body | ({"stream": True} if stream and path != EMBEDDING[0] else {}))
            for path, body in failing
            for stream in (False, True)
        ]
        return await asyncio.gather(*neighbours), await asyncio.gather(*asked)


@pytest.mark.parametrize("hook", HOOKS)
def test_neighbours_are_told_the_same(
    hook: str, llm: AsyncLLM, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place, name, is_meant, failing = HOOKS[hook]
    expected, _ = asyncio.run(answers(url, []))
    real, made = getattr(place, name), Detokenizer.__init__

    def raising(*args: Any, **kwargs: Any) -> Any:
        if is_meant(*args, **kwargs):
            raise ZeroDivisionError(f"planted, and quotes {SECRET}")
        return real(*args, **kwargs)

    def remembering(self: Any, tokenizer: Tokenizer, params: Any, ids: Any) -> None:
        made(self, tokenizer, params, ids)
        self.secret = tokenizer.decode(ids)

    monkeypatch.setattr(Detokenizer, "__init__", remembering)
    monkeypatch.setattr(place, name, raising)
    got, failed = asyncio.run(answers(url, failing))
    assert got == expected
    for answer in failed:
        assert answer.status_code == 500 or '"error":{' in answer.text, answer.text
        assert answer.status_code != 400, answer.text
        assert f"quotes {SECRET}" not in answer.text
        assert answer.text.count("event: response.failed") <= 1
        assert "response.completed" not in answer.text
    assert f"quotes {SECRET}" not in caplog.text
    wait_until(lambda: not llm._engine.has_work)
    assert llm.errored is None
    assert llm._engine.scheduler.cache.usage == 0
