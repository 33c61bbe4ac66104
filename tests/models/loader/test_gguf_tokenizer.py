"""Tokenizers from GGUF metadata: byte-level and SentencePiece, their special tokens, templates, and contradictions."""

from typing import Any

import pytest
import tiny_models as tiny
from tokenizers import Tokenizer

from milepost.errors import ModelError
from milepost.models.loader.gguf_tokenizer import end_token_ids, read_tokenizer
from milepost.models.loader.source import TokenizerSource

TEXTS = [
    *("hello world", " leading", "trailing ", "   runs   of  spaces   ", "\n\n\ttabs\r\n", "", " ", "1234567 3.14159"),
    *("naïve café e\u0301", "你好世界。日本語", "🙂👩‍👩‍👧‍👦🏳️‍🌈", "DON'T don't it's", "a\u00a0b\u2028c", "\x00\x7f"),
]


def read(**changes: Any) -> TokenizerSource:
    source, problem = read_tokenizer(tiny.tokenizer_metadata(**changes))
    assert source is not None, problem
    return source


def byte_level(**changes: Any) -> Tokenizer:
    return read(**changes).backend


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_round_trip(text: str) -> None:
    backend = byte_level()
    assert backend.decode(backend.encode(text).ids) == text


def test_byte_level_merges_in_the_order_of_the_file() -> None:
    assert byte_level().encode("hello world").tokens == ["hello", "Ġworld"]
    assert byte_level().encode("hell").tokens == ["hell"]
    assert byte_level().encode("helo").tokens == ["he", "l", "o"]


def test_control_and_user_defined_tokens_are_found_whole() -> None:
    backend = byte_level()
    ids = backend.encode("hello<|turn|>hello <think>").ids
    assert ids == [
        backend.token_to_id("hello"),
        tiny.TURN,
        backend.token_to_id("hello"),
        *backend.encode(" ").ids,
        tiny.THINK,
    ]
    assert backend.decode(ids) == "hellohello <think>"  # decoding skips control tokens, not user-defined ones
    assert backend.decode(ids, skip_special_tokens=False) == "hello<|turn|>hello <think>"
    assert backend.get_vocab_size() == tiny.VOCAB_SIZE


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "ab 1234 c's", ["ab", " 1234", " c", "'s"]),
        ("smollm", "ab 1234 c's", ["ab", " ", "1", "2", "3", "4", " c", "'s"]),
        ("refact", "x=10", ["x", "=", "1", "0"]),
        ("llama-bpe", "ab 12345 c'S\n\n x", ["ab", " ", "123", "45", " c", "'S", "\n\n", " x"]),
        ("lfm2", "a 1234", ["a", " ", "123", "4"]),
        ("falcon-h1", "a 1234", ["a", " ", "123", "4"]),
        ("dbrx", "a 1234", ["a", " ", "123", "4"]),
        ("qwen2", "ab 123\n\n", ["ab", " ", "1", "2", "3", "\n\n"]),
        ("qwen35", "na\u0308 12", ["nä", " ", "1", "2"]),
        ("tekken", "HelloWorld 12", ["Hello", "World", " ", "1", "2"]),
        ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"]),
        ("olmo", "ab 1234", ["ab", " 1234"]),
        ("gpt-neox", "ab 1234", ["ab", " 1234"]),
        ("falcon", "ab, 1234", ["ab", ",", " ", "123", "4"]),
        ("default", "ab, 1234", ["ab", ",", " ", "123", "4"]),
        ("deepseek-v3", "ab日本 1234", ["ab", "日本", " ", "123", "4"]),
    ],
)
def test_words_that_each_pre_tokenizer_cuts(pre: str, text: str, words: list[str]) -> None:
    backend = byte_level(ggml__pre=pre)
    assert backend.pre_tokenizer is not None
    normal = backend.normalizer.normalize_str(text) if backend.normalizer else text
    pieces = [normal[start:end] for _, (start, end) in backend.pre_tokenizer.pre_tokenize_str(normal)]
    assert pieces == words


def test_an_unknown_pre_tokenizer_is_the_default_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    backend = byte_level(ggml__pre="next-years")
    assert "pre-tokenizer 'next-years' is not known" in caplog.text
    assert backend.encode("ab, 1234").ids == byte_level(ggml__pre="default").encode("ab, 1234").ids


def test_words_that_are_tokens_need_no_merges() -> None:
    tokens = [*tiny.TOKENS, "zzz"]
    changes = {"ggml__tokens": tokens, "ggml__token_type": [1] * len(tokens)}
    assert byte_level(**changes, ggml__pre="gpt-2").encode("zzz").tokens == ["z", "z", "z"]
    assert byte_level(**changes, ggml__pre="llama-bpe", ggml__add_bos_token=False).encode("zzz").tokens == ["zzz"]


def test_bos_and_eos_where_asked_for() -> None:
    plain = byte_level().encode("hello").ids
    assert byte_level(ggml__add_bos_token=True).encode("hello").ids == [tiny.BOS, *plain]
    both = byte_level(ggml__add_bos_token=True, ggml__add_eos_token=True)
    assert both.encode("hello").ids == [tiny.BOS, *plain, tiny.END]
    assert both.encode("hello", add_special_tokens=False).ids == plain
    assert byte_level(ggml__add_eos_token=True).encode("").ids == [tiny.END]


def test_bos_by_default_is_the_pre_tokenizers() -> None:
    assert byte_level(ggml__pre="llama-bpe").encode("hello").ids[0] == tiny.BOS
    assert byte_level(ggml__pre="llama-bpe", ggml__add_bos_token=False).encode("hello").ids[0] != tiny.BOS
    assert byte_level(ggml__pre="qwen2").encode("hello").ids[0] != tiny.BOS


def test_bos_asked_for_and_not_named(caplog: pytest.LogCaptureFixture) -> None:
    backend = byte_level(ggml__add_bos_token=True, ggml__bos_token_id=None)
    assert backend.encode("hello").tokens == ["hello"]
    assert "asks for a BOS token at each text and names none" in caplog.text


PIECES = [
    ("<unk>", 2, 0.0),
    ("<s>", 3, 0.0),
    ("</s>", 3, 0.0),
    *((f"<0x{byte:02X}>", 6, 0.0) for byte in range(256)),
    *((piece, 1, -float(rank)) for rank, piece in enumerate(("▁a", "ab", "▁ab", "▁b", "bc", "abc"))),
    *((piece, 1, -100.0) for piece in ("▁", "a", "b", "c")),
    ("▁▁", 4, 0.0),
]


def pieces(**changes: Any) -> Tokenizer:
    settings = {
        "ggml__model": "llama",
        "ggml__pre": None,
        "ggml__merges": None,
        "ggml__tokens": [piece for piece, _, _ in PIECES],
        "ggml__token_type": [kind for _, kind, _ in PIECES],
        "ggml__scores": [score for _, _, score in PIECES],
        "ggml__bos_token_id": 1,
        "ggml__eos_token_id": 2,
        "ggml__eot_token_id": None,
    }
    return read(**settings | changes).backend


@pytest.mark.parametrize("text", TEXTS)
def test_sentencepiece_round_trip(text: str) -> None:
    backend = pieces(ggml__add_space_prefix=False)
    assert backend.decode(backend.encode(text).ids) == text
    # with the space that leads every piece of text: also after a token found whole, as in llama.cpp, so here are none
    backend = pieces(ggml__token_type=[1 if kind == 4 else kind for _, kind, _ in PIECES])
    assert backend.decode(backend.encode(text).ids) == text


def test_sentencepiece_merges_the_best_score_first() -> None:
    # "▁a" scores above "bc" and "abc": "▁abc" begins with it
    assert pieces().encode("abc").tokens == ["<s>", "▁ab", "c"]
    assert pieces(ggml__add_space_prefix=False).encode("abc").tokens == ["<s>", "abc"]
    assert pieces().encode("ab bc").tokens == ["<s>", "▁ab", "▁b", "c"]
    worst_first = [-score for _, _, score in PIECES]
    assert pieces(ggml__scores=worst_first).encode("abc").tokens == ["<s>", "▁", "abc"]


def test_sentencepiece_runs_of_one_score_grow_from_the_left() -> None:
    runs = ["▁", *("▁" * length for length in range(2, 6)), "a", "<s>", "</s>"]
    settings = {"ggml__tokens": runs, "ggml__token_type": [1] * 6 + [3] * 2, "ggml__scores": [-1e9] * 8}
    settings |= {"ggml__bos_token_id": 6, "ggml__eos_token_id": 7, "ggml__add_space_prefix": False}
    assert pieces(**settings).encode("        a").tokens == ["<s>", "▁▁▁▁▁", "▁▁▁", "a"]


def test_sentencepiece_bytes_and_user_defined_spaces() -> None:
    assert pieces().encode("é").tokens == ["<s>", "▁", "<0xC3>", "<0xA9>"]
    backend = pieces(ggml__add_space_prefix=False)
    ids = backend.encode("a  b").ids
    assert ids == [1, backend.token_to_id("a"), len(PIECES) - 1, backend.token_to_id("b")]
    assert backend.get_vocab_size() == len(PIECES)


def test_what_sentencepiece_cannot_spell_is_the_unknown_token() -> None:
    kinds = [1 if kind == 6 else kind for _, kind, _ in PIECES]  # no bytes to fall back to
    assert pieces(ggml__token_type=kinds).encode("日本 a").tokens == ["<s>", "▁", "<unk>", "▁a"]
    kinds[0] = 4
    renamed = ["▁?", *(piece for piece, _, _ in PIECES[1:])]
    assert pieces(ggml__tokens=renamed, ggml__token_type=kinds).encode("日").ids[-1] == 0


def test_sentencepiece_adds_bos_unless_told_otherwise() -> None:
    assert pieces().encode("a").ids[0] == 1
    assert pieces(ggml__bos_token_id=None).encode("a").ids[0] == 1
    assert pieces(ggml__add_bos_token=False).encode("a").tokens == ["▁a"]


def test_names_of_special_tokens() -> None:
    source = read(ggml__padding_token_id=tiny.TURN, ggml__unknown_token_id=(1 << 32) - 1)
    assert source.special_tokens == {"bos_token": "<|begin|>", "eos_token": "<|end|>", "pad_token": "<|turn|>"}


def test_end_tokens_of_text_turn_and_message() -> None:
    assert end_token_ids(tiny.tokenizer_metadata()) == [tiny.END, tiny.TURN]
    assert end_token_ids(tiny.tokenizer_metadata(ggml__eom_token_id=tiny.BOS)) == [tiny.END, tiny.TURN, tiny.BOS]
    assert end_token_ids(tiny.tokenizer_metadata(ggml__eot_token_id=tiny.END)) == [tiny.END]
    assert end_token_ids({}) == []


def test_chat_templates() -> None:
    assert read().chat_template == "{{ messages[0].content }}"
    assert read(chat_template=None).chat_template is None
    both = read(chat_template__tool_use="tools", chat_templates=["tool_use"])
    assert both.chat_template == {"default": "{{ messages[0].content }}", "tool_use": "tools"}
    with pytest.raises(ModelError, match="chat template is not text"):
        read(chat_template=7)


def test_no_tokenizer_and_unsupported_ones() -> None:
    assert read_tokenizer({}) == (None, "the GGUF file holds no tokenizer")
    assert read_tokenizer({"tokenizer.ggml.model": "none"})[0] is None
    source, problem = read_tokenizer({"tokenizer.ggml.model": "t5"})
    assert source is None
    assert "'t5', which is not supported" in problem


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ggml__tokens": None}, "has no tokens"),
        ({"ggml__tokens": []}, "has no tokens"),
        ({"ggml__tokens": [1, 2]}, "has no tokens"),
        ({"ggml__tokens": "abc"}, "has no tokens"),
        ({"ggml__token_type": [1, 2]}, "one of its types for each token"),
        ({"ggml__scores": [1.0]}, "one of its scores for each token"),
        ({"ggml__merges": None}, "has no merges"),
        ({"ggml__merges": 3}, "merges are not a list"),
        ({"ggml__merges": ["h"]}, "tokenizer is damaged"),
        ({"ggml__merges": ["q q"]}, "tokenizer is damaged: .*`qq` out of vocabulary"),
        ({"ggml__merges": ["\n q"]}, "tokenizer is damaged"),
        ({"ggml__model": "llama", "ggml__tokens": ["a" * 5000] * tiny.VOCAB_SIZE}, "more than 4096 characters"),
    ],
)
def test_contradictions(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        read(**changes)
    assert "\n" not in str(caught.value)


def test_two_tokens_of_one_text_keep_the_first_id() -> None:
    backend = byte_level(ggml__tokens=["x" if token == "<think>" else token for token in tiny.TOKENS])
    assert backend.encode("x").ids == [tiny.TOKENS.index("x")]
