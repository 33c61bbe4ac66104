"""An engine without a model: answers every prompt with the same text, one UTF-8 byte a token."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
import types
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvicorn

from milepost.cache.keys import prefix_id
from milepost.cache.snapshot import CacheSnapshot, KindBytes
from milepost.cache.stats import CacheStats
from milepost.cache.tree_snapshot import CheckpointView, NodeView, TreeSnapshot
from milepost.engine.chat import ChatTemplate
from milepost.engine.places import Places, in_tokens
from milepost.engine.prefixes import PinFor
from milepost.engine.record_file import RecordFile
from milepost.errors import RequestError, RequestFailed
from milepost.outputs import CacheReport, CompletionOutput, Logprob, PinnedPrefix, PrewarmOutput, RequestOutput
from milepost.sampling_params import RequestOutputKind, SamplingParams
from milepost.server.app import create_app
from milepost.server.run import listen, url_of
from milepost.server.state import ServerSettings, ServerState

REPLY = "Café in Paris.\n"
BOS, EOS = 256, 257


class FakeTokenizer:
    """Ids 0 to 255 are bytes; BOS comes first when special tokens are asked for."""

    special_token_ids = frozenset({BOS, EOS})
    special_tokens = types.MappingProxyType({"bos_token": "<s>", "eos_token": "</s>"})

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [BOS] * add_special_tokens + list(text.encode())

    def encode_with(self, places: Places, text: str, add_special_tokens: bool = True) -> tuple[list[int], Places]:
        found = in_tokens(places, lambda place: add_special_tokens + len(text[:place].encode()))
        return self.encode(text, add_special_tokens), found

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        special = "" if skip_special_tokens else "<s>" * sum(token == BOS for token in ids)
        return special + bytes(token for token in ids if token < BOS).decode(errors="replace")

    def token_text(self, token_id: int) -> str:
        return {BOS: "<s>", EOS: "</s>"}.get(token_id) or bytes([token_id]).decode(errors="replace")


TOOLS_AND_MESSAGES = (
    "{%- for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{%- for message in messages %}<{{ message.role }}>{% if message.reasoning_content %}<think>\n"
    "{{ message.reasoning_content }}\n</think>\n\n{% endif %}{{ message.content }}"
    "{%- for call in message.tool_calls or [] %}{{ '\n' }}<tool_call>\n{{ call.function | tojson }}\n</tool_call>"
    "{%- endfor %}"
)
"""The head of a template that shows reasoning and calls, too; the rest of the loop's body and its end follow."""
TEMPLATE = (
    "{%- if messages[0].content == 'break the template' %}{{ nothing.at.all }}{% endif %}"
    "{%- for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{%- for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{%- if think %}[think={{ think }}]{% endif %}"
    "{%- if add_generation_prompt %}<assistant>{% endif %}"
)


class FakeEngine:
    """`step_s`: seconds a token takes. `endless`: generates until it is left or reaches max_tokens. `reply`: what it
    says to every prompt, or a function of the prompt's text."""

    model_name = "fake"
    max_model_len = 256
    vocab_size = 258
    hidden_size = 3

    def __init__(
        self,
        step_s: float = 0.0,
        endless: bool = False,
        with_text: bool = True,
        *,
        reply: str | Callable[[str], str] = REPLY,
        template: str = TEMPLATE,
    ) -> None:
        self.reply = reply
        self.step_s, self.endless = step_s, endless
        self.tokenizer = FakeTokenizer() if with_text else None
        self.chat_template = ChatTemplate(template) if with_text else None
        self.default_sampling: dict[str, float] = {"temperature": 0.25, "top_k": 7}
        self.errored: Exception | None = None
        self.stalled = False
        self.fail: Exception | None = None
        self.fail_after = 0
        self.running: set[str] = set()
        self.asked: list[tuple[dict[str, Any], SamplingParams, int, str]] = []
        self.report: CacheReport | None = None
        self.warmed: list[tuple[dict[str, Any], bool | PinFor, str]] = []
        self.pins: dict[str, PinnedPrefix] = {}
        self.owners: dict[str, str] = {}
        self.tree_scopes: list[str | None] = []
        self.recorded: str | None = None
        self.shut_down = False
        self._seen: set[tuple[str, tuple[int, ...]]] = set()

    async def generate(
        self,
        prompt: dict[str, Any],
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncIterator[RequestOutput]:
        ids = prompt.get("prompt_token_ids")
        ids = self.tokenizer.encode(prompt["prompt"]) if ids is None else ids
        self.asked.append((prompt, sampling_params, priority, cache_salt))
        self._check(ids)
        known = cache_salt, tuple(ids)
        cached = len(ids) // 16 * 16 if known in self._seen else 0
        self._seen.add(known)
        self.running.add(request_id)
        try:
            async for samples in self._steps(ids, sampling_params):
                done = all(sample.finished for sample in samples)
                yield RequestOutput(
                    request_id=request_id,
                    prompt=prompt.get("prompt"),
                    prompt_token_ids=ids,
                    outputs=samples,
                    finished=done,
                    prompt_logprobs=self._prompt_logprobs(ids, sampling_params),
                    num_cached_tokens=cached,
                    cache=self.report or CacheReport(len(ids), cached, cached),
                    embedding=None if sampling_params.pooling is None else vector_of(ids, sampling_params.pooling),
                )
        finally:
            self.running.discard(request_id)

    def metrics_text(self) -> bytes:
        return b'vllm:num_requests_running{model_name="fake"} 0.0\n'

    def cache_snapshot(self) -> CacheSnapshot:
        by_kind = {"kv": KindBytes(48, 64), "state": KindBytes(20, 30)}
        stats = CacheStats(queries=100, hits=60, matched=80)
        return CacheSnapshot(True, True, None, 64, 1000, 940, 30, 3, 10, by_kind, 32, 2, stats)

    async def cache_tree(self, scope: str | None = None) -> TreeSnapshot:
        self.tree_scopes.append(scope)
        checkpoint = CheckpointView(64, "end", 2, 0)
        return TreeSnapshot((NodeView(0, None, 0, 0, 80, 1, 1, 3, 25, 1, (checkpoint,)),), 3, 1)

    async def prewarm(
        self,
        prompt: dict[str, Any],
        request_id: str | None = None,
        *,
        pin: bool | PinFor = False,
        priority: int = 0,
        cache_salt: str = "",
    ) -> PrewarmOutput:
        """Answers at once; a prompt of more than 200 tokens is more than may be pinned."""
        ids = prompt["prompt_token_ids"]
        self._check(ids)
        self.warmed.append((prompt, pin, cache_salt))
        name = prefix_id(cache_salt, ids)
        if isinstance(pin, PinFor):
            if len(ids) > 200:
                raise RequestError("pinning is too much", "unpin one", status=409, code="pin_limit_exceeded")
            self.pins[name], self.owners[name] = PinnedPrefix(name, len(ids), len(ids)), pin.owner
        return PrewarmOutput(name, len(ids), 0, len(ids) // 16 * 16, name in self.pins)

    async def pinned_prefixes(self, owner: str | None = None) -> list[PinnedPrefix]:
        return [prefix for prefix in self.pins.values() if owner in (None, self.owners[prefix.id])]

    async def unpin(self, prefix: str, owner: str | None = None) -> bool:
        mine = [pinned.id for pinned in await self.pinned_prefixes(owner)]
        return prefix in mine and bool(self.pins.pop(prefix))

    async def reset_prefix_cache(self) -> bool:
        if self.running:
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """From now on nothing is cached."""
        self._seen.clear()

    def record(self, file: RecordFile) -> None:
        self.recorded = file.path

    def shutdown(self) -> None:
        self.shut_down = True

    def _check(self, ids: list[int]) -> None:
        if not ids:
            raise RequestError("the prompt is empty", "send at least one token", param="prompt")
        if not all(0 <= token < self.vocab_size for token in ids):
            raise RequestError("token id out of range", param="prompt")

    async def _steps(self, ids: list[int], params: SamplingParams) -> AsyncIterator[list[CompletionOutput]]:
        room = self.max_model_len - len(ids)
        limit = room if params.max_tokens is None else min(params.max_tokens, room)
        said = self.reply if isinstance(self.reply, str) else self.reply(FakeTokenizer().decode(ids))
        reply = list(said.encode())
        tokens = [reply[i % len(reply)] for i in range(limit)] if self.endless else reply[:limit]
        told = 0
        if not tokens:
            yield self._samples(params, "", [], "length", None)
        for i in range(len(tokens)):
            await asyncio.sleep(self.step_s)
            if self.fail is not None and i >= self.fail_after:
                raise self.fail
            last = i == len(tokens) - 1
            text = bytes(tokens[: i + 1]).decode(errors="replace" if last else "ignore")
            reason = None if not last else "stop" if len(tokens) < limit else "length"
            stop = next((stop for stop in params.stops if stop in text), None)
            if stop is not None:
                text, reason, last = text[: text.index(stop)], "stop", True
            if params.output_kind is RequestOutputKind.DELTA:
                yield self._samples(params, text[told:], tokens[i : i + 1], reason, stop)
            elif last:
                yield self._samples(params, text, tokens[: i + 1], reason, stop)
            told = len(text)
            if last:
                return

    def _samples(
        self, params: SamplingParams, text: str, tokens: list[int], reason: str | None, stop: str | None
    ) -> list[CompletionOutput]:
        text = text if params.detokenize else ""
        logprobs = None
        if params.logprobs is not None:
            logprobs = [self._logprobs(token, params.logprobs) for token in tokens]
        return [CompletionOutput(i, text, tokens, 0.0, logprobs, reason, stop) for i in range(params.n)]

    def _logprobs(self, token: int, num_top: int) -> dict[int, Logprob]:
        """The chosen token is the second most likely; the last one is impossible."""
        chosen = {token: Logprob(-1.0, 2, FakeTokenizer().token_text(token))}
        top = {(token + 1 + i) % 256: Logprob(-0.5 - i, 1 + i + (i > 0), None) for i in range(num_top)}
        if num_top > 2:
            top[(token + num_top) % 256] = Logprob(float("-inf"), num_top, None)
        return chosen | top

    def _prompt_logprobs(self, ids: list[int], params: SamplingParams) -> list[dict[int, Logprob] | None] | None:
        if params.prompt_logprobs is None:
            return None
        return [None, *(self._logprobs(token, params.prompt_logprobs) for token in ids[1:])]


def vector_of(ids: list[int], pooling: str) -> list[float]:
    """What a prompt is as a vector: its last token or their mean, a two, and a zero."""
    return [float(ids[-1]) if pooling == "last" else sum(ids) / len(ids), 2.0, 0.0]


def failed_inside() -> RequestFailed:
    return RequestFailed("the sampler failed", "send it again")


def state_of(engine: FakeEngine | None, **settings: Any) -> ServerState:
    state = ServerState(ServerSettings(**settings))
    if engine is not None:
        state.ready(engine)
    return state


@contextlib.contextmanager
def serving(state: ServerState) -> Iterator[str]:
    """The server's address, on a free port of this machine, while inside."""
    with listen("127.0.0.1", 0) as sock:
        config = uvicorn.Config(create_app(state), log_config=None, lifespan="off", ws="none")
        with running(config, sock):
            yield url_of(sock)


@contextlib.contextmanager
def running(config: uvicorn.Config, sock: socket.socket) -> Iterator[None]:
    """A server in a thread, on `sock`, while inside."""
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield
    finally:
        server.force_exit = server.should_exit = True
        thread.join(timeout=10)


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
