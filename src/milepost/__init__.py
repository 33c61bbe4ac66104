"""Milepost: an inference engine and server for hybrid language models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from milepost.engine.async_llm import AsyncLLM as AsyncLLM
    from milepost.engine.llm import LLM as LLM
    from milepost.outputs import CacheReport as CacheReport
    from milepost.outputs import CompletionOutput as CompletionOutput
    from milepost.outputs import PinnedPrefix as PinnedPrefix
    from milepost.outputs import PrewarmOutput as PrewarmOutput
    from milepost.outputs import RequestOutput as RequestOutput
    from milepost.sampling_params import SamplingParams as SamplingParams
    from milepost.structured_outputs import StructuredOutputsParams as StructuredOutputsParams

__version__ = "0.1.0.dev0"

_HOMES = {
    "AsyncLLM": "milepost.engine.async_llm",
    "CacheReport": "milepost.outputs",
    "CompletionOutput": "milepost.outputs",
    "LLM": "milepost.engine.llm",
    "PinnedPrefix": "milepost.outputs",
    "PrewarmOutput": "milepost.outputs",
    "RequestOutput": "milepost.outputs",
    "SamplingParams": "milepost.sampling_params",
    "StructuredOutputsParams": "milepost.structured_outputs",
}


def __getattr__(name: str) -> Any:
    """Imports the public classes on first use, so that `milepost --help` need not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'milepost' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
