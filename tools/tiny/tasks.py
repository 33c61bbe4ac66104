"""Conversations to train on and to be examined on: a story told in pieces, with questions between them.

Everything follows from (split, seed, length): the same three give the same conversation. Tests draw from other seeds,
and their codes, sums and longer rows of bits are never trained on (`words.held_out`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

from tools.tiny.talk import arithmetic, copying, parity, talk
from tools.tiny.words import Split
from tools.tiny.world import Question, World

RECALL = ("code", "number", "name", "word")
STATE = ("place", "holder", "lamp", "box", "parity")
OTHER = ("copy", "arithmetic", "talk")
RECAP = "recap"
KINDS = (*RECALL, *STATE, *OTHER, RECAP)
"""A recap is for training alone: many values for few words."""

_PIECES = re.compile(r"[A-Za-z]+|[0-9]{1,2}|[^A-Za-z0-9 ]")


@dataclass(frozen=True)
class Turn:
    """One message of the user, which ends with a question, and its answer."""

    user: str
    question: Question


@dataclass(frozen=True)
class Conversation:
    turns: tuple[Turn, ...]

    def messages(self) -> list[dict[str, str]]:
        """As the chat template takes them; the last one is an answer."""
        return [
            {"role": role, "content": content}
            for turn in self.turns
            for role, content in (("user", turn.user), ("assistant", turn.question.answer))
        ]


def size_of(text: str) -> int:
    """About as many tokens as the tokenizer makes of a text: words, digits and marks."""
    return len(_PIECES.findall(text))


ASKED = (*RECALL, *STATE, *OTHER)
WEIGHTS = (4, 4, 4, 4, 4, 4, 4, 4, 3, 1, 1, 0.5)
"""How often each of ASKED is asked in training, where the story so far has something of that kind."""
EASY = 0.3
"""Share of the questions right after a sentence that they are about, in half of the conversations."""
RECAPS = 0.3
"""Share of the turns that are recaps, where something is known."""


def training_conversation(seed: int, length: int) -> Conversation:
    """About `length` tokens, many questions. Of half of the conversations the first part is a story and the rest is
    questions about it; in the others questions come after one sentence that they can be about (these are easy, and what
    they teach helps with the others), after nothing new, after a few sentences, after many."""
    rng = Random(f"train {seed} {length}")
    world, turns, size = World(rng, "train"), list[Turn](), 0
    story_first, asked = rng.random() < 0.5, set[str]()
    while size < length - 24:
        room = max(1, length - size - 24)
        kind = rng.choices(ASKED, WEIGHTS)[0]
        recap = world.recap(rng.randint(3, 8)) if rng.random() < RECAPS else None
        if recap is not None:
            turns.append(Turn(_join(_story(world, rng.choice((0, 0, 20, 40))), recap.text), recap))
        elif not story_first and rng.random() < EASY:
            turns.append(_turn(world, rng, "train", _about(world, kind), kind))
            asked.clear()
        else:
            far = rng.uniform(0.3, 0.8) * room if story_first else rng.uniform(0, 0.5) * room
            some = rng.uniform(0, max(20, length / 16)) if story_first else rng.choice((rng.uniform(0, 60), far))
            story = _story(world, int(rng.choice((0, 0, 0, some)) if turns else far))
            if story:
                asked.clear()
            turns.append(_turn_of_any_kind(world, rng, story, asked))
        size += _size_of(turns[-1])
    return Conversation(tuple(turns))


def _about(world: World, kind: str) -> str:
    """A sentence that a question of the kind can be about; none for those that need no story."""
    return "" if kind in ("parity", *OTHER) else world.happens_for(kind)


def _turn_of_any_kind(world: World, rng: Random, story: str, asked: set[str]) -> Turn:
    """A question of a kind by WEIGHTS; of another where there is nothing of that kind to ask. One of `asked`, to which
    it is added, only if no other comes up soon."""
    tries = 0
    while True:
        question, tries = _question(world, rng, "train", rng.choices(ASKED, WEIGHTS)[0]), tries + 1
        if question is not None and (question.text not in asked or tries > 6):
            asked.add(question.text)
            return Turn(_join(story, question.text), question)


def examination(kind: str, seed: int, length: int) -> Conversation:
    """About `length` tokens whose last question is of the kind; what it asks for by recall was said near the start.

    Every second one tells all in one message; the others have other questions on the way.
    """
    rng = Random(f"test {kind} {seed} {length}")
    world, turns, size = World(rng, "test"), list[Turn](), 0
    story, final = "", None
    if kind in RECALL:
        story = _join(_story(world, rng.randint(0, length // 4)), world.happens_for(kind))
        final = world.question_for_the_end(kind)
    while seed % 2 and size < length // 2:
        other = rng.choice([k for k in ASKED if k != kind])
        turns.append(_turn(world, rng, "test", _join(story, _story(world, rng.randint(0, 60))), other))
        size += _size_of(turns[-1])
        story = ""
    story = _join(story, _story(world, length - size - size_of(story) - 16))
    if final is not None:
        return Conversation((*turns, Turn(_join(story, final.text), final)))
    return Conversation((*turns, _turn(world, rng, "test", story, kind)))


def _turn(world: World, rng: Random, split: Split, story: str, kind: str) -> Turn:
    """The story and a question of the kind; the story goes on until there is something of this kind to ask. Where a
    world has no facts of a kind, it is a question for a place."""
    if kind in RECALL and not world.can_tell(kind):
        kind = "place"
    question = _question(world, rng, split, kind)
    while question is None:
        story = _join(story, world.happens_for(kind))
        question = world.question(kind)
    return Turn(_join(story, question.text), question)


def _question(world: World, rng: Random, split: Split, kind: str) -> Question | None:
    """None if the story so far has nothing of the kind to ask."""
    if kind == "talk":
        return talk(rng)
    alone = {"parity": parity, "arithmetic": arithmetic, "copy": copying}
    return alone[kind](rng, split) if kind in alone else world.question(kind)


def _story(world: World, size: int) -> str:
    """Sentences of about `size` tokens together; none for less than 1."""
    sentences, told = list[str](), 0
    while told < size:
        sentences.append(world.happens())
        told += size_of(sentences[-1])
    return " ".join(sentences)


def _size_of(turn: Turn) -> int:
    return size_of(turn.user) + size_of(turn.question.answer) + 4


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)
