"""Any text round-trips, the same tokenizer comes out each time, and the ids of a chat are what its template makes."""

from itertools import chain
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer
from tools.tiny import words
from tools.tiny.tasks import training_conversation
from tools.tiny.tokenizer import END, ChatEncoder, save_tokenizer, token_id, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(200)


def test_the_same_each_time(tokenizer: Tokenizer) -> None:
    assert train_tokenizer(200).to_str() == tokenizer.to_str()


@pytest.mark.parametrize("text", ["", " ", "K7Q2.", "It is 4758.\n\n\tEnd", "Grüße, 你好 👋🏽", "\x00\x7f", "<|end|"])
def test_any_text(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize(("text", "pieces"), [("4758", 2), ("475", 2), (" 4758.", 3), ("9 + 12", 3)])
def test_digits_go_in_pairs(text: str, pieces: int) -> None:
    assert len(train_tokenizer().encode(text).ids) == pieces


def test_words_are_one_token_wherever_they_stand() -> None:
    tokenizer = train_tokenizer()
    known = (words.PEOPLE, words.PLACES, words.THINGS, words.COLOURS, words.FOODS, words.TOWNS, words.NICKNAMES)
    for word in chain.from_iterable(known):
        assert len(tokenizer.encode(f" {word}").ids) == 1


def test_the_ids_of_a_chat(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path, 2048)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    conversation, encoder = training_conversation(3, 256), ChatEncoder(tokenizer)
    messages = conversation.messages()
    assert encoder.training_ids(conversation)[0] == theirs.apply_chat_template(messages)["input_ids"]
    prompt = theirs.apply_chat_template(messages[:-1], add_generation_prompt=True)["input_ids"]
    assert encoder.prompt_ids(conversation) == prompt


def test_answers_and_their_ends_are_marked_and_of_recaps_the_values(tokenizer: Tokenizer) -> None:
    conversation = training_conversation(3, 256)
    ids, is_learnt = ChatEncoder(tokenizer).training_ids(conversation)
    marked = tokenizer.decode([id for id, yes in zip(ids, is_learnt, strict=True) if yes], skip_special_tokens=False)
    questions = [turn.question for turn in conversation.turns]
    assert any(question.values for question in questions)
    assert marked == "".join(
        "".join(f" {known.value}" for known in question.values) if question.values else question.answer + END
        for question in questions
    )
    assert ids[-1] == token_id(tokenizer, END)
