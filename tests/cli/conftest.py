"""Commands with an engine that needs no model: the one of the server's tests."""

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from fake_engine import FakeEngine

from milepost.config import EngineConfig


class Loaded:
    """What a command asked for, and what it gets."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.configs: list[EngineConfig] = []
        self.failure: BaseException | None = None

    def from_config(self, config: EngineConfig, progress: Callable[[int, int], None] | None = None) -> FakeEngine:
        self.configs.append(config)
        if progress is not None:
            progress(1, 2)
        if self.failure is not None:
            raise self.failure
        return self.engine


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    loaded = Loaded()
    module = types.ModuleType("milepost.engine.async_llm")
    module.AsyncLLM = loaded
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return loaded
