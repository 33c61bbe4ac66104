"""What a model's generation_config asks of requests that do not say it themselves."""

from __future__ import annotations

from collections.abc import Mapping

from milepost.errors import ModelError, RequestError
from milepost.models.loader.source import ModelSource
from milepost.sampling_params import SamplingParams

FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""The fields that vLLM takes from it."""


def sampling_defaults(source: ModelSource, generation_config: str) -> Mapping[str, float]:
    """By field of `SamplingParams`; none where `generation_config` is "vllm". ModelError for a value that cannot work:
    the model's files are to blame, and no request that uses them."""
    if generation_config != "auto":
        return {}
    found = {name: source.generation_config[name] for name in FIELDS if source.generation_config.get(name) is not None}
    try:
        SamplingParams(**found)
    except RequestError as error:
        file = source.path / "generation_config.json" if source.format == "safetensors" else source.path
        raise ModelError(
            f"{file}: sampling defaults cannot be used: {error.message}", "mend it, or use --generation-config vllm"
        ) from error
    return found
