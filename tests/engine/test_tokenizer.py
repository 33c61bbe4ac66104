"""The tokenizer over toys of each kind and over SmolLM2's."""

import threading
from typing import Any

import pytest
import tokenizers
import toy_tokenizers
from tokenizers import models, pre_tokenizers, processors
from toy_tokenizers import ALL, byte_level, sentencepiece, smollm2, wordpiece

from milepost.engine.tokenizer import Tokenizer
from milepost.errors import RequestError, RequestFailed
from milepost.models.loader.source import TokenizerSource


def words(*texts: str) -> tokenizers.Tokenizer:
    vocabulary = {text: i for i, text in enumerate(["<unk>", *texts])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return backend


@pytest.mark.parametrize("make", [byte_level, sentencepiece, smollm2])
def test_text_survives_the_way_there_and_back(make: Any) -> None:
    tokenizer = make()
    text = "the Paris é 😀 \n\t the 日本"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode(text, add_special_tokens=False) == ids
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""


def test_special_tokens_are_added_only_if_asked() -> None:
    backend = words("a")
    backend.add_special_tokens(["<s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    tokenizer = Tokenizer(TokenizerSource(backend, {"bos_token": "<s>"}), [5])
    assert tokenizer.bos_token_id == 2
    assert tokenizer.special_tokens == {"bos_token": "<s>"}
    assert tokenizer.eos_token_ids == {5}
    assert tokenizer.special_token_ids == {2}
    assert tokenizer.encode("a") == [2, 1]
    assert tokenizer.encode("a", add_special_tokens=False) == [1]
    assert tokenizer.encode("<s>a", add_special_tokens=False) == [2, 1]
    assert tokenizer.decode([2, 1]) == "a"
    assert tokenizer.decode([2, 1], skip_special_tokens=False) == "<s> a"


def test_limits_stored_in_the_tokenizer_file_are_lifted() -> None:
    backend = words("a")
    backend.enable_truncation(3)
    backend.enable_padding(length=10)
    assert Tokenizer(TokenizerSource(backend)).encode("a a a a a") == [1] * 5


def test_no_bos() -> None:
    assert Tokenizer(TokenizerSource(words("a"))).bos_token_id is None
    assert Tokenizer(TokenizerSource(words("a"), {"bos_token": "<none such>"})).bos_token_id is None


def test_vocabulary_with_added_tokens_and_holes() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "a": 7}, unk_token="<unk>"))
    backend.add_tokens(["<new>"])
    tokenizer = Tokenizer(TokenizerSource(backend))
    assert tokenizer.vocab_size == 8
    assert tokenizer.decode([7, 3, 0]) == "a <unk>"
    assert tokenizer.visible([7, 3, 0], True) == [7, 0]


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_unknown_ids_add_nothing(make: Any) -> None:
    tokenizer = make()
    for token in (-1, tokenizer.vocab_size, 2**31, 2**70):
        assert tokenizer.decode([token]) == ""
        assert tokenizer.token_text(token) == ""
    ids = [5, 6, 7]
    assert tokenizer.decode([-3, 5, tokenizer.vocab_size, 6, 7]) == tokenizer.decode(ids)


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(RequestError, match="lone surrogate at character 2") as caught:
        byte_level().encode("ab\ud800")
    assert caught.value.status == 400


def test_bytes_that_are_no_text() -> None:
    tokenizer = byte_level()
    euro = tokenizer.encode("€", add_special_tokens=False)
    assert len(euro) == 2
    assert tokenizer.decode(euro[:1]) == "\ufffd"
    assert tokenizer.token_text(euro[0]) == "\ufffd"


def test_token_texts_keep_their_space() -> None:
    tokenizer = sentencepiece()
    ids = tokenizer.encode("the the Paris\n", add_special_tokens=False)
    assert [tokenizer.token_text(token) for token in ids[1:]] == [" the", " Paris", "\n"]
    assert tokenizer.token_text(1 + 0x41) == "A"
    assert tokenizer.token_text(1 + 0xE9) == "\ufffd"
    assert tokenizer.token_text(tokenizer.encode("</s>", add_special_tokens=False)[0]) == "</s>"
    assert wordpiece().token_text(2) == "ing"


def test_token_texts_of_smollm2_join_to_the_text() -> None:
    tokenizer = smollm2()
    text = "The capital of France is Paris.\n\nIt's 1889!"
    assert "".join(map(tokenizer.token_text, tokenizer.encode(text))) == text


def test_a_panic_of_the_tokenizers_package_is_an_error_of_the_request() -> None:
    class PanicException(BaseException):
        pass

    class Panicking:
        def __init__(self, backend: tokenizers.Tokenizer) -> None:
            self.backend = backend

        def __getattr__(self, name: str) -> Any:
            return getattr(self.backend, name)

        def encode(self, *_: Any, **__: Any) -> Any:
            raise PanicException("index out of bounds")

        decode = encode

    tokenizer = Tokenizer(TokenizerSource(Panicking(words("a"))))  # type: ignore[arg-type]
    for call in (lambda: tokenizer.encode("a"), lambda: tokenizer.decode([1])):
        with pytest.raises(RequestFailed, match="the tokenizer failed: index out of bounds"):
            call()


def test_many_threads() -> None:
    tokenizer = toy_tokenizers.byte_level()
    texts = [f"the {i} é😀" for i in range(50)]
    expected = [tokenizer.encode(text) for text in texts]
    wrong: list[int] = []

    def work() -> None:
        for i, text in enumerate(texts):
            ids = tokenizer.encode(text)
            if ids != expected[i] or tokenizer.decode(ids) != text or not tokenizer.token_text(ids[0]):
                wrong.append(i)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
