"""How GGUF's byte-level vocabularies cut text into words before merging, by the name in `tokenizer.ggml.pre`.

The expressions and what goes with them are facts of the tokenizers: those of the models' own tokenizer.json where it
is known (hence NFC for some), else those by which llama.cpp, the format's reference implementation, replaces them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`patterns` cut the text one after another, each match a piece of its own.

    ignore_merges: a word that is a token as a whole is that token. add_bos: whether a BOS token leads when the file
    does not say. nfc: whether text is composed first (Unicode's form C).
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_CASED_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

_CL100K = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_MARKS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_CASED_MARKS}|{_SPACES}"
_GPT4O = rf"{_CASED[0]}{_CONTRACTIONS}?|{_CASED[1]}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_CASED_MARKS}|{_SPACES}"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)

DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

_KINDS: tuple[tuple[PreTokenizer, str], ...] = (
    (DEFAULT, "default"),
    (PreTokenizer((_GPT2,)), "gpt-2 gpt2 phi-2 mpt jais gigachat a.x-4.0 mellum exaone4 trillion granite-docling"),
    (PreTokenizer((_GPT2,), nfc=True), "olmo gpt-neox gptneox"),
    (PreTokenizer((r"\p{N}", _GPT2)), "smollm starcoder refact granite command-r codeshell exaone minerva-7b mellum2"),
    (PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")), "falcon"),
    (
        PreTokenizer((_CL100K,), ignore_merges=True, add_bos=True),
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    ),
    (PreTokenizer((_CL100K,)), "dbrx smaug-bpe glm4 chatglm-bpe"),
    (PreTokenizer((_QWEN2,), nfc=True), "qwen2 deepseek-r1-qwen kormo megrez"),
    (PreTokenizer((_QWEN2,)), "stablelm2 hunyuan solar-open grok-2"),
    (PreTokenizer((_QWEN35,), nfc=True), "qwen35"),
    (PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True), "tekken mistral"),
    (PreTokenizer((_GPT4O,)), "gpt-4o llama4 kanana2 minimax-m2"),
    (PreTokenizer(_DEEPSEEK3), "deepseek-v3 hunyuan-dense"),
)
_BY_NAME = {name: kind for kind, names in _KINDS for name in names.split()}


def pre_tokenizer(name: object) -> PreTokenizer:
    """The one of that name; the default, with a warning, for none and for names not known here."""
    if isinstance(name, str) and name in _BY_NAME:
        return _BY_NAME[name]
    logger.warning("the GGUF file's pre-tokenizer %r is not known: text may be cut into other tokens than meant", name)
    return DEFAULT
