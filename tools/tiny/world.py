"""A small world that changes sentence by sentence, and questions about it. The world knows the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from tools.tiny import words
from tools.tiny.words import Split, made_up

MAX_CHANGES = 2
"""Times that a lamp is flipped, or a box filled or emptied a little, before a sentence states its state anew."""
MAX_COINS = 6
NOBODY = "nobody"
MAX_FACTS = 8
"""True at a time. One that has been asked for may be told anew, with another value."""


@dataclass(frozen=True)
class Known:
    """Something that is so: the words before the value, the value, the words after it."""

    before: str
    value: str
    after: str = "."


@dataclass(frozen=True)
class Question:
    """`kind`: the task's name in logs and reports."""

    kind: str
    text: str
    answer: str
    values: tuple[Known, ...] = ()
    """Of a recap: its parts, which together are the answer, and of which only values are learnt."""


@dataclass(frozen=True)
class Topic:
    """What can be told: `statement` with a place for the value, the question for it, and how a value is drawn."""

    kind: str
    statement: str
    question: str
    value: Callable[[Random], str]

    def answer(self, value: str) -> str:
        stated = self.statement.format(value)
        return f"I think {stated.replace('The', 'the', 1)}"


@dataclass(frozen=True)
class Fact:
    """What is said once and stays true until it has been asked for."""

    topic: Topic
    value: str

    @property
    def statement(self) -> str:
        return self.topic.statement.format(self.value)

    @property
    def question(self) -> Question:
        return Question(self.topic.kind, self.topic.question, self.topic.answer(self.value))

    @property
    def parts(self) -> tuple[str, str]:
        """The words before the value, and the value, which is said last."""
        return self.topic.statement.removesuffix(" {}."), self.value


class World:
    """Who is where, who holds what, which lamps are on, what is in the boxes, and facts told once.

    Each episode has its own: `rng` chooses who and what there is, and all that happens.
    """

    def __init__(self, rng: Random, split: Split) -> None:
        self.rng = rng
        self.people = rng.sample(words.PEOPLE, rng.randint(2, 4))
        self.places = rng.sample(words.PLACES, rng.randint(3, 8))
        self.things = rng.sample(words.THINGS, rng.randint(1, 3))
        self.lamps = rng.sample(words.COLOURS, 1)
        self.boxes = rng.sample(words.COLOURS, 1)
        self.place_of: dict[str, str] = {}
        self.holder_of: dict[str, str] = {}
        self.lamp_is_on: dict[str, bool] = {}
        self.coins_in: dict[str, int] = {}
        self.changes: dict[str, int] = {}
        self.untold = _some(rng, topics(rng, self.people, split))
        self.told: list[Fact] = []

    def happens(self) -> str:
        """One sentence; the world is then as it says."""
        deeds = (self._go, self._handle, self._lamp, self._box, self._tell, self._scenery)
        return self.rng.choices(deeds, (4, 4, 2, 2, 5, 7))[0]()

    def happens_for(self, kind: str) -> str:
        """One sentence that a question of the kind can be about: for recall a fact not told yet, if one is left."""
        deeds = {"place": self._go, "holder": self._handle, "lamp": self._lamp, "box": self._box}
        return deeds[kind]() if kind in deeds else self._tell(kind)

    def can_tell(self, kind: str) -> bool:
        """Whether a fact of the kind is left that has not been asked for."""
        return any(topic.kind == kind for topic in (*(fact.topic for fact in self.told), *self.untold))

    def question(self, kind: str) -> Question | None:
        """A question of the kind, None if nothing has been said that it could ask for."""
        asks: dict[str, Callable[[], Question | None]] = {
            "place": self._ask_place,
            "holder": self._ask_holder,
            "lamp": self._ask_lamp,
            "box": self._ask_box,
        }
        return asks[kind]() if kind in asks else self._ask_fact(kind)

    def question_for_the_end(self, kind: str) -> Question:
        """A question for a fact that has been told, to be asked later: the fact is not told anew."""
        fact = self.rng.choice([fact for fact in self.told if fact.topic.kind == kind])
        self.told.remove(fact)
        return fact.question

    # What happens.

    def _go(self) -> str:
        person, place = self.rng.choice(self.people), self.rng.choice(self.places)
        self.place_of[person] = place
        return f"{person} {self.rng.choice(('enters', 'visits', 'reaches'))} the {place}."

    def _handle(self) -> str:
        """A thing comes to someone, or its holder loses it. Whom it is with is always said last: a layer that ties what
        it reads to the few words before it can then keep this up."""
        thing, person = self.rng.choice(self.things), self.rng.choice(self.people)
        holder = self.holder_of.get(thing, NOBODY)
        if person == holder:
            self.holder_of[thing] = NOBODY
            return f"The {thing} is with {NOBODY}."
        self.holder_of[thing] = person
        if holder == NOBODY or self.rng.random() < 0.3:
            return f"The {thing} goes to {person}."
        return f"{holder} {self.rng.choice(('gives', 'hands', 'passes'))} the {thing} to {person}."

    def _lamp(self) -> str:
        lamp = self.rng.choice(self.lamps)
        if lamp not in self.lamp_is_on or self._due(f"{lamp} lamp"):
            self.lamp_is_on[lamp] = self.rng.random() < 0.5
            return f"The {lamp} lamp is {_on(self.lamp_is_on[lamp])}."
        self.lamp_is_on[lamp] = not self.lamp_is_on[lamp]
        return f"{self.rng.choice(self.people)} flips the {lamp} lamp."

    def _box(self) -> str:
        box = self.rng.choice(self.boxes)
        if box not in self.coins_in or self._due(f"{box} box"):
            self.coins_in[box] = self.rng.randint(0, MAX_COINS)
            return f"The {box} box has {_coins(self.coins_in[box])}."
        room, coins = MAX_COINS - self.coins_in[box], self.coins_in[box]
        put = self.rng.random() < 0.5 if room and coins else room > 0
        self.coins_in[box] += 1 if put else -1
        return f"The {box} box {'gets' if put else 'loses'} {_coins(1)}."

    def _due(self, name: str) -> bool:
        """Counts a change; True, and from 0 again, when the state is to be stated anew."""
        changes = self.changes.get(name, 0)
        restated = changes >= MAX_CHANGES or self.rng.random() < 0.3
        self.changes[name] = 0 if restated else changes + 1
        return restated

    def _tell(self, kind: str | None = None) -> str:
        """A fact, of the kind if one is given."""
        found = [topic for topic in self.untold if kind in (None, topic.kind)]
        if not found:
            return self._scenery()
        topic, value = found[-1], found[-1].value(self.rng)
        self.untold.remove(topic)
        self.told.append(Fact(topic, value))
        return self.told[-1].statement

    def _scenery(self) -> str:
        return words.scenery(self.rng)

    # What can be asked.

    def recap(self, size: int) -> Question | None:
        """At most `size` of the things that are so, in any order; None if nothing has been said."""
        known = [
            *(Known(f"{who} is in the", place) for who, place in self.place_of.items()),
            *(Known(f"The {thing} is with", who) for thing, who in self.holder_of.items()),
            *(Known(f"The {lamp} lamp is", _on(is_on)) for lamp, is_on in self.lamp_is_on.items()),
            *(Known(f"The {box} box has", *_coins(amount).split(" ")) for box, amount in self.coins_in.items()),
            *(Known(*fact.parts) for fact in self.told),
        ]
        known = [Known(part.before, part.value, _end(part.after)) for part in known]
        if not known:
            return None
        chosen = self.rng.sample(known, min(size, len(known)))
        answer = " ".join(f"{part.before} {part.value}{part.after}" for part in chosen)
        return Question("recap", "Say what is so.", answer, tuple(chosen))

    def _ask_place(self) -> Question | None:
        person = self._one_of(self.place_of)
        if person is None:
            return None
        return Question("place", f"Where is {person}?", f"I think {person} is in the {self.place_of[person]}.")

    def _ask_holder(self) -> Question | None:
        thing = self._one_of(self.holder_of)
        if thing is None:
            return None
        return Question("holder", f"Who has the {thing}?", f"I think the {thing} is with {self.holder_of[thing]}.")

    def _ask_lamp(self) -> Question | None:
        lamp = self._one_of(self.lamp_is_on)
        if lamp is None:
            return None
        answer = f"I think the {lamp} lamp is {_on(self.lamp_is_on[lamp])}."
        return Question("lamp", f"Is the {lamp} lamp on or off?", answer)

    def _ask_box(self) -> Question | None:
        box = self._one_of(self.coins_in)
        if box is None:
            return None
        answer = f"I think the {box} box has {_coins(self.coins_in[box])}."
        return Question("box", f"How many coins are in the {box} box?", answer)

    def _ask_fact(self, kind: str) -> Question | None:
        """A fact told and not yet asked for: an answer given earlier would be nearer than the statement. The oldest
        is chosen more often than others. Some of those asked for are told anew at some time."""
        found = [fact for fact in self.told if fact.topic.kind == kind]
        if not found:
            return None
        fact = found[0] if self.rng.random() < 0.5 else self.rng.choice(found)
        self.told.remove(fact)
        if self.rng.random() < 0.3:
            self.untold.insert(self.rng.randint(0, len(self.untold)), fact.topic)
        return fact.question

    def _one_of(self, names: Mapping[str, object]) -> str | None:
        return self.rng.choice(sorted(names)) if names else None


def topics(rng: Random, people: list[str], split: Split) -> list[Topic]:
    """All that could be told in one world. Codes are the split's own."""

    def one_of(values: tuple[str, ...]) -> Callable[[Random], str]:
        return lambda rng: rng.choice(values)

    def own(make: Callable[[Random], str]) -> Callable[[Random], str]:
        return lambda rng: made_up(make, rng, split)

    code = own(words.code)
    found = []
    for who in people:
        found += [
            Topic("number", f"{who} has number {{}}.", f"Which number has {who}?", words.number),
            Topic("name", f"{who} comes from {{}}.", f"Where does {who} come from?", one_of(words.TOWNS)),
            Topic("name", f"{who} is called {{}}.", f"What is {who} called?", one_of(words.NICKNAMES)),
            Topic("word", f"{who} likes {{}}.", f"What does {who} like to eat?", one_of(words.FOODS)),
            Topic("word", f"{who} loves {{}}.", f"Which colour does {who} love?", one_of(words.COLOURS)),
        ]
    for colour in rng.sample(words.COLOURS, len(people)):
        found.append(Topic("code", f"The {colour} code is {{}}.", f"What is the {colour} code?", code))
    return found


def _some(rng: Random, found: list[Topic]) -> list[Topic]:
    """At most MAX_FACTS of them, of each kind one at least, in random order."""
    rng.shuffle(found)
    firsts = list({topic.kind: topic for topic in found}.values())
    rest = [topic for topic in found if topic not in firsts]
    chosen = firsts + rest[: rng.randint(2, MAX_FACTS - len(firsts))]
    rng.shuffle(chosen)
    return chosen


def _end(after: str) -> str:
    return after if after == "." else f" {after}."


def _on(is_on: bool) -> str:
    return "on" if is_on else "off"


def _coins(amount: int) -> str:
    return "1 coin" if amount == 1 else f"{amount} coins"
