"""The words of the small world, and values made up for it. Some codes are never trained on."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Literal
from zlib import crc32

Split = Literal["train", "test"]

PEOPLE = (
    *("Ada", "Ali", "Ana", "Ben", "Bob", "Carl", "Dora", "Emma", "Finn", "Hana", "Ivan", "Jack"),
    *("Kim", "Lena", "Leo", "Lily", "Max", "Mia", "Nina", "Omar", "Paul", "Rosa", "Sam", "Tom"),
)
PLACES = (
    *("attic", "barn", "bathroom", "bedroom", "cellar", "forest", "garage", "garden", "hall", "kitchen", "library"),
    *("market", "office", "park", "school", "station"),
)
THINGS = (
    *("apple", "bag", "ball", "book", "bottle", "camera", "coat", "cup", "flute", "hammer", "hat", "key", "knife"),
    *("letter", "map", "mirror", "pen", "plate", "ring", "rope", "shoe", "spoon", "ticket", "umbrella"),
)
COLOURS = ("black", "blue", "brown", "green", "grey", "orange", "pink", "purple", "red", "white", "yellow", "golden")
FOODS = ("bread", "cake", "cheese", "fish", "honey", "pasta", "pears", "plums", "rice", "salad", "soup", "tea")
TOWNS = (
    *("Athens", "Berlin", "Bern", "Bonn", "Cairo", "Delhi", "Dublin", "Geneva", "Hanoi", "Havana", "Kyoto", "Lagos"),
    *("Lima", "Lisbon", "Madrid", "Milan", "Oslo", "Paris", "Porto", "Prague", "Riga", "Rome", "Tokyo", "Vienna"),
)
NICKNAMES = (
    *("Amber", "Bella", "Biscuit", "Bruno", "Coco", "Daisy", "Felix", "Fluffy", "Ginger", "Hugo", "Jasper", "Luna"),
    *("Milo", "Molly", "Oscar", "Pepper", "Poppy", "Rex", "Rusty", "Shadow", "Simba", "Tiger", "Toby", "Ziggy"),
)

_ADJECTIVES = ("big", "cold", "dark", "little", "loud", "old", "quiet", "small", "soft", "tall", "warm", "young")
_ACTORS = ("boat", "child", "clock", "cloud", "door", "fox", "leaf", "moon", "river", "sun", "tree", "wind", "wolf")
_DEEDS = ("falls", "hides", "moves", "rests", "runs", "shines", "sings", "sleeps", "turns", "waits", "wakes")
_WHEN = ("again", "all day", "at night", "in the morning", "now", "slowly", "today", "together")

_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"


def held_out(value: str) -> bool:
    """Whether this made-up value is kept for tests: one in eight is, the same in every run."""
    return crc32(value.encode()) % 8 == 0


def made_up(make: Callable[[Random], str], rng: Random, split: Split) -> str:
    """The first value that `make` draws that belongs to the split: tests get only values never trained on."""
    while True:
        value = make(rng)
        if held_out(value) == (split == "test"):
            return value


def code(rng: Random) -> str:
    """A letter and two digits."""
    return f"{rng.choice(_LETTERS)}{rng.randint(0, 99):02}"


def number(rng: Random) -> str:
    """Two digits, the first not 0."""
    return str(rng.randint(10, 99))


def scenery(rng: Random) -> str:
    """A sentence that nobody will be asked about."""
    sentence = f"The {rng.choice(_ADJECTIVES)} {rng.choice(_ACTORS)} {rng.choice(_DEEDS)}"
    return f"{sentence} {rng.choice(_WHEN)}." if rng.random() < 0.5 else f"{sentence}."
