"""From the fields of a request to `SamplingParams`, and the refusal of what this server cannot do yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milepost.errors import RequestError
from milepost.sampling_params import MAX_LOGPROBS, RequestOutputKind, SamplingParams
from milepost.server.schemas import Generation
from milepost.server.state import Engine
from milepost.server.structured import structured_outputs

FIELDS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "skip_reading_prefix_cache",
)
"""Fields that mean the same in a request and in `SamplingParams`."""

CONSTRAINTS = ("allowed_token_ids", "bad_words", "use_beam_search")


def sampling_params(
    body: Generation,
    engine: Engine,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """What the request gives, else what the model's generation_config gives, else vLLM's defaults."""
    given = {name: getattr(body, name) for name in FIELDS if getattr(body, name) is not None}
    settings: dict[str, Any] = {**engine.default_sampling, **given}
    return SamplingParams(
        **settings,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logit_bias=_logit_bias(body.logit_bias),
        structured_outputs=structured_outputs(body),
        detokenize=engine.tokenizer is not None,
        output_kind=RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY,
    )


def check_logprobs(name: str, value: int | None) -> None:
    """The number of alternatives per token is bounded over HTTP."""
    if value is not None and not 0 <= value <= MAX_LOGPROBS:
        raise RequestError(f"{name} must be between 0 and {MAX_LOGPROBS}, got {value}", f"change {name}", param=name)


def check_fits(engine: Engine, num_prompt_tokens: int, max_tokens: int | None, param: str) -> None:
    """A prompt leaves room for one token at least, and for all that are explicitly asked for."""
    if num_prompt_tokens + (max_tokens or 1) > engine.max_model_len:
        from milepost.engine.inputs import context_overflow  # late: it brings torch, and the server listens before that

        error = context_overflow(num_prompt_tokens, max_tokens, engine.max_model_len)
        error.param = param
        raise error


def check_shared(body: Generation) -> None:
    """What holds for both routes that generate."""
    check_logprobs("prompt_logprobs", body.prompt_logprobs)
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream=true", "leave stream_options out", param="stream_options")
    if body.prompt_logprobs is not None and body.stream:
        raise RequestError("prompt_logprobs cannot be streamed", "leave stream out", param="prompt_logprobs")
    refuse_constraints(body)


def refuse_constraints(body: Generation) -> None:
    """A constraint that would not be kept is refused, never ignored."""
    for name in CONSTRAINTS:
        if getattr(body, name):
            raise _cannot(name, name)


def _cannot(param: str, what: str) -> RequestError:
    return RequestError(f"{what} is not supported by this server", f"leave {param} out", param=param)


def _logit_bias(bias: Mapping[str, float] | None) -> dict[int, float] | None:
    """JSON has only text for keys."""
    if not bias:
        return None
    if not all(key.isascii() and key.isdecimal() and len(key) < 20 for key in bias):
        raise RequestError("logit_bias keys must be token ids", "change logit_bias", param="logit_bias")
    return {int(key): value for key, value in bias.items()}
