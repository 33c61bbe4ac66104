"""Tasks that need no world: small talk, arithmetic, copying, parity."""

from __future__ import annotations

from random import Random

from tools.tiny import words
from tools.tiny.words import Split, held_out
from tools.tiny.world import Question

_TALK = (
    (("Hello!", "Hi!", "Hello there.", "Good morning!"), "Hello! How can I help you?"),
    (("Who are you?", "What are you?", "What is your name?"), "I am milepost-tiny, a very small language model."),
    (("Who made you?", "Where do you come from?"), "I was trained for Milepost on a small world of made-up stories."),
    (("What can you do?", "Can you help me?"), "Tell me a story about people and things, and ask me about it."),
    (("Thank you.", "Thanks!", "Thank you very much."), "You are welcome."),
    (("Goodbye.", "Bye!", "See you tomorrow."), "Goodbye! Come back soon."),
    (("How are you?", "How are you today?"), "I am well, thank you."),
    (("What colour is the sky?", "Which colour has the sky?"), "The sky is blue."),
    (("What colour is grass?", "Which colour has grass?"), "Grass is green."),
    (("What colour is snow?", "Which colour has snow?"), "Snow is white."),
    (("What does a cat say?", "Which sound does a cat make?"), "A cat says meow."),
    (("What does a dog say?", "Which sound does a dog make?"), "A dog says woof."),
    (("What do we do in the kitchen?", "What is a kitchen for?"), "We cook in the kitchen."),
    (("What do we do in the library?", "What is a library for?"), "We read books in the library."),
    (("What do we do in the garden?", "What is a garden for?"), "We grow plants in the garden."),
    (("What is the capital of France?", "Which city is the capital of France?"), "It is Paris."),
    (("How many days are in a week?", "How many days has a week?"), "There are 7."),
    (("How many legs does a dog have?", "How many legs has a cat?"), "There are 4."),
)


def talk(rng: Random) -> Question:
    asked, answer = rng.choice(_TALK)
    return Question("talk", rng.choice(asked), answer)


def arithmetic(rng: Random, split: Split) -> Question:
    """Sums and differences below 100, products of single digits; the split's own pairs of numbers."""
    while True:
        sign = rng.choice("+-*")
        a, b = (rng.randint(0, 9), rng.randint(0, 9)) if sign == "*" else (rng.randint(0, 99), rng.randint(0, 99))
        result = {"+": a + b, "-": a - b, "*": a * b}[sign]
        if 0 <= result < 100 and held_out(f"{a} {sign} {b}") == (split == "test"):
            return Question("arithmetic", f"What is {a} {sign} {b}?", f"It is {result}.")


def copying(rng: Random, split: Split) -> Question:
    """Words, names and codes to say again, in the same order."""
    makes = (words.code, words.name, words.number)
    pool = words.THINGS + words.COLOURS + words.PLACES
    length = rng.randint(1, 10)
    items = [
        words.made_up(rng.choice(makes), rng, split) if rng.random() < 0.4 else rng.choice(pool) for _ in range(length)
    ]
    return Question("copy", f"Say this again: {' '.join(items)}.", f"You said: {' '.join(items)}.")


def parity(rng: Random, split: Split) -> Question:
    """Whether a row of 1 to 8 bits holds an odd or an even number of ones."""
    length = rng.randint(1, 8)
    while True:
        bits = [rng.choice("01") for _ in range(length)]
        # Rows of less than 5 bits are too few to keep some apart.
        if length < 5 or held_out(" ".join(bits)) == (split == "test"):
            odd = bits.count("1") % 2
            asked = f"Is the number of ones in {' '.join(bits)} odd or even?"
            return Question("parity", asked, f"It is {'odd' if odd else 'even'}.")
