"""The response object: what of it is known from the start, and its usage."""

from __future__ import annotations

from typing import Any

from milepost.sampling_params import SamplingParams
from milepost.server.generation import Job, Usage
from milepost.server.input_usage import InputUsage
from milepost.server.prompts import known_tools
from milepost.server.responses_schemas import ResponsesRequest
from milepost.server.schemas import ChatRequest

NEVER = {"background": False, "max_tool_calls": None, "service_tier": "default"}
"""Fields that the API's schema asks for: nothing runs here once its client is gone, and no tool of the server's."""


def response_head(asked: ResponsesRequest, chat: ChatRequest, job: Job) -> dict[str, Any]:
    """What was asked, and the settings that were used where nothing was."""
    return {
        "id": job.request_id,
        "object": "response",
        "created_at": job.created,
        "model": job.model,
        "previous_response_id": asked.previous_response_id,
        "instructions": asked.instructions,
        "tools": [_tool(tool["function"]) for tool in known_tools(chat.tools)],
        "tool_choice": asked.tool_choice or "auto",
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "truncation": asked.truncation or "disabled",
        "text": _text(asked),
        "reasoning": {"effort": chat.reasoning_effort, "summary": asked.reasoning.summary if asked.reasoning else None},
        "max_output_tokens": asked.max_output_tokens,
        "top_logprobs": asked.top_logprobs or 0,
        **_sampling(job.params),
        "store": asked.store is not False,
        "metadata": asked.metadata or {},
        "user": asked.user,
        "safety_identifier": asked.safety_identifier,
        "prompt_cache_key": asked.prompt_cache_key,
        **NEVER,
    }


def usage_object(usage: Usage, inputs: InputUsage, num_reasoning: int | None) -> dict[str, Any]:
    """`cache_write_tokens`: those that were computed now and that a prompt which goes on from this one need not."""
    num_cached, num_output = usage.num_cached_tokens, usage.num_completion_tokens
    return {
        "input_tokens": inputs.num_prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": num_cached,
            "cache_write_tokens": max(0, inputs.num_resumable_tokens - num_cached),
        },
        "output_tokens": num_output,
        "output_tokens_details": {"reasoning_tokens": num_reasoning or 0},
        "total_tokens": inputs.num_prompt_tokens + num_output,
    }


def _sampling(params: SamplingParams) -> dict[str, float]:
    names = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
    return {name: getattr(params, name) for name in names}


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    told = {name: function.get(name) for name in ("name", "description", "parameters", "strict")}
    return {"type": "function", **told}


def _text(asked: ResponsesRequest) -> dict[str, Any]:
    form = (asked.text.format if asked.text else None) or {"type": "text"}
    if form.get("type") == "json_schema":
        form = {"name": "", "description": None, "strict": True} | form
    verbosity = asked.text.verbosity if asked.text else None
    return {"format": form} | ({} if verbosity is None else {"verbosity": verbosity})
