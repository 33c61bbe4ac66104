"""The world's answers are right, and the tests' questions are not the training's."""

import re
from random import Random

import pytest
from tools.tiny import words
from tools.tiny.tasks import ASKED as TASKS
from tools.tiny.tasks import KINDS, RECALL, examination, size_of, training_conversation
from tools.tiny.world import MAX_CHANGES, MAX_COINS, World


class Reader:
    """Follows a story from its sentences alone, another way than the world that told it."""

    def __init__(self) -> None:
        self.place: dict[str, str] = {}
        self.holder: dict[str, str] = {}
        self.lamp: dict[str, str] = {}
        self.coins: dict[str, int] = {}

    def read(self, sentence: str) -> None:
        if found := re.fullmatch(r"(\w+) (?:enters|visits|reaches) the (\w+)\.", sentence):
            self.place[found[1]] = found[2]
        elif found := re.fullmatch(r"(\w+) (?:gives|hands|passes) the (\w+) to (\w+)\.", sentence):
            assert self.holder[found[2]] == found[1]
            self.holder[found[2]] = found[3]
        elif found := re.fullmatch(r"The (\w+) goes to (\w+)\.", sentence):
            self.holder[found[1]] = found[2]
        elif found := re.fullmatch(r"The (\w+) is with nobody\.", sentence):
            self.holder[found[1]] = "nobody"
        elif found := re.fullmatch(r"The (\w+) lamp is (on|off)\.", sentence):
            self.lamp[found[1]] = found[2]
        elif found := re.fullmatch(r"\w+ flips the (\w+) lamp\.", sentence):
            self.lamp[found[1]] = "off" if self.lamp[found[1]] == "on" else "on"
        elif found := re.fullmatch(r"The (\w+) box has (\d) coins?\.", sentence):
            self.coins[found[1]] = int(found[2])
        elif found := re.fullmatch(r"The (\w+) box (gets|loses) (\d) coins?\.", sentence):
            self.coins[found[1]] += int(found[3]) if found[2] == "gets" else -int(found[3])

    def answer(self, kind: str, name: str) -> str:
        if kind == "lamp":
            return f"I think the {name} lamp is {self.lamp[name]}."
        if kind == "box":
            return f"I think the {name} box has {self.coins[name]} coin{'' if self.coins[name] == 1 else 's'}."
        if kind == "place":
            return f"I think {name} is in the {self.place[name]}."
        return f"I think the {name} is with {self.holder[name]}."


def value_in(answer: str) -> str:
    """What an answer to a question of recall is about: its last word."""
    return answer.removesuffix(".").rsplit(" ", 1)[1]


ASKED = {
    "place": r"Where is (\w+)\?",
    "holder": r"Who has the (\w+)\?",
    "lamp": r"Is the (\w+) lamp on or off\?",
    "box": r"How many coins are in the (\w+) box\?",
}


@pytest.mark.parametrize("kind", ASKED)
def test_states_are_what_the_story_says(kind: str) -> None:
    num_asked = 0
    for seed in range(20):
        world, reader = World(Random(seed), "train"), Reader()
        for _ in range(60):
            reader.read(world.happens())
            question = world.question(kind)
            if question is None:
                continue
            found = re.fullmatch(ASKED[kind], question.text)
            assert found is not None
            assert question.answer == reader.answer(kind, found[1])
            num_asked += 1
    assert num_asked > 500


def test_a_recap_says_what_is_so() -> None:
    """Its clauses, read as a story, are what the story said; a fact is told in the very words of its statement."""
    num_clauses = 0
    for seed in range(20):
        world, reader, story = World(Random(seed), "train"), Reader(), ""
        for _ in range(60):
            story += world.happens()
            reader.read(story[story[:-1].rfind(".") + 1 :])
            recap = world.recap(5)
            if recap is None:
                continue
            assert len(recap.values) <= 5
            assert recap.answer == " ".join(f"{part.before} {part.value}{part.after}" for part in recap.values)
            for part in recap.values:
                clause = f"{part.before} {part.value}{part.after}"
                if found := re.fullmatch(r"(\w+) is in the", part.before):
                    assert reader.place[found[1]] == part.value
                elif found := re.fullmatch(r"The (\w+) is with", part.before):
                    assert reader.holder[found[1]] == part.value
                elif found := re.fullmatch(r"The (\w+) lamp is", part.before):
                    assert reader.lamp[found[1]] == part.value
                elif found := re.fullmatch(r"The (\w+) box has", part.before):
                    assert reader.coins[found[1]] == int(part.value)
                else:
                    assert clause in story
                num_clauses += 1
    assert num_clauses > 3000


def test_changes_between_two_statements_are_few_and_coins_stay_single_digits() -> None:
    for seed in range(20):
        world, since = World(Random(seed), "train"), dict[str, int]()
        for _ in range(300):
            sentence = world.happens()
            for what in (f"{lamp} lamp" for lamp in world.lamps):
                if what in sentence:
                    since[what] = since.get(what, 0) + 1 if "flips" in sentence else 0
        assert max(since.values(), default=0) <= MAX_CHANGES
        assert all(0 <= coins <= MAX_COINS for coins in world.coins_in.values())


@pytest.mark.parametrize("kind", TASKS)
def test_examinations(kind: str) -> None:
    for seed in range(12):
        length = 100 + 150 * seed
        conversation = examination(kind, seed, length)
        assert conversation == examination(kind, seed, length)
        last = conversation.turns[-1]
        assert last.question.kind == kind
        assert last.user.endswith(last.question.text)
        size = sum(size_of(turn.user) + size_of(turn.question.answer) + 4 for turn in conversation.turns)
        assert length - 60 < size < length + 120
        story = " ".join(turn.user for turn in conversation.turns).removesuffix(last.question.text)
        if kind in RECALL:
            value = value_in(last.question.answer)
            where = story.find(f" {value}.")
            assert where > -1
            if kind == "code":
                assert words.held_out(value)
                assert story.count(f" {value}.") == 1


def test_a_fact_is_said_before_it_is_asked_for_and_anew_before_it_is_asked_for_again() -> None:
    num_facts = 0
    for seed in range(120):
        unasked = ""
        for turn in training_conversation(seed, 512).turns:
            unasked += turn.user
            if turn.question.kind == "code":
                value = value_in(turn.question.answer)
                assert unasked.count(f" {value}.") == 1
                assert not words.held_out(value)
                unasked = unasked.replace(f" {value}.", "")
                num_facts += 1
    assert num_facts > 30


@pytest.mark.parametrize("kind", RECALL)
def test_a_world_runs_out_of_facts(kind: str) -> None:
    world, num_asked = World(Random(0), "train"), 0
    while world.can_tell(kind):
        statement = world.happens_for(kind)
        question = world.question(kind)
        assert question is not None
        assert statement.endswith(f" {value_in(question.answer)}.")
        num_asked += 1
    assert num_asked >= 1
    assert world.question(kind) is None
    assert size_of(world.happens_for(kind)) > 0


@pytest.mark.parametrize("kind", RECALL)
def test_what_is_asked_for_at_the_end_is_not_told_anew(kind: str) -> None:
    for seed in range(20):
        world = World(Random(seed), "test")
        start = world.happens_for(kind).removesuffix(".").rsplit(" ", 1)[0]
        world.question_for_the_end(kind)
        for _ in range(300):
            assert not world.happens().startswith(start + " ")
            world.question(kind)


def test_a_conversation_outlives_its_facts() -> None:
    conversation = training_conversation(0, 40_000)
    assert sum(size_of(turn.user) for turn in conversation.turns) > 20_000


def test_all_kinds_are_trained_on() -> None:
    conversations = (training_conversation(seed, 512) for seed in range(150))
    kinds = [turn.question.kind for conversation in conversations for turn in conversation.turns]
    assert all(kinds.count(kind) > 8 for kind in KINDS)
