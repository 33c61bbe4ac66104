"""`milepost explain`: why a prompt is, or was, not resumed further: for two prompts, or a server's last requests."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from milepost.cli import options
from milepost.cli.answer import for_terminal
from milepost.cli.explanation import Explanation, quoted
from milepost.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from milepost.cli.comparison import Policy
    from milepost.cli.prompt_files import FileModel


def explain(
    model: Annotated[
        str | None, typer.Argument(help="A folder, a GGUF file or a hub name.", show_default=False)
    ] = None,
    a: Annotated[str | None, typer.Argument(help="The prompt read first: a file, or -.", show_default=False)] = None,
    b: Annotated[str | None, typer.Argument(help="The prompt read after it.", show_default=False)] = None,
    chat_template: options.ChatTemplate = None,
    prefix_cache_retention_interval: options.PrefixCacheRetentionInterval = None,
    url: Annotated[
        str | None,
        typer.Option(help="Show the last requests of the server there instead.", show_default=False),
    ] = None,
    api_key: Annotated[str | None, typer.Option(envvar="MILEPOST_API_KEY", show_default=False)] = None,
    last: Annotated[int, typer.Option(min=1, max=256, help="Requests to show.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of text.")] = False,
) -> None:
    """Say what prompt B would resume after prompt A and why not more, or what a server's last requests resumed.

    A and B are files of text, or of JSON: a list of messages, or the body of a request. No weights are loaded.
    """
    if url is not None:
        if model is not None:
            raise ConfigError("explain takes either --url or two prompts", "leave out one of them")
        _requests(url, api_key, last, as_json)
        return
    if model is None or a is None or b is None:
        raise ConfigError(
            "explain needs a model and two prompts, or a server",
            "milepost explain MODEL A B, or milepost explain --url http://127.0.0.1:8000",
        )
    found = _compared(model, a, b, chat_template, options.parse_interval(prefix_cache_retention_interval))
    if as_json:
        print(json.dumps(found.as_json(), ensure_ascii=False))
    else:
        found.show(Console(highlight=False, soft_wrap=True))


def _compared(model: str, a: str, b: str, chat_template: str | None, interval: int | None) -> Explanation:
    from milepost.cache.retention import Retention
    from milepost.cli.causes import causes
    from milepost.cli.comparison import common_text, compare, message_at
    from milepost.cli.prompt_files import read_file, read_prompt

    if a == b == "-":
        raise ConfigError("only one of the prompts can come from stdin", "give a file for the other")
    Retention(interval)
    contents = read_file(a), read_file(b)
    policy, opened = _opened(model, chat_template, interval)
    template = opened.chat_template
    first, second = (read_prompt(name, content, opened) for name, content in zip((a, b), contents, strict=True))
    found = compare(first.ids, second.ids, policy, first.places)
    message = message_at(second, template, common_text(first.text, second.text))
    told = causes(first, second, template)
    dense = compare(first.ids, second.ids, replace(policy, interval=None), first.places).num_resumed
    if dense > found.num_resumed:
        told.append(f"--prefix-cache-retention-interval {interval}: states at each 64 tokens would resume {dense:,}")
    return Explanation(model, policy, opened.tokenizer, first, second, found, message, told)


def _opened(model: str, chat_template: str | None, interval: int | None) -> tuple[Policy, FileModel]:
    """What a model's files say without its weights."""
    from milepost.cli.comparison import Policy
    from milepost.cli.prompt_files import FileModel
    from milepost.engine.build import chat_template_of
    from milepost.engine.tokenizer import Tokenizer
    from milepost.models.loader.load import open_model
    from milepost.models.loader.meta import build_on_meta
    from milepost.specs import checkpoint_bytes, kv_block_bytes

    source = open_model(model)
    if source.tokenizer is None:
        raise ModelError(f"{model} has no tokenizer: {source.tokenizer_problem}", "choose a model with one")
    built = build_on_meta(source.config, len(source.tensors.names()))
    specs = built.layer_specs()
    policy = Policy(kv_block_bytes(specs, 2) > 0, checkpoint_bytes(specs, 2) > 0, interval)
    tokenizer = Tokenizer(source.tokenizer, source.eos_token_ids)
    return policy, FileModel(tokenizer, chat_template_of(source, chat_template), built.vocab_size)


def _requests(url: str, api_key: str | None, last: int, as_json: bool) -> None:
    from milepost.cli.remote import first_key, get_json

    found = get_json(url, "/cache/requests", first_key(api_key), fields=("requests",), last=last)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200  # nothing is cut where it goes to a file
    table = Table(box=None, pad_edge=False)
    for title in ("time", "request", "prompt", "matched", "resumed", "reason", "at", "its text there"):
        table.add_column(title, justify="right" if title in ("prompt", "matched", "resumed", "at") else "left")
    for one in found["requests"]:
        when = time.strftime("%m-%d %H:%M:%S", time.localtime(one["created"]))
        numbers = (f"{one[name]:,}" for name in ("prompt_tokens", "matched_tokens", "resumed_tokens"))
        place = "" if one["position"] is None else f"{one['position']:,}"
        text = "" if one["text"] is None else quoted(one["text"])
        table.add_row(when, for_terminal(one["id"]), *numbers, one["reason"] or "-", place, Text(text))
    console.print(table if found["requests"] else "no requests yet")
