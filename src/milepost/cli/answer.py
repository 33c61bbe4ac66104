"""An engine in this process, and one streamed answer of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from milepost.config import EngineConfig
from milepost.errors import RequestError
from milepost.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from milepost.server.state import Engine

CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


@dataclass
class Answer:
    """What came back, and how fast: seconds from the start to the first and the last token."""

    text: str = ""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_tokens: int = 0
    first_token_s: float = 0.0
    last_token_s: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Of decoding: the first token belongs to the prompt."""
        seconds = self.last_token_s - self.first_token_s
        return (self.num_tokens - 1) / seconds if seconds > 0 else 0.0

    def __str__(self) -> str:
        speed = f", {self.tokens_per_second:.1f} tok/s" if self.num_tokens > 1 else ""
        return (
            f"{self.num_tokens} tokens{speed}, first after {self.first_token_s * 1000:.0f} ms; "
            f"{self.num_cached_tokens} of {self.num_prompt_tokens} prompt tokens reused"
        )


@contextlib.contextmanager
def loaded(config: EngineConfig) -> Iterator[Engine]:
    """An engine, loaded behind a progress bar, and shut down at the end."""
    from milepost.cli.progress import loading_bar
    from milepost.engine.async_llm import AsyncLLM

    with loading_bar() as report:
        engine = cast("Engine", AsyncLLM.from_config(config, progress=report))
    try:
        yield engine
    finally:
        engine.shutdown()


def params_for(engine: Engine, **given: Any) -> SamplingParams:
    """Streaming parameters: what is given (not None), else the model's, else vLLM's defaults."""
    chosen = {name: value for name, value in given.items() if value is not None}
    settings: dict[str, Any] = {**engine.default_sampling, "max_tokens": None, **chosen}
    return SamplingParams(**settings, output_kind=RequestOutputKind.DELTA)


def chat_prompt(engine: Engine, messages: list[dict[str, str]]) -> dict[str, Any]:
    """Messages as a prompt, through the model's chat template."""
    if engine.chat_template is None or engine.tokenizer is None:
        raise RequestError("this model has no chat template", "give one with --chat-template FILE")
    template, tokenizer = engine.chat_template, engine.tokenizer
    text = template.render(messages)
    ids, places = tokenizer.encode_with(template.places(text, messages), text, add_special_tokens=False)
    return {"prompt": text, "prompt_token_ids": ids, "places": places}


async def stream_answer(
    engine: Engine,
    prompt: dict[str, Any],
    params: SamplingParams,
    request_id: str,
    answer: Answer,
    write: Callable[[str], None],
) -> None:
    """Fills `answer` and writes its text as it comes. Cancelled, it ends the request; `answer` holds what came."""
    start = time.perf_counter()
    outputs = cast("AsyncGenerator[Any, None]", engine.generate(prompt, params, request_id))
    async with contextlib.aclosing(outputs):
        async for output in outputs:
            if output.error is not None:
                raise output.error
            now = time.perf_counter() - start
            answer.num_prompt_tokens = len(output.prompt_token_ids)
            answer.num_cached_tokens = output.num_cached_tokens
            for sample in output.outputs:
                if sample.token_ids:
                    answer.first_token_s = answer.first_token_s or now
                    answer.last_token_s = now
                answer.num_tokens += len(sample.token_ids)
                answer.text += sample.text
                write(sample.text)


def for_terminal(text: str) -> str:
    """Without control characters: a model's text must not steer the terminal."""
    return text.translate(CONTROLS)
