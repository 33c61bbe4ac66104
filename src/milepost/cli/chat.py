"""`milepost chat`: a conversation in the terminal, with the model in this process."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from milepost.cli import options
from milepost.cli.answer import Answer, chat_prompt, for_terminal, loaded, params_for, stream_answer
from milepost.config import EngineConfig
from milepost.errors import MilepostError, RequestError

if TYPE_CHECKING:
    from milepost.sampling_params import SamplingParams
    from milepost.server.state import Engine

HELP = "/exit ends, /reset starts anew, Ctrl-C stops an answer"


def chat(
    model: options.Model = None,
    system: Annotated[str | None, typer.Option(help="System message.", show_default=False)] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Of an answer.", show_default="the rest of the context")
    ] = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    seed: options.Seed = EngineConfig.seed,
    dtype: options.Dtype = EngineConfig.dtype,
    max_model_len: options.MaxModelLen = None,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    chat_template: options.ChatTemplate = None,
    generation_config: options.GenerationConfig = EngineConfig.generation_config,
    enable_prefix_caching: options.EnablePrefixCaching = True,
    num_threads: options.NumThreads = None,
) -> None:
    """Talk with a model."""
    config = EngineConfig(
        model=model,
        dtype=dtype,
        max_model_len=max_model_len,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        seed=seed,
        chat_template=chat_template,
        generation_config=generation_config,
        enable_prefix_caching=enable_prefix_caching,
        num_threads=num_threads,
    )
    with loaded(config) as engine, asyncio.Runner() as runner:
        if engine.chat_template is None:  # before anybody types anything
            raise RequestError("this model has no chat template", "give one with --chat-template FILE")
        params = params_for(
            engine, max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p
        )
        _note(f"{engine.model_name}: {HELP}")
        Conversation(engine, params, runner, system).run()


class Conversation:
    """Messages so far. One event loop serves all answers, since the engine's streams belong to it."""

    def __init__(self, engine: Engine, params: SamplingParams, runner: asyncio.Runner, system: str | None) -> None:
        self._engine, self._params, self._runner = engine, params, runner
        self._start = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._start)
        self._num_answers = 0

    def run(self) -> None:
        """Until /exit or the end of input."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (editing and history for input())
        while (line := _read_line()) is not None:
            if line == "/exit":
                return
            if line == "/reset":
                self.messages = list(self._start)
            elif line.startswith("/"):
                _note(HELP)
            elif line:
                self._say(line)

    def _say(self, text: str) -> None:
        """A stopped answer stays in the conversation as far as it came; a question that failed does not."""
        self.messages.append({"role": "user", "content": text})
        answer = Answer()
        self._num_answers += 1
        try:
            prompt = chat_prompt(self._engine, self.messages)
            self._runner.run(
                stream_answer(self._engine, prompt, self._params, f"chat-{self._num_answers}", answer, _write)
            )
        except MilepostError as error:
            if self._engine.errored is not None:
                raise
            self.messages.pop()
            _note(f"error: {error}")
            return
        except KeyboardInterrupt:
            _write(" [stopped]")
        _write("\n")
        self.messages.append({"role": "assistant", "content": answer.text})
        _note(str(answer))


def _read_line() -> str | None:
    try:
        return input("> ").strip()
    except EOFError:
        _write("\n")
        return None


def _write(text: str) -> None:
    sys.stdout.write(for_terminal(text))
    sys.stdout.flush()


def _note(text: str) -> None:
    """A dim line beside the conversation."""
    from rich.console import Console

    Console(stderr=True, highlight=False).print(text, style="dim", markup=False)
