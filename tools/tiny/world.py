"""A small world that changes sentence by sentence, and questions about it. The world knows the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from tools.tiny import words
from tools.tiny.words import Split, made_up

MAX_CHANGES = 6
"""Times that a lamp is flipped, or a box filled or emptied a little, before a sentence states its state anew."""
MAX_COINS = 9


@dataclass(frozen=True)
class Question:
    """`kind`: the task's name in logs and reports."""

    kind: str
    text: str
    answer: str


@dataclass(frozen=True)
class Fact:
    """What is said once and stays true."""

    statement: str
    question: Question


class World:
    """Who is where, who holds what, which lamps are on, what is in the boxes, and facts told once.

    Each episode has its own: `rng` chooses who and what there is, and all that happens.
    """

    def __init__(self, rng: Random, split: Split) -> None:
        self.rng = rng
        self.people = rng.sample(words.PEOPLE, rng.randint(3, 8))
        self.places = rng.sample(words.PLACES, rng.randint(3, 8))
        self.things = rng.sample(words.THINGS, rng.randint(3, 8))
        self.lamps = rng.sample(words.COLOURS, rng.randint(1, 3))
        self.boxes = rng.sample(words.COLOURS, rng.randint(1, 3))
        self.place_of: dict[str, str] = {}
        self.holder_of: dict[str, str] = {}
        self.thing_at: dict[str, str] = {}
        self.lamp_is_on: dict[str, bool] = {}
        self.coins_in: dict[str, int] = {}
        self.changes: dict[str, int] = {}
        self.untold = facts(rng, self.people, split)
        rng.shuffle(self.untold)
        self.told: list[Fact] = []

    def happens(self) -> str:
        """One sentence; the world is then as it says."""
        deeds = (self._go, self._handle, self._lamp, self._box, self._tell, self._scenery)
        return self.rng.choices(deeds, (5, 6, 3, 3, 8, 3))[0]()

    def happens_for(self, kind: str) -> str:
        """One sentence that a question of the kind can be about: for recall a fact not told yet, if one is left."""
        deeds = {"place": self._go, "holder": self._handle, "thing": self._handle, "lamp": self._lamp, "box": self._box}
        return deeds[kind]() if kind in deeds else self._tell(kind)

    def can_tell(self, kind: str) -> bool:
        """Whether a fact of the kind is left that has not been asked for."""
        return any(fact.question.kind == kind for fact in (*self.told, *self.untold))

    def question(self, kind: str) -> Question | None:
        """A question of the kind, None if nothing has been said that it could ask for."""
        asks: dict[str, Callable[[], Question | None]] = {
            "place": self._ask_place,
            "holder": self._ask_holder,
            "thing": self._ask_thing,
            "lamp": self._ask_lamp,
            "box": self._ask_box,
        }
        return asks[kind]() if kind in asks else self._ask_fact(kind)

    # What happens.

    def _go(self) -> str:
        person, place = self.rng.choice(self.people), self.rng.choice(self.places)
        self.place_of[person] = place
        return f"{person} {self.rng.choice(('goes to', 'walks to', 'is now in'))} the {place}."

    def _handle(self) -> str:
        """Someone takes a thing, or its holder gives it to another or leaves it behind."""
        thing, person = self.rng.choice(self.things), self.rng.choice(self.people)
        holder = self.holder_of.get(thing)
        if holder is None:
            self.thing_at.pop(thing, None)
            self.holder_of[thing] = person
            return f"{person} {self.rng.choice(('takes', 'picks up', 'gets'))} the {thing}."
        if holder in self.place_of and self.rng.random() < 0.4:
            del self.holder_of[thing]
            self.thing_at[thing] = self.place_of[holder]
            return f"{holder} {self.rng.choice(('drops', 'leaves', 'puts down'))} the {thing}."
        if holder == person:
            return self._go()
        self.holder_of[thing] = person
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
        amount = self.rng.randint(1, min(3, room if put else coins))
        self.coins_in[box] += amount if put else -amount
        act = "puts {} in" if put else "takes {} from"
        return f"{self.rng.choice(self.people)} {act.format(_coins(amount))} the {box} box."

    def _due(self, name: str) -> bool:
        """Counts a change; True, and from 0 again, when the state is to be stated anew."""
        changes = self.changes.get(name, 0)
        restated = changes >= MAX_CHANGES or self.rng.random() < 0.2
        self.changes[name] = 0 if restated else changes + 1
        return restated

    def _tell(self, kind: str | None = None) -> str:
        """A fact, of the kind if one is given."""
        found = [fact for fact in self.untold if kind in (None, fact.question.kind)]
        if not found:
            return self._scenery()
        self.told.append(found[-1])
        self.untold.remove(found[-1])
        return found[-1].statement

    def _scenery(self) -> str:
        return words.scenery(self.rng)

    # What can be asked.

    def _ask_place(self) -> Question | None:
        person = self._one_of(self.place_of)
        return None if person is None else Question("place", f"Where is {person}?", f"In the {self.place_of[person]}.")

    def _ask_holder(self) -> Question | None:
        thing = self._one_of({**self.holder_of, **self.thing_at})
        return (
            None
            if thing is None
            else Question("holder", f"Who has the {thing}?", f"It is {self.holder_of.get(thing, 'nobody')}.")
        )

    def _ask_thing(self) -> Question | None:
        carried = {thing: self.place_of[who] for thing, who in self.holder_of.items() if who in self.place_of}
        places = {**self.thing_at, **carried}
        thing = self._one_of(places)
        return None if thing is None else Question("thing", f"Where is the {thing}?", f"In the {places[thing]}.")

    def _ask_lamp(self) -> Question | None:
        lamp = self._one_of(self.lamp_is_on)
        return (
            None
            if lamp is None
            else Question("lamp", f"Is the {lamp} lamp on or off?", f"It is {_on(self.lamp_is_on[lamp])}.")
        )

    def _ask_box(self) -> Question | None:
        box = self._one_of(self.coins_in)
        return (
            None
            if box is None
            else Question("box", f"How many coins are in the {box} box?", f"There are {self.coins_in[box]}.")
        )

    def _ask_fact(self, kind: str) -> Question | None:
        """A fact told and not yet asked for: an answer given earlier would be nearer than the statement."""
        found = [fact for fact in self.told if fact.question.kind == kind]
        if not found:
            return None
        fact = self.rng.choice(found)
        self.told.remove(fact)
        return fact.question

    def _one_of(self, names: Mapping[str, object]) -> str | None:
        return self.rng.choice(sorted(names)) if names else None


def facts(rng: Random, people: list[str], split: Split) -> list[Fact]:
    """All facts of one world, each with its question. Codes, numbers and invented names are the split's own."""

    def fact(kind: str, statement: str, question: str, answer: str) -> Fact:
        return Fact(statement.format(answer), Question(kind, question, f"It is {answer}."))

    found = []
    for who in people:
        pet = rng.choice(words.PETS)
        number, town, name = (made_up(make, rng, split) for make in (words.number, words.name, words.name))
        found += [
            fact("number", f"{who}'s number is {{}}.", f"What is {who}'s number?", number),
            fact("name", f"{who} comes from {{}}.", f"Where does {who} come from?", town),
            fact("name", f"{who}'s {pet} is called {{}}.", f"What is {who}'s {pet} called?", name),
            fact("word", f"{who} likes to eat {{}}.", f"What does {who} like to eat?", rng.choice(words.FOODS)),
            fact("word", f"{who} loves the colour {{}}.", f"What colour does {who} love?", rng.choice(words.COLOURS)),
        ]
    for colour in words.COLOURS:
        code = made_up(words.code, rng, split)
        found.append(
            fact("code", f"The code of the {colour} door is {{}}.", f"What is the {colour} door's code?", code)
        )
    return found


def _on(is_on: bool) -> str:
    return "on" if is_on else "off"


def _coins(amount: int) -> str:
    return "1 coin" if amount == 1 else f"{amount} coins"
