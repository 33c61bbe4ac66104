"""What the server knows: its settings, the engine once it is loaded, and what it asks of an engine."""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import Request

from milepost import __version__
from milepost.cache.snapshot import CacheSnapshot
from milepost.cache.tree_snapshot import TreeSnapshot
from milepost.engine.places import Places
from milepost.engine.prefixes import PinFor
from milepost.errors import ConfigError, RequestError
from milepost.outputs import PinnedPrefix, PrewarmOutput, RequestOutput
from milepost.sampling_params import POOLINGS, SamplingParams
from milepost.server.scope import SECRET_BYTES, scope_name, tenant_of

CACHE_SCOPES = ("tenant", "global")


class Tokenizer(Protocol):
    @property
    def special_token_ids(self) -> frozenset[int]: ...
    @property
    def special_tokens(self) -> Mapping[str, str]: ...
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    def encode_with(self, places: Places, text: str, add_special_tokens: bool = True) -> tuple[list[int], Places]: ...
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...
    def token_text(self, token_id: int) -> str: ...


class ChatTemplate(Protocol):
    @property
    def text(self) -> str: ...
    def shows_calls(self, with_tools: bool) -> bool: ...
    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str: ...
    def places(
        self,
        text: str,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> Places: ...


class Model(Protocol):
    """What of a model makes prompts."""

    @property
    def tokenizer(self) -> Tokenizer | None: ...
    @property
    def chat_template(self) -> ChatTemplate | None: ...


class Engine(Model, Protocol):
    """The part of `milepost.engine.async_llm.AsyncLLM` that the server uses."""

    @property
    def model_name(self) -> str: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def default_sampling(self) -> Mapping[str, float]: ...
    @property
    def errored(self) -> Exception | None: ...
    @property
    def stalled(self) -> bool: ...
    def generate(
        self,
        prompt: Mapping[str, Any],
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncIterator[RequestOutput]: ...
    def metrics_text(self) -> bytes: ...
    def cache_snapshot(self) -> CacheSnapshot: ...
    async def cache_tree(self, scope: str | None = None) -> TreeSnapshot: ...
    async def reset_prefix_cache(self) -> bool: ...
    async def prewarm(
        self,
        prompt: Mapping[str, Any],
        request_id: str | None = None,
        *,
        pin: bool | PinFor = False,
        priority: int = 0,
        cache_salt: str = "",
    ) -> PrewarmOutput: ...
    async def pinned_prefixes(self, owner: str | None = None) -> list[PinnedPrefix]: ...
    async def unpin(self, prefix: str, owner: str | None = None) -> bool: ...
    def shutdown(self) -> None: ...


@dataclass(frozen=True)
class ServerSettings:
    """How the server presents itself.

    served_model_names  what clients may call the model; the first is what /v1/models lists first. Empty: its own name
    api_keys            any of them opens every route; empty: no key is asked for
    operator_api_key    opens every route too, and sees what concerns other keys' users: the cache's tree, all pins
    allowed_origins     of pages in a browser that may call; "*": all. allowed_methods, allowed_headers: theirs (CORS)
    allowed_hosts       names of this server beyond localhost and its machine's, see `hosts.py`
    max_body_bytes      a longer request body is refused with 413
    cache_scope         who shares cached prefixes: "tenant", the requests of one key; "global", all. None: tenant where
                        there are keys
    sse_ping_interval   seconds without an event after which a stream gets a ping; 0 or less: never
    max_num_queued_reqs  samples that may wait or run at once; a request beyond them is refused with 429
    pooling             how prompts become vectors where a request does not say: "last" or "mean"
    """

    served_model_names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    allowed_hosts: tuple[str, ...] = ()
    max_body_bytes: int = 32 * 1024 * 1024
    cache_scope: str | None = None
    operator_api_key: str | None = None
    sse_ping_interval: float = 30
    max_num_queued_reqs: int = 1024
    pooling: str = "last"

    def __post_init__(self) -> None:
        if self.cache_scope not in (None, *CACHE_SCOPES):
            raise ConfigError(f"--cache-scope cannot be {self.cache_scope!r}", f"one of: {', '.join(CACHE_SCOPES)}")
        if self.pooling not in POOLINGS:
            raise ConfigError(f"--pooling cannot be {self.pooling!r}", f"one of: {', '.join(POOLINGS)}")
        if self.cache_scope == "tenant" and not self.keys:
            raise ConfigError(
                "--cache-scope tenant tells users apart by their keys, and there are none",
                "give each an --api-key, or leave --cache-scope out",
            )

    @property
    def keys(self) -> tuple[str, ...]:
        """All that open the routes, each once."""
        operators = () if self.operator_api_key is None else (self.operator_api_key,)
        return tuple(dict.fromkeys((*self.api_keys, *operators)))

    @property
    def shares_within_tenant(self) -> bool:
        """Whether cached prefixes stay within the requests of one key."""
        return bool(self.keys) and self.cache_scope != "global"


class ServerState:
    """Lives as long as the server. Loading happens in another thread, which only calls `loading` and `ready`.

    `secret` names the scopes of cached prefixes (see `scope.py`); None: one for this process.
    """

    def __init__(self, settings: ServerSettings, secret: bytes | None = None) -> None:
        self.settings = settings
        self._secret = secret or os.urandom(SECRET_BYTES)
        self.created = int(time.time())
        self.loaded_bytes = (0, 0)
        self.engine_or_none: Engine | None = None

    def loading(self, done_bytes: int, total_bytes: int) -> None:
        """How far loading has come, for /health."""
        self.loaded_bytes = (done_bytes, total_bytes)

    def ready(self, engine: Engine) -> None:
        """From now on requests are served."""
        self.engine_or_none = engine

    @property
    def engine(self) -> Engine:
        """Routes run only once the engine is there: `LoadingGate` answers until then."""
        if self.engine_or_none is None:
            raise RuntimeError("no engine yet")
        return self.engine_or_none

    @property
    def model_names(self) -> tuple[str, ...]:
        return self.names_of(self.engine)

    def names_of(self, engine: Engine) -> tuple[str, ...]:
        """Those of `engine`, which need not be ready."""
        return self.settings.served_model_names or (engine.model_name,)

    @property
    def system_fingerprint(self) -> str:
        """Changes with the version, the model and its context length."""
        told = f"{__version__} {self.engine.model_name} {self.engine.max_model_len} {self.engine.vocab_size}"
        return "fp_" + hashlib.sha256(told.encode()).hexdigest()[:12]

    def served_name(self, asked: str | None, engine: Engine | None = None) -> str:
        """The name to answer under; `RequestError` 404 when a client asks for another model. `engine`: one that is not
        ready yet."""
        names = self.names_of(engine or self.engine)
        if not asked:
            return names[0]
        if asked not in names:
            raise RequestError(
                f"The model `{asked[:200]}` does not exist.",
                f"this server has: {', '.join(names)}",
                status=404,
                code="model_not_found",
                param="model",
            )
        return asked

    def ping_seconds(self, asked: float | None) -> float:
        """After which a silent stream gets a ping, for a client that may have asked for another time."""
        return self.settings.sse_ping_interval if asked is None else asked

    def scope_of(self, request: Request, salt: str) -> str:
        """Within what `request` shares cached prefixes: its tenant's, or all; a client's `salt` makes it narrower.

        A request of nobody's, where tenants are kept apart, is a defect: AttributeError rather than a scope.
        """
        tenant: bytes = request.state.tenant if self.settings.shares_within_tenant else b""
        return scope_name(self._secret, tenant, salt)

    def tenant(self, request: Request) -> bytes:
        """Whoever has the key, also where all keys share one cache; all are one where there are no keys."""
        found: bytes = request.state.tenant if self.settings.keys else b""
        return found

    def owner_of(self, request: Request) -> str:
        """Whose the pins of `request` are: its key's, whatever the scope."""
        return scope_name(self._secret, self.tenant(request), "")

    def sees_pins_of(self, request: Request) -> str | None:
        """None: all; else those of this owner alone. All are for the operator's key, and where there are no keys."""
        key = self.settings.operator_api_key
        operates = not self.settings.keys or (key is not None and self.is_operator(request))
        return None if operates else self.owner_of(request)

    def tenant_scopes(self, salt: str = "") -> tuple[tuple[str, str], ...]:
        """Of each tenant, whose its pins are and the scope of its requests with that `salt`. Where all share: nobody's,
        and the one scope."""
        tenants = [tenant_of(key.encode()) for key in self.settings.keys] if self.settings.shares_within_tenant else []
        return tuple(
            (scope_name(self._secret, tenant, "") if tenant else "", scope_name(self._secret, tenant, salt))
            for tenant in tenants or [b""]
        )

    @property
    def num_owners(self) -> int:
        """Among how many the memory for pins is divided."""
        return len(self.settings.keys) or 1

    def is_operator(self, request: Request) -> bool:
        """Who may see what concerns all: whoever has the operator's key; where there is none, everybody, unless tenants
        are kept apart."""
        key = self.settings.operator_api_key
        if key is None:
            return not self.settings.shares_within_tenant
        tenant: bytes = request.state.tenant
        return hmac.compare_digest(tenant, tenant_of(key.encode()))


def server_state(request: Request) -> ServerState:
    """The state that `create_app` was given."""
    state: ServerState = request.app.state.server
    return state
