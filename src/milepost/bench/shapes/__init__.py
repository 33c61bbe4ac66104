"""Shapes of published models: the config.json of each, reduced to what decides speed."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from milepost.errors import ConfigError


def names() -> list[str]:
    """All shapes, by name."""
    return sorted(f.name.removesuffix(".json") for f in files(__name__).iterdir() if f.name.endswith(".json"))


def config_of(name: str) -> dict[str, Any]:
    """The config of shape `name`; raises `ConfigError` with the known names."""
    if name not in names():
        raise ConfigError(f"no model shape {name!r}", f"shapes: {', '.join(names())}")
    config: dict[str, Any] = json.loads((files(__name__) / f"{name}.json").read_text())
    return config
