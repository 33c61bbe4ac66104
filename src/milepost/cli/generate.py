"""`milepost generate`: one prompt, its answer on stdout as it comes, statistics on stderr."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from milepost.cli import options
from milepost.cli.answer import Answer, chat_prompt, for_terminal, loaded, params_for, stream_answer
from milepost.config import EngineConfig


def generate(
    model: options.Model = None,
    *,
    prompt: Annotated[str, typer.Option(help="The text to continue.")],
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt through the model's chat template.")] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of the answer.")] = 128,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's end token.")] = False,
    seed: options.Seed = EngineConfig.seed,
    dtype: options.Dtype = EngineConfig.dtype,
    max_model_len: options.MaxModelLen = None,
    kv_cache_memory_bytes: options.KvCacheMemoryBytes = None,
    chat_template: options.ChatTemplate = None,
    generation_config: options.GenerationConfig = EngineConfig.generation_config,
    num_threads: options.NumThreads = None,
) -> None:
    """Continue a prompt."""
    config = EngineConfig(
        model=model,
        dtype=dtype,
        max_model_len=max_model_len,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
        seed=seed,
        chat_template=chat_template,
        generation_config=generation_config,
        num_threads=num_threads,
    )
    with loaded(config) as engine:
        params = params_for(
            engine,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            stop=stop or None,
            ignore_eos=ignore_eos,
        )
        asked = chat_prompt(engine, [{"role": "user", "content": prompt}]) if chat else {"prompt": prompt}
        answer = Answer()
        asyncio.run(stream_answer(engine, asked, params, "generate", answer, _write))
    _write("\n")
    print(answer, file=sys.stderr)


def _write(text: str) -> None:
    sys.stdout.write(for_terminal(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
