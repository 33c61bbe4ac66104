"""Tokenizers from GGUF metadata: byte-level BPE ("gpt2") and SentencePiece's BPE with scores ("llama").

Keys and token types: the GGUF specification. What holds when a key is absent: llama.cpp, the reference implementation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from milepost.errors import ModelError
from milepost.models.loader.gguf_header import HINT
from milepost.models.loader.gguf_pretokenizers import pre_tokenizer
from milepost.models.loader.source import TokenizerSource
from milepost.models.loader.wording import one_line

logger = logging.getLogger(__name__)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, _UNUSED, BYTE = range(1, 7)
"""Types of tokens in `tokenizer.ggml.token_type`."""

SPACE = "\u2581"
"""SentencePiece's spelling of a space."""

MAX_PIECE = 4096
"""Characters of one SentencePiece token; each is cut in two at every place to find what it was merged from."""

_SENTENCEPIECE_IDS = {"bos": 1, "eos": 2, "unknown": 0}
_SPECIAL_NAMES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
    "seperator": "sep_token",  # the specification's spelling
    "mask": "mask_token",
}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The token lists of the metadata: `types[i]` and `scores[i]` are of `tokens[i]`."""

    tokens: list[str]
    types: list[int]
    scores: list[float]

    def ids(self) -> dict[str, int]:
        """Id of each token; of two with one text, the first's."""
        found: dict[str, int] = {}
        for i, token in enumerate(self.tokens):
            found.setdefault(token, i)
        return found


def read_tokenizer(metadata: Mapping[str, Any]) -> tuple[TokenizerSource | None, str]:
    """The tokenizer, or None and the reason why there is none. ModelError if what is stored contradicts itself."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind in (None, "none", "no_vocab"):
        return None, "the GGUF file holds no tokenizer"
    build = _BUILDERS.get(kind) if isinstance(kind, str) else None
    if build is None:
        return None, f"the GGUF file's tokenizer is of the kind {kind!r}, which is not supported"
    vocabulary = _vocabulary(metadata)
    try:
        backend, adds_bos = build(vocabulary, metadata)
        _set_template(backend, vocabulary, metadata, adds_bos)
    except ModelError:
        raise
    except BaseException as error:  # the tokenizers package panics (a BaseException) on some contradictions
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise ModelError(f"the GGUF file's tokenizer is damaged: {one_line(error)}", HINT) from error
    named = {name: token_id(metadata, key) for key, name in _SPECIAL_NAMES.items()}
    special = {name: vocabulary.tokens[i] for name, i in named.items() if i is not None}
    return TokenizerSource(backend, special, _chat_template(metadata)), ""


def token_id(metadata: Mapping[str, Any], name: str) -> int | None:
    """The id of the special token `name` ("bos", "eos", "eot", "padding", ...); None if absent or no token's id."""
    default = _SENTENCEPIECE_IDS.get(name) if metadata.get("tokenizer.ggml.model") == "llama" else None
    found, tokens = metadata.get(f"tokenizer.ggml.{name}_token_id", default), metadata.get("tokenizer.ggml.tokens")
    if type(found) is not int or not isinstance(tokens, list) or not 0 <= found < len(tokens):
        return None
    return found


def end_token_ids(metadata: Mapping[str, Any]) -> list[int]:
    """Ids that end an answer: of the text, of a turn, of a message."""
    found = [token_id(metadata, name) for name in ("eos", "eot", "eom")]
    return list(dict.fromkeys(i for i in found if i is not None))


def _vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise ModelError("the GGUF file's tokenizer has no tokens", HINT)
    types = metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    scores = metadata.get("tokenizer.ggml.scores", [0.0] * len(tokens))
    for name, values in (("types", types), ("scores", scores)):
        if not isinstance(values, list) or len(values) != len(tokens) or isinstance(values[0], str):
            raise ModelError(f"the GGUF file's tokenizer does not have one of its {name} for each token", HINT)
    return Vocabulary(tokens, types, scores)


Built = tuple[Tokenizer, bool]
"""A tokenizer, and whether BOS leads where the file does not say."""


def _byte_level(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Built:
    """BPE over bytes, each spelled as a printable character (Radford et al., 2019)."""
    kind = pre_tokenizer(metadata.get("tokenizer.ggml.pre"))
    merges = _stored_merges(metadata)
    if merges is None:
        raise ModelError("the GGUF file's tokenizer has no merges", HINT)
    backend = Tokenizer(models.BPE(vocabulary.ids(), merges, ignore_merges=kind.ignore_merges))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in kind.patterns]
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, spelling])
    backend.decoder = decoders.ByteLevel()
    if kind.nfc:
        backend.normalizer = normalizers.NFC()
    _add_special(backend, vocabulary)
    return backend, kind.add_bos


def _sentencepiece(vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> Built:
    """BPE over characters, the best-scored merge first; what no token spells falls back to its bytes."""
    if max(map(len, vocabulary.tokens)) > MAX_PIECE:
        raise ModelError(f"the GGUF file's tokenizer has a token of more than {MAX_PIECE} characters", HINT)
    vocabulary = _respelled(vocabulary)
    merges, unknown = _stored_merges(metadata), token_id(metadata, "unknown")
    model = models.BPE(
        vocabulary.ids(),
        _merges_by_score(vocabulary) if merges is None else merges,
        unk_token=None if unknown is None else vocabulary.tokens[unknown],
        fuse_unk=True,
        byte_fallback=BYTE in vocabulary.types,
    )
    backend = Tokenizer(model)
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True) is not False
    spaced = normalizers.Replace(" ", SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaced]) if prefix else spaced
    plain = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*plain, decoders.Strip(" ", 1, 0)] if prefix else plain)
    _add_special(backend, vocabulary)
    return backend, True


_BUILDERS: dict[str, Callable[[Vocabulary, Mapping[str, Any]], Built]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
}


def _respelled(vocabulary: Vocabulary) -> Vocabulary:
    """User-defined tokens are found in the text before its spaces are respelled: they are kept with true spaces."""
    tokens = [
        token.replace(SPACE, " ") if kind == USER_DEFINED else token
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
    ]
    return Vocabulary(tokens, vocabulary.types, vocabulary.scores)


def _stored_merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """The pairs of `tokenizer.ggml.merges`, best first; None if there are none stored."""
    stored = metadata.get("tokenizer.ggml.merges")
    if stored is None:
        return None
    if not isinstance(stored, list) or (stored and not isinstance(stored[0], str)):
        raise ModelError("the GGUF file's merges are not a list of texts", HINT)
    merges = []
    for pair in stored:
        left, _, right = pair[1:].partition(" ")  # the first character may itself be a space
        merges.append((pair[:1] + left, right))
    return merges


def _merges_by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every pair of tokens that spells a third one, by the third's score, best first.

    SentencePiece merges the leftmost of equal scores, which lets a run of spaces (all of one score) grow from its left
    end; merges by rank do the same when those with the longer left side go first.
    """
    ids, found = vocabulary.ids(), []
    for token, kind, score in zip(vocabulary.tokens, vocabulary.types, vocabulary.scores, strict=True):
        if kind != NORMAL:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                found.append((-score, -cut, -len(right), left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def _add_special(backend: Tokenizer, vocabulary: Vocabulary) -> None:
    """Tokens found in a text as a whole: control tokens, which decoding may skip, and user-defined ones."""
    ids = vocabulary.ids()
    control, plain = [], []
    for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if not token or ids[token] != i:
            continue
        if kind in (CONTROL, UNKNOWN):
            control.append(AddedToken(token, special=True, normalized=False))
        elif kind == USER_DEFINED:
            plain.append(AddedToken(token, special=False, normalized=False))
    backend.add_special_tokens(control)
    backend.add_tokens(plain)


def _set_template(backend: Tokenizer, vocabulary: Vocabulary, metadata: Mapping[str, Any], adds_bos: bool) -> None:
    """BOS before and EOS after each text, where the file, or else the kind of tokenizer (`adds_bos`), says so.

    The template names the tokens itself: their texts may hold what templates use (":", "$").
    """
    special = []
    for name, default in (("bos", adds_bos), ("eos", False)):
        i = token_id(metadata, name)
        if metadata.get(f"tokenizer.ggml.add_{name}_token", default) is not True:
            continue
        if i is None:
            logger.warning("the GGUF file asks for a %s token at each text and names none", name.upper())
        else:
            special.append({"id": f"<{name}>", "ids": [i], "tokens": [vocabulary.tokens[i]]})
    names = [entry["id"] for entry in special]
    first, last = [name for name in names if name == "<bos>"], [name for name in names if name == "<eos>"]
    if special:
        pair = [*first, "$A", *last, *first, "$B:1", *last]
        backend.post_processor = processors.TemplateProcessing([*first, "$A", *last], pair, special)


def _chat_template(metadata: Mapping[str, Any]) -> str | dict[str, str] | None:
    start = "tokenizer.chat_template"
    found = {key.removeprefix(start): text for key, text in metadata.items() if key.startswith(start)}
    named = {key[1:] or "default": text for key, text in found.items() if key[:1] in ("", ".") and key != "."}
    if not all(isinstance(text, str) for text in named.values()):
        raise ModelError("the GGUF file's chat template is not text", HINT)
    return named["default"] if list(named) == ["default"] else named or None
