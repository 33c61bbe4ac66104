"""`milepost serve`: a model behind OpenAI's API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from milepost.cli import options
from milepost.config import EngineConfig
from milepost.errors import ConfigError

if TYPE_CHECKING:
    from milepost.engine.record_file import RecordFile
    from milepost.server.schemas import PrefixRequest
    from milepost.server.state import Engine, ServerSettings
    from milepost.server.tls import Tls


def serve(
    model: options.Model = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8000,
    dtype: options.Dtype = EngineConfig.dtype,
    max_model_len: options.MaxModelLen = None,
    max_num_seqs: options.MaxNumSeqs = EngineConfig.max_num_seqs,
    max_num_batched_tokens: options.MaxNumBatchedTokens = EngineConfig.max_num_batched_tokens,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    seed: options.Seed = EngineConfig.seed,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(help="What clients call the model; several names, or repeated.", show_default="the model's name"),
    ] = None,
    chat_template: options.ChatTemplate = None,
    generation_config: options.GenerationConfig = EngineConfig.generation_config,
    enable_prefix_caching: options.EnablePrefixCaching = EngineConfig.enable_prefix_caching,
    prefix_cache_retention_interval: options.PrefixCacheRetentionInterval = None,
    prefix_cache_policy: options.PrefixCachePolicy = EngineConfig.prefix_cache_policy,
    scheduling_policy: options.SchedulingPolicy = EngineConfig.scheduling_policy,
    num_threads: options.NumThreads = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar="MILEPOST_API_KEY", help="Ask clients for this key; may be repeated.", show_default=False),
    ] = None,
    cache_scope: Annotated[
        str | None,
        typer.Option(
            help="Who shares cached prefixes. tenant: the users of one key; global: all.",
            show_default="tenant with keys, else global",
        ),
    ] = None,
    operator_api_key: Annotated[
        str | None,
        typer.Option(
            envvar="MILEPOST_OPERATOR_API_KEY",
            help="A key that also sees what concerns all users: the cache's tree, all pins.",
            show_default=False,
        ),
    ] = None,
    prewarm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Compute and pin this prompt before serving: text, or JSON messages; may be repeated.",
            show_default=False,
        ),
    ] = None,
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option(help="Web pages that may call (CORS), or *; may be repeated.", show_default=False),
    ] = None,
    allowed_methods: Annotated[
        list[str] | None, typer.Option(help="Methods that these may use; may be repeated.", show_default="*")
    ] = None,
    allowed_headers: Annotated[
        list[str] | None, typer.Option(help="Headers that these may send; may be repeated.", show_default="*")
    ] = None,
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(
            help="Names that this server is called by, *.example.com or *; may be repeated.",
            show_default="localhost and this machine's name",
        ),
    ] = None,
    ssl_certfile: Annotated[
        str | None, typer.Option(metavar="FILE", help="Serve over HTTPS, with this certificate.", show_default=False)
    ] = None,
    ssl_keyfile: Annotated[
        str | None, typer.Option(metavar="FILE", help="Its key.", show_default="in the same file")
    ] = None,
    ssl_ca_certs: Annotated[
        str | None, typer.Option(metavar="FILE", help="Who signs clients' certificates.", show_default=False)
    ] = None,
    ssl_cert_reqs: Annotated[
        int, typer.Option(min=0, max=2, help="Clients' certificates: 0 none, 1 checked if sent, 2 asked for.")
    ] = 0,
    pooling: Annotated[str, typer.Option(help="How texts become vectors: last (token) or mean.")] = "last",
    record: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write keyed hashes, lengths and times of requests there, never text: for `milepost replay`.",
            show_default=False,
        ),
    ] = None,
    disable_log_stats: Annotated[
        bool, typer.Option("--disable-log-stats", help="No line every ten seconds of what is done.")
    ] = False,
    sse_ping_interval: Annotated[
        int, typer.Option(help="Seconds of silence before a stream gets a ping; -1: none.")
    ] = 30,
    max_num_queued_reqs: Annotated[
        int, typer.Option(min=1, help="Requests that may wait or run at once; more are refused with 429.")
    ] = 1024,
) -> None:
    """Serve a model over HTTP, with OpenAI's and Anthropic's APIs."""
    names = _names(served_model_name or [], model)
    config = EngineConfig(
        model=model,
        dtype=dtype,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        enable_prefix_caching=enable_prefix_caching,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        prefix_cache_retention_interval=options.parse_interval(prefix_cache_retention_interval),
        prefix_cache_policy=prefix_cache_policy,
        seed=seed,
        scheduling_policy=scheduling_policy,
        served_model_name=names[0] if names else None,
        chat_template=chat_template,
        generation_config=generation_config,
        num_threads=num_threads,
        disable_log_stats=disable_log_stats,
    )
    if not all(key.strip() for key in api_key or ()):
        raise ConfigError("--api-key cannot be empty", "give a key, or leave it out")
    if operator_api_key is not None and not operator_api_key.strip():
        raise ConfigError("--operator-api-key cannot be empty", "give a key, or leave it out")
    if prewarm and not enable_prefix_caching:
        raise ConfigError("--prewarm needs prefix caching", "leave out --no-enable-prefix-caching")
    from milepost.server.state import ServerSettings
    from milepost.server.tls import tls_of

    settings = ServerSettings(
        names,
        tuple(api_key or ()),
        options.parse_list("--allowed-origins", allowed_origins),
        options.parse_list("--allowed-methods", allowed_methods) or ("*",),
        options.parse_list("--allowed-headers", allowed_headers) or ("*",),
        (host, *options.parse_list("--allowed-hosts", allowed_hosts)),
        cache_scope=cache_scope,
        operator_api_key=operator_api_key,
        sse_ping_interval=sse_ping_interval,
        max_num_queued_reqs=max_num_queued_reqs,
        pooling=pooling,
    )
    tls = tls_of(ssl_certfile, ssl_keyfile, ssl_ca_certs, ssl_cert_reqs)
    prefixes = [(name, _prefix(name)) for name in prewarm or ()]
    from milepost.engine.record_file import RecordFile

    file = None if record is None else RecordFile(record)
    _run(config, host, port, settings, tls, prefixes, file)


def _names(names: list[str], model: str | None) -> tuple[str, ...]:
    """What stands behind the first name may have been meant as the model."""
    if not all(names):
        raise ConfigError("--served-model-name cannot be empty", "give a name, or leave it out")
    file = next((name for name in names[1:] if model is None and Path(name).exists()), None)
    if file is not None:
        raise ConfigError(f"--served-model-name takes all that follows it, and {file} too", "put the model first")
    return tuple(names)


def _prefix(name: str) -> PrefixRequest:
    """Read before the model is loaded, so that a wrong file is told at once."""
    from milepost.cli.prompt_files import read_body, read_file, read_request

    found = read_request(f"--prewarm {name}", read_body(name, read_file(name)))
    if found.pin is False:
        raise ConfigError(f"--prewarm {name}: pin is false, and --prewarm pins", "leave pin out of the file")
    return found


def _run(
    config: EngineConfig,
    host: str,
    port: int,
    settings: ServerSettings,
    tls: Tls | None,
    prefixes: list[tuple[str, PrefixRequest]],
    record: RecordFile | None,
) -> None:
    from milepost.server import run
    from milepost.server.prefixes import prewarm_at_start
    from milepost.server.scope import installation_secret
    from milepost.server.state import ServerState

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("milepost").setLevel(logging.INFO)  # what was loaded, and where memory went
    sock = run.listen(host, port)
    state = ServerState(settings, installation_secret())

    def load(report: Callable[[int, int], None]) -> Engine:
        from milepost.cli.progress import loading_bar
        from milepost.engine.async_llm import AsyncLLM
        from milepost.engine.build import settle

        with loading_bar() as show:

            def progress(done_bytes: int, total_bytes: int) -> None:
                show(done_bytes, total_bytes)
                report(done_bytes, total_bytes)

            llm = AsyncLLM.from_config(config, progress=progress)
        engine = cast("Engine", llm)
        try:
            if record is not None:
                llm.record(record)
            asyncio.run(prewarm_at_start(engine, state, prefixes))
        except BaseException:
            engine.shutdown()
            raise
        settle()
        return engine

    def on_ready() -> None:
        print(f"Milepost serves {state.model_names[0]} on {run.url_of(sock, tls)}", flush=True)

    run.serve(state, sock, load, on_ready, tls=tls)
