"""Incremental text against the decoding of all tokens at once."""

import random
from typing import Any

import pytest
from test_stop_strings import cut
from toy_tokenizers import ALL, TOYS, byte_level, sentencepiece, smollm2

from milepost.engine.detokenizer import Detokenizer
from milepost.engine.tokenizer import Tokenizer
from milepost.sampling_params import SamplingParams


def texts_of(tokenizer: Tokenizer, ids: list[int], prompt: list[int] = (), **params: Any) -> list[str]:  # type: ignore[assignment]
    """The pieces in their order, that of `flush` last."""
    detokenizer = Detokenizer(tokenizer, SamplingParams(max_tokens=None, **params), prompt)
    return [*(detokenizer.append([token]) for token in ids), detokenizer.flush()]


def random_ids(tokenizer: Tokenizer, rng: random.Random) -> list[int]:
    """Any ids, unknown and special ones too; or the ids of a text, some of them disturbed."""
    length, bound = rng.randrange(60), tokenizer.vocab_size + 3
    if rng.random() < 0.5:
        return [rng.randrange(bound) for _ in range(length)]
    text = "".join(rng.choice(["a", "é", "😀", " the", "\n", "€", "日本", "s.", "\ufffd"]) for _ in range(length))
    ids = tokenizer.encode(text, add_special_tokens=False)
    for _ in range(rng.randrange(3)):
        ids.insert(rng.randrange(len(ids) + 1), rng.randrange(bound))
    return ids


def check_pieces(name: str, trials: int) -> None:
    tokenizer, rng = ALL[name](), random.Random(name)
    for _ in range(trials):
        ids, skip = random_ids(tokenizer, rng), rng.random() < 0.5
        pieces = texts_of(tokenizer, ids, skip_special_tokens=skip)
        assert "".join(pieces) == tokenizer.decode(ids, skip), ids


@pytest.mark.parametrize("name", ALL)
def test_pieces_join_to_the_whole_text(name: str) -> None:
    check_pieces(name, 300)


@pytest.mark.full
@pytest.mark.parametrize("name", ALL)
def test_pieces_join_to_the_whole_text_at_length(name: str) -> None:
    check_pieces(name, 20_000)


@pytest.mark.parametrize("name", ALL)
def test_it_does_not_matter_how_tokens_are_handed_in(name: str) -> None:
    tokenizer, rng = ALL[name](), random.Random(name)
    for _ in range(50):
        ids = random_ids(tokenizer, rng)
        one_by_one = "".join(texts_of(tokenizer, ids))
        detokenizer = Detokenizer(tokenizer, SamplingParams(), [])
        at = rng.randrange(len(ids) + 1)
        assert detokenizer.append(ids[:at]) + detokenizer.append(ids[at:]) + detokenizer.flush() == one_by_one


def without_stray_replacement(text: str) -> bool:
    return "\ufffd" not in text


@pytest.mark.parametrize("make", [byte_level, sentencepiece, smollm2])
def test_never_half_a_character(make: Any) -> None:
    tokenizer = make()
    text = "é 😀👩‍👩‍👧 日本語 the ʥ € ꙮ\U0001f9ff."
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = texts_of(tokenizer, ids)
    assert len(pieces) > 12
    assert "".join(pieces) == text
    assert all(map(without_stray_replacement, pieces))


@pytest.mark.parametrize("make", [byte_level, smollm2])
def test_a_character_comes_with_its_last_token(make: Any) -> None:
    tokenizer = make()
    ids = tokenizer.encode("a😀b", add_special_tokens=False)
    pieces = texts_of(tokenizer, ids)
    assert [piece for piece in pieces if piece] == ["a", "😀", "b"]
    assert pieces[-3:] == ["😀", "b", ""]


def test_an_unfinished_character_comes_at_the_end() -> None:
    for tokenizer in (byte_level(), sentencepiece()):
        ids = tokenizer.encode("the😀", add_special_tokens=False)[:-1]
        pieces = texts_of(tokenizer, ids)
        assert without_stray_replacement("".join(pieces[:-1]))
        assert "".join(pieces) == tokenizer.decode(ids)
        assert pieces[-1].endswith("\ufffd")


def test_text_is_what_the_tokens_add_to_the_prompt() -> None:
    tokenizer, rng = sentencepiece(), random.Random(0)
    the, paris = (tokenizer.encode(text, add_special_tokens=False)[-1] for text in ("s the", "s Paris"))
    assert "".join(texts_of(tokenizer, [paris], prompt=[the])) == " Paris"
    assert "".join(texts_of(tokenizer, [paris], prompt=[])) == "Paris"
    special = list(tokenizer.special_token_ids)
    assert "".join(texts_of(tokenizer, [paris], prompt=[the, *special * 20])) == " Paris"
    assert "".join(texts_of(tokenizer, [paris], prompt=special)) == "Paris"
    for name in TOYS:
        tokenizer = TOYS[name]()
        for _ in range(100):
            prompt = tokenizer.encode("the é " * rng.randrange(1, 9) + "the", add_special_tokens=False)
            ids = tokenizer.encode("s the 😀 end", add_special_tokens=False)
            whole = tokenizer.decode([*prompt, *ids])
            assert "".join(texts_of(tokenizer, ids, prompt)) == whole.removeprefix(tokenizer.decode(prompt))


@pytest.mark.parametrize("make", [byte_level, sentencepiece, smollm2])
def test_a_character_that_the_prompt_began_comes_whole(make: Any) -> None:
    tokenizer = make()
    ids = tokenizer.encode("the ꙮ", add_special_tokens=False)
    num_before = len(tokenizer.encode("the ", add_special_tokens=False))
    assert len(ids) > num_before + 1
    for at in range(num_before + 1, len(ids)):
        after = tokenizer.encode("s.", add_special_tokens=False)[-2:]
        pieces = texts_of(tokenizer, [*ids[at:], *after], prompt=ids[:at])
        assert "".join(pieces) == "ꙮ" + tokenizer.decode(after)


def test_a_prompt_that_ends_in_a_replacement_character_keeps_it() -> None:
    tokenizer = smollm2()
    prompt, ids = tokenizer.encode("a \ufffd"), tokenizer.encode(" the")
    assert "".join(texts_of(tokenizer, ids, prompt)) == " the"


@pytest.mark.parametrize("name", ["byte level", "sentencepiece", "smollm2"])
@pytest.mark.parametrize("include", [False, True])
def test_random_stop_strings_against_the_whole_text(name: str, include: bool) -> None:
    tokenizer, rng = ALL[name](), random.Random(name)
    num_found = 0
    for _ in range(300):
        ids = random_ids(tokenizer, rng)
        whole = tokenizer.decode(ids)
        stops = []
        for _ in range(rng.randrange(1, 4)):
            start = rng.randrange(len(whole) + 1)
            stops.append(whole[start : start + rng.randrange(1, 6)] or "never")
            if rng.random() < 0.5:
                stops[-1] += "x"
        detokenizer = Detokenizer(tokenizer, SamplingParams(stop=stops, include_stop_str_in_output=include), [])
        text = "".join(detokenizer.append([token]) for token in ids) + detokenizer.flush()
        assert (text, detokenizer.stopped_by) == cut(whole, stops, include), (ids, stops)
        num_found += detokenizer.stopped_by is not None
    assert 100 < num_found < 300


def test_stop_strings_over_token_boundaries() -> None:
    tokenizer = smollm2()
    ids = tokenizer.encode("The capital is Paris. Next question")
    for stop in ("is Par", ". N", "s. Next q", " "):
        detokenizer = Detokenizer(tokenizer, SamplingParams(stop=[stop]), [])
        shown, num_tokens = "", 0
        while detokenizer.stopped_by is None:
            shown += detokenizer.append([ids[num_tokens]])
            num_tokens += 1
        assert detokenizer.stopped_by == stop
        assert shown == "The capital is Paris. Next question".partition(stop)[0]
        assert stop in tokenizer.decode(ids[:num_tokens])
        assert stop not in tokenizer.decode(ids[: num_tokens - 1])


def test_stop_strings_do_not_count_before_min_tokens() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("a.b.c.d.", add_special_tokens=False)
    params = SamplingParams(stop=["."], min_tokens=4)
    detokenizer = Detokenizer(tokenizer, params, [])
    pieces = [detokenizer.append([token]) for token in ids]
    assert pieces == ["a", ".", "b", ".", "c", "", "", ""]
    assert detokenizer.stopped_by == "."
    assert detokenizer.flush() == ""


def test_special_tokens_are_skipped_or_shown() -> None:
    tokenizer = byte_level()
    ids = [*tokenizer.encode("a</s>b<tool call>", add_special_tokens=False)]
    assert "".join(texts_of(tokenizer, ids)) == "ab<tool call>"
    assert "".join(texts_of(tokenizer, ids, skip_special_tokens=False)) == "a</s>b<tool call>"


@pytest.mark.parametrize("name", ["byte level", "sentencepiece", "smollm2"])
@pytest.mark.parametrize("kind", ["text", "broken bytes", "special"])
def test_the_cost_is_linear(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens decoded per token given, counted: bounded whatever the tokens are."""
    tokenizer = ALL[name]()
    half = tokenizer.encode("e😀", add_special_tokens=False)[-2]
    token = {"text": tokenizer.encode("e")[-1], "broken bytes": half, "special": min(tokenizer.special_token_ids)}[kind]
    decoded = 0
    decode = tokenizer.decode

    def counting(ids: list[int], skip_special_tokens: bool = True) -> str:
        nonlocal decoded
        decoded += len(ids)
        return decode(ids, skip_special_tokens)

    monkeypatch.setattr(tokenizer, "decode", counting)
    texts_of(tokenizer, [token] * 2000)
    assert decoded < 2000 * 25


def test_some_special_tokens_are_shown_though_others_are_skipped() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("<s>a</s>b", add_special_tokens=False)
    (end,) = tokenizer.encode("</s>", add_special_tokens=False)
    assert "".join(texts_of(tokenizer, ids, shown_special_token_ids=frozenset({end}))) == "a</s>b"
