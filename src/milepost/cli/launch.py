"""`milepost launch`: a known agent, started with what points it at a server of ours."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from typing import Annotated

import typer

from milepost.cli.agents import AGENTS, ALIASES, Agent, Target
from milepost.cli.remote import DEFAULT_URL, base_url, first_key, get_json, unknown_server
from milepost.errors import ConfigError

KNOWN = ", ".join(AGENTS)


def launch(
    name: Annotated[str | None, typer.Argument(help=f"One of: {KNOWN}.", show_default=False)] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="For the agent; after -- where they are options.")
    ] = None,
    url: Annotated[str, typer.Option(help="Of the server.")] = DEFAULT_URL,
    api_key: Annotated[str | None, typer.Option(envvar="MILEPOST_API_KEY", show_default=False)] = None,
    model: Annotated[str | None, typer.Option(help="What the agent asks for.", show_default="the server's")] = None,
    prints: Annotated[bool, typer.Option("--print", help="Print the exports for a shell, and start nothing.")] = False,
) -> None:
    """Start an agent that works with a running server, or print the environment for it. Without a name: list them.

    Its configuration files stay as they are.
    """
    if name is None:
        for known, agent in AGENTS.items():
            print(f"{known:10} {agent.title}{'' if shutil.which(agent.program) else ', not installed'}")
        return
    agent = _agent(name)
    path = shutil.which(agent.program)
    if path is None and not prints:
        raise ConfigError(f"{agent.title} is not installed: there is no {agent.program} on the PATH", agent.install)
    target = _target(url, first_key(api_key), model)
    environment, command = agent.environment(target), [*agent.arguments(target), *(arguments or ())]
    if prints:
        for variable, value in environment.items():
            print(f"unset {variable}" if value is None else f"export {variable}={shlex.quote(value)}")
        print(f"# then: {shlex.join([agent.program, *command])}")
        return
    assert path is not None
    sys.stdout.flush()
    kept = {variable: value for variable, value in os.environ.items() if variable not in environment}
    given = {variable: value for variable, value in environment.items() if value is not None}
    os.execve(path, [agent.program, *command], kept | given)


def _agent(name: str) -> Agent:
    found = AGENTS.get(ALIASES.get(name.lower(), name.lower()))
    if found is None:
        raise ConfigError(f"no agent is known as {name[:100]!r}", f"one of: {KNOWN}; others: set their base URL")
    return found


def _target(url: str, key: str | None, model: str | None) -> Target:
    """Asks the server: an agent that meets none tells less clearly."""
    base = base_url(url)
    try:
        cards = {str(card["id"]): card for card in get_json(base, "/v1/models", key, fields=("data",))["data"]}
        name = model or next(iter(cards))
        length = cards.get(name, {}).get("max_model_len")
    except (TypeError, KeyError, AttributeError, StopIteration):
        raise unknown_server(base, "/v1/models names no model") from None
    if name not in cards:
        raise ConfigError(f"the server has no model {name[:100]!r}", f"it has: {', '.join(cards)}"[:500])
    return Target(base, key, name, length if isinstance(length, int) else None)
