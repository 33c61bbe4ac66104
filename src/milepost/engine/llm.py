"""The engine inside a Python program: prompts in, results out. vLLM's class, with its names."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from milepost.config import EngineConfig
from milepost.engine.build import Progress, build_engine
from milepost.engine.engine import Engine
from milepost.engine.inputs import Prompt, is_chat, is_id, read_chat, read_prompt
from milepost.engine.prefixes import PinFor
from milepost.errors import RequestError
from milepost.outputs import PinnedPrefix, PrewarmOutput, RequestOutput
from milepost.sampling_params import RequestOutputKind, SamplingParams

Message = Mapping[str, Any]


class LLM:
    """A model in this process.

    `LLM("folder-or-file.gguf-or-hub/name", dtype="float32")`; without a model it loads the small default one. Keyword
    arguments are the fields of `EngineConfig`.
    """

    def __init__(self, model: str | Path | None = None, *, progress: Progress | None = None, **settings: Any) -> None:
        config = EngineConfig(model=None if model is None else str(model), **settings)
        self.engine: Engine = build_engine(config, progress)
        self._ids = itertools.count()

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """A result for each prompt, in their order.

        A prompt is text, {"prompt": text} or {"prompt_token_ids": ids}; a list is several prompts, and a flat list of
        ids is one; arrays and generators are read like lists. In a dict, "cache_breakpoints" may say after how many
        tokens others are expected to part from the prompt. `sampling_params`: one for all, one for each, or None for
        the model's defaults. A bad prompt raises `RequestError` before anything runs; a request that fails inside ends
        with `finish_reason` "error".
        `use_tqdm`: a progress bar on stderr where that is a terminal.
        """
        listed = _as_list(prompts)
        tokens = [read_prompt(prompt, self.engine.model) for prompt in listed]
        params = self._params(sampling_params, len(listed))
        if priority is not None and len(priority) != len(listed):
            raise RequestError(f"{len(listed)} prompts but {len(priority)} priorities", "give one for each prompt")
        ids = [str(next(self._ids)) for _ in listed]
        try:
            for i, request_id in enumerate(ids):
                final = replace(params[i], output_kind=RequestOutputKind.FINAL_ONLY)
                self.engine.add(request_id, tokens[i], final, priority=priority[i] if priority else 0)
            return self._run(ids, use_tqdm)
        finally:  # an interrupt or a refused prompt leaves nothing behind
            for request_id in ids:
                self.engine.abort(request_id)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        use_tqdm: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """As `generate`, for one conversation or several, put into text by the model's chat template.

        `cache_control` in a message, in a part of its content or in a tool is a breakpoint of the prefix cache.
        """
        asked = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": tools,
            **(chat_template_kwargs or {}),
        }
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts = [read_chat(conversation, self.engine.model, asked) for conversation in conversations]  # type: ignore[arg-type]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def prewarm(
        self,
        prompt: Prompt | Sequence[Message],
        *,
        pin: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> PrewarmOutput:
        """Computes a prompt, or the beginning of a chat, for the cache, and generates nothing.

        `pin`: it stays until `unpin`; only a request that could not run otherwise takes its memory. Pins hold at most
        half of the cache: `RequestError` for more.
        """
        if is_chat(prompt):
            asked = {"add_generation_prompt": add_generation_prompt, "tools": tools, **(chat_template_kwargs or {})}
            prompt = read_chat(prompt, self.engine.model, asked)
        request_id = str(next(self._ids))
        tokens = read_prompt(prompt, self.engine.model)  # type: ignore[arg-type]
        try:
            self.engine.prewarm(request_id, tokens, pin=PinFor() if pin else None)
            (output,) = self._run([request_id], use_tqdm=False)
        finally:
            self.engine.abort(request_id)
        if output.error is not None:
            raise output.error
        self.engine.prefixes.heard(request_id)
        return self.engine.prewarmed(output)

    def unpin(self, prefix: str | PrewarmOutput) -> bool:
        """A pinned prefix, or its id, may be evicted again; False if it is not pinned."""
        return self.engine.unpin(prefix if isinstance(prefix, str) else prefix.id)

    def pinned_prefixes(self) -> list[PinnedPrefix]:
        """Those that are pinned still, in their order."""
        return self.engine.prefixes.pinned()

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config asks for."""
        return SamplingParams(**dict(self.engine.model.default_sampling))  # type: ignore[arg-type]

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached prefixes."""
        return self.engine.reset_prefix_cache()

    def _params(
        self, given: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
    ) -> Sequence[SamplingParams]:
        if given is None:
            return [self.get_default_sampling_params()] * num_prompts
        if isinstance(given, SamplingParams):
            return [given] * num_prompts
        if len(given) != num_prompts:
            raise RequestError(f"{num_prompts} prompts but {len(given)} sampling_params", "give one, or one for each")
        return given

    def _run(self, ids: list[str], use_tqdm: bool) -> list[RequestOutput]:
        done: dict[str, RequestOutput] = {}
        # None: tqdm looks whether stderr is a terminal
        with tqdm(total=len(ids), desc="requests", disable=None if use_tqdm else True) as bar:
            while self.engine.has_work:
                outputs = self.engine.step()
                done.update((output.request_id, output) for output in outputs)
                bar.update(len(outputs))
        return [done[request_id] for request_id in ids]


def _as_list(prompts: Any) -> list[Prompt]:
    """One prompt or several, in any iterable."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if getattr(prompts, "ndim", 1) == 0 or not isinstance(prompts, Iterable):
        raise RequestError(f"prompts cannot be {prompts!r}", "give text, token ids, or a list of either")
    listed = list(prompts.tolist() if hasattr(prompts, "tolist") else prompts)
    if listed and all(map(is_id, listed)):
        return [listed]
    return listed
