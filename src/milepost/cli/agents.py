"""Agents that `milepost launch` knows: how each is told, at its start, which server and model to use.

Only what holds for one start is used, environment and arguments: nobody's configuration files are written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

KEY = "MILEPOST_API_KEY"
"""The variable from which agents that ask for one take the key."""

NO_KEY = "none"
"""Most agents want a key, also for a server that wants none."""


@dataclass(frozen=True)
class Target:
    """A server, its address without a path, and what it serves. `max_model_len`, in tokens: None if nobody told."""

    base: str
    key: str | None
    model: str
    max_model_len: int | None = None

    @property
    def v1(self) -> str:
        return f"{self.base}/v1"

    @property
    def some_key(self) -> str:
        return self.key or NO_KEY


Environment = Mapping[str, str | None]
"""None: a variable that must not be set."""


@dataclass(frozen=True)
class Agent:
    """`program` on the PATH, and how it is had; `arguments` come before those of the user."""

    title: str
    program: str
    install: str
    environment: Callable[[Target], Environment]
    arguments: Callable[[Target], list[str]] = field(default=lambda target: [])


def _claude(target: Target) -> Environment:
    window = {} if target.max_model_len is None else {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(target.max_model_len)}
    kinds = ("DEFAULT_OPUS", "DEFAULT_SONNET", "DEFAULT_HAIKU", "SMALL_FAST")
    return {
        "ANTHROPIC_BASE_URL": target.base,
        "ANTHROPIC_AUTH_TOKEN": target.some_key,
        "ANTHROPIC_API_KEY": None,  # it would ask which of the two counts
        "CLAUDE_CODE_USE_BEDROCK": None,
        "CLAUDE_CODE_USE_VERTEX": None,
        "ANTHROPIC_MODEL": target.model,
        **{f"ANTHROPIC_{kind}_MODEL": target.model for kind in kinds},
        "CLAUDE_CODE_SUBAGENT_MODEL": target.model,
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # a line that is different in each request
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        **window,
    }


def _codex(target: Target) -> Environment:
    return {KEY: target.some_key}


def _codex_arguments(target: Target) -> list[str]:
    provider = {"name": "Milepost", "base_url": target.v1, "env_key": KEY, "wire_api": "responses"}
    settings: dict[str, str | int] = {"model_provider": "milepost"}
    settings |= {f"model_providers.milepost.{name}": value for name, value in provider.items()}
    if target.max_model_len is not None:
        settings["model_context_window"] = target.max_model_len
    pairs = [f"{name}={json.dumps(value)}" for name, value in settings.items()]  # a string is the same in TOML
    return ["--model", target.model, *(argument for pair in pairs for argument in ("-c", pair))]


def _opencode(target: Target) -> Environment:
    limit = {} if target.max_model_len is None else {"limit": _opencode_limit(target.max_model_len)}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Milepost",
        "options": {"baseURL": target.v1, "apiKey": f"{{env:{KEY}}}"},
        "models": {target.model: {"name": target.model, **limit}},
    }
    config = {"provider": {"milepost": provider}, "model": f"milepost/{target.model}"}
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(config), KEY: target.some_key}


def _opencode_limit(max_model_len: int) -> dict[str, int]:
    """Tokens; an answer gets at most a quarter of the context."""
    return {"context": max_model_len, "output": max(1, max_model_len // 4)}


def _aider(target: Target) -> Environment:
    return {
        "OPENAI_API_BASE": target.v1,
        "OPENAI_API_KEY": target.some_key,
        "AIDER_MODEL": f"openai/{target.model}",
        "AIDER_SHOW_MODEL_WARNINGS": "false",  # that it does not know the model
    }


def _goose(target: Target) -> Environment:
    limit = {} if target.max_model_len is None else {"GOOSE_CONTEXT_LIMIT": str(target.max_model_len)}
    return {
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": target.model,
        "OPENAI_HOST": target.base,
        "OPENAI_BASE_PATH": "v1/chat/completions",
        "OPENAI_API_KEY": target.some_key,
        **limit,
    }


def _qwen(target: Target) -> Environment:
    return {"OPENAI_BASE_URL": target.v1, "OPENAI_API_KEY": target.some_key, "OPENAI_MODEL": target.model}


def _copilot(target: Target) -> Environment:
    return {
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_BASE_URL": target.v1,
        "COPILOT_PROVIDER_API_KEY": target.some_key,
        "COPILOT_MODEL": target.model,
        "COPILOT_OFFLINE": "true",  # it speaks to this server alone
    }


AGENTS: Mapping[str, Agent] = {
    "claude": Agent("Claude Code", "claude", "npm install -g @anthropic-ai/claude-code", _claude),
    "codex": Agent("Codex CLI", "codex", "npm install -g @openai/codex", _codex, _codex_arguments),
    "opencode": Agent("OpenCode", "opencode", "npm install -g opencode-ai", _opencode),
    "qwen": Agent("Qwen Code", "qwen", "npm install -g @qwen-code/qwen-code", _qwen),
    "copilot": Agent("GitHub Copilot CLI", "copilot", "npm install -g @github/copilot", _copilot),
    "aider": Agent("aider", "aider", "python -m pip install aider-install && aider-install", _aider),
    "goose": Agent("goose", "goose", "see its documentation at goose-docs.ai", _goose),
}

ALIASES = {"claude-code": "claude", "codex-cli": "codex", "qwen-code": "qwen"}
