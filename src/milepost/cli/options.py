"""Options that several commands share: vLLM's names, the engine's defaults."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from milepost.errors import ConfigError

UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str | int) -> int:
    """A whole number, also as 4k or 2GB (powers of 1000), or as 4K, 2G or 2GiB (powers of 1024)."""
    match = re.fullmatch(r"(\d{1,18})(?:([kmgtKMGT])(iB|B)?)?", str(text).strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a size such as 4096, 4k or 2GiB")
    number, unit, suffix = match[1], match[2] or "", match[3]
    binary = suffix == "iB" or (suffix is None and unit.isupper())
    return int(number) * (1024 if binary else 1000) ** UNITS[unit.lower()]


def parse_interval(text: str | None) -> int | None:
    """Tokens; None where it is left out or, as vLLM also takes it, "None"."""
    if text is None or text.strip().lower() in ("none", "dense"):
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"--prefix-cache-retention-interval: {text!r} is not a number of tokens, nor None",
            "a multiple of 64, 0, or leave it out",
        ) from None


def parse_list(flag: str, values: Iterable[str] | None) -> tuple[str, ...]:
    """Of an option that may be repeated; as vLLM takes it, one may also be a JSON list of several."""
    found: list[str] = []
    for value in values or ():
        listed: Any = [value]
        if value.lstrip().startswith("["):
            try:
                listed = json.loads(value)
            except ValueError:
                listed = [None]
        if not all(isinstance(one, str) and one.strip() for one in listed):
            raise ConfigError(f"{flag} cannot be {value!r}", "give one value, or a JSON list of texts")
        found += [one.strip() for one in listed]
    return tuple(found)


Model = Annotated[
    str | None,
    typer.Argument(help="A folder, a GGUF file or a hub name; left out: a small default model.", show_default=False),
]
Dtype = Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")]
MaxModelLen = Annotated[
    int | None,
    typer.Option(parser=parse_size, metavar="TOKENS", help="Prompt and answer together.", show_default="the model's"),
]
MaxNumSeqs = Annotated[int, typer.Option(help="Answers that are generated at once.")]
MaxNumBatchedTokens = Annotated[int, typer.Option(parser=parse_size, metavar="TOKENS", help="Tokens of one step.")]
KvCacheMemoryBytes = Annotated[
    int | None,
    typer.Option(
        parser=parse_size, metavar="BYTES", help="Memory for the cache, such as 2GiB.", show_default="what is free"
    ),
]
PrefixCacheRetentionInterval = Annotated[
    str | None,
    typer.Option(
        metavar="TOKENS",
        help="Recurrent states are kept each so many tokens (a multiple of 64), or with 0 only where prompts and "
        "answers end, where prompts part, at messages' ends and at clients' breakpoints.",
        show_default="every 64 tokens",
    ),
]
PrefixCachePolicy = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="What goes first when the prefix cache is full. thinning: what saves least for its size; returns: what is "
        "least likely to be asked for again, learnt from who comes back.",
    ),
]
Seed = Annotated[int | None, typer.Option(help="Of the random numbers of requests that bring no seed.")]
ChatTemplate = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Jinja file, or its text, in place of the model's own.", show_default=False),
]
EnablePrefixCaching = Annotated[
    bool, typer.Option("--enable-prefix-caching/--no-enable-prefix-caching", help="Reuse prompt prefixes.")
]
SchedulingPolicy = Annotated[str, typer.Option(help="fcfs, or priority: lower numbers first.")]
GenerationConfig = Annotated[
    str, typer.Option(help="auto: sampling defaults from the model's generation_config.json; vllm: vLLM's defaults.")
]
NumThreads = Annotated[int | None, typer.Option(help="Threads for computing.", show_default="the cores there are")]

Temperature = Annotated[float | None, typer.Option(help="0: always the most likely token.", show_default="the model's")]
TopP = Annotated[
    float | None, typer.Option(help="Choose among the likeliest with this much together.", show_default="the model's")
]
TopK = Annotated[int | None, typer.Option(help="Choose among so many.", show_default="the model's")]
MinP = Annotated[
    float | None, typer.Option(help="Least share of the likeliest one's chance.", show_default="the model's")
]
