"""`milepost cache`: what the prefix cache of a server holds, and what is computed ahead and pinned in it."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import typer

from milepost.cli.remote import DEFAULT_URL, ask_json
from milepost.errors import ConfigError

app = typer.Typer(
    help="Show the prefix cache of a running server; compute a prompt into it, pinned or not; unpin.",
    rich_markup_mode=None,
)

Url = Annotated[str, typer.Option(help="Of the server.")]
Key = Annotated[str | None, typer.Option(envvar="MILEPOST_API_KEY", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
WARM = ("id", "num_tokens", "num_cached_tokens", "num_resident_tokens", "pinned")


@app.command("show")
def show(url: Url = DEFAULT_URL, api_key: Key = None, as_json: AsJson = False) -> None:
    """What the cache may hold, what fills it, what is pinned, and the tree of prefixes: the key's own, or all."""
    cache = ask_json(url, "/cache", api_key, fields=("policy", "bytes", "counters", "known_tokens", "checkpoints"))
    pinned = ask_json(url, "/cache/prefixes", api_key, fields=("data", "pinned_bytes", "max_pinned_bytes"))
    if as_json:
        print(json.dumps({**cache, "pinned": pinned}))
        return
    for line in (*_summary(cache), *_pinned(pinned), *_tree(cache.get("tree"))):
        print(line)


@app.command("prewarm")
def prewarm(
    file: Annotated[str, typer.Argument(help="Text, or JSON: messages, or a request's body; - is stdin.")],
    pin: Annotated[
        bool | None,
        typer.Option(help="It stays until it is unpinned, or the server ends.", show_default="as the file says"),
    ] = None,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Compute a prompt, or the beginning of chats, into the cache, and generate nothing."""
    from milepost.cli.prompt_files import read_body, read_file

    body = read_body(file, read_file(file)) | ({} if pin is None else {"pin": pin})
    told = ask_json(url, "/cache/prefixes", api_key, fields=WARM, body=body, timeout_s=None)
    if as_json:
        print(json.dumps(told))
        return
    num_tokens, known, resident = told["num_tokens"], told["num_cached_tokens"], told["num_resident_tokens"]
    print(f"{told['id']}: {num_tokens:,} tokens, of which {known:,} were known; prompts resume at {resident:,}")
    if told["pinned"]:
        print(f"pinned: `milepost cache unpin {told['id']}` ends that")


@app.command("unpin")
def unpin(
    prefix: Annotated[str, typer.Argument(metavar="ID", help="`milepost cache show` lists them.")],
    url: Url = DEFAULT_URL,
    api_key: Key = None,
) -> None:
    """A pinned prefix may be evicted again."""
    if not re.fullmatch(r"[\w-]+", prefix, re.ASCII):
        raise ConfigError(f"no prefix has the id {prefix!r}", "`milepost cache show` lists those that are pinned")
    ask_json(url, f"/cache/prefixes/{prefix}", api_key, fields=("deleted",), method="DELETE")
    print(f"{prefix} is not pinned any more")


def _summary(cache: dict[str, Any]) -> list[str]:
    from milepost.engine.memory import size

    policy, space, counted = cache["policy"], cache["bytes"], cache["counters"]
    kinds = ", ".join(f"{size(used['used'])} {kind}" for kind, used in space["by_kind"].items())
    filled = f"{size(space['used'])} of {size(space['budget'])} ({kinds})"
    each = f"{size(space['per_token'])} a token, {size(space['per_checkpoint'])} a recurrent state"
    kept = policy["retention_interval"]
    states = "" if kept is None else f", states kept: {kept}"
    return [
        f"caching:    {'on' if policy['enabled'] else 'off'}, scope {policy['scope']}{states}",
        f"memory:     {filled}, {size(space['pinned'])} pinned; {each}",
        f"known:      {cache['known_tokens']:,} tokens, {cache['checkpoints']:,} states",
        f"tokens:     {counted['queries']:,} asked for, {counted['matched']:,} found, {counted['hits']:,} resumed",
        f"states:     {counted['checkpoints_made']:,} made, {counted['checkpoints_used']:,} used, "
        f"{counted['checkpoints_thinned']:,} thinned, {counted['checkpoints_stranded']:,} stranded",
    ]


def _pinned(pinned: dict[str, Any]) -> list[str]:
    from milepost.engine.memory import size

    room = f"{size(pinned['pinned_bytes'])} of {size(pinned['max_pinned_bytes'])}"
    lines = [f"pinned:     {len(pinned['data'])} prefixes, {room}"]
    return lines + [f"  {p['id']}  {p['num_tokens']:,} tokens, {size(p['num_bytes'])}" for p in pinned["data"]]


def _tree(tree: dict[str, Any] | None) -> list[str]:
    if tree is None:
        return ["tree:       for the operator's key"]
    lines = [
        f"tree:       {tree['num_nodes']:,} nodes in {tree['num_scopes']:,} scopes, {tree['left_out']:,} not shown"
        f"{', this key alone' if tree.get('shows') == 'own' else ''}"
    ]
    depths: dict[int, int] = {}
    for node in tree["nodes"]:
        depth = depths[node["node"]] = depths.get(node["parent"], 0) + 1
        pinned = ", pinned" if node["pinned"] else ""
        lines.append(
            f"{'  ' * depth}tokens {node['start']:,} to {node['end']:,}: {node['num_checkpoints']} states, "
            f"{node['hits']} hits, {node['users']} users{pinned}"
        )
    return lines
