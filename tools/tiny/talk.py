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
    """Sums and differences of 0 to 12; the split's own pairs of numbers."""
    while True:
        sign, a, b = rng.choice("+-"), rng.randint(0, 12), rng.randint(0, 12)
        result = a + b if sign == "+" else a - b
        if result >= 0 and held_out(f"{a} {sign} {b}") == (split == "test"):
            return Question("arithmetic", f"What is {a} {sign} {b}?", f"It is {result}.")


def copying(rng: Random, split: Split) -> Question:
    """Words and codes to say again, in the same order."""
    pool = words.THINGS + words.COLOURS + words.PLACES + words.TOWNS
    length = rng.randint(1, 4)
    items = [words.made_up(words.code, rng, split) if rng.random() < 0.3 else rng.choice(pool) for _ in range(length)]
    return Question("copy", f"Say this again: {' '.join(items)}.", f"You said: {' '.join(items)}.")


def parity(rng: Random, split: Split) -> Question:
    """Whether a row of 1 to 6 bits holds an odd or an even number of ones."""
    length = rng.randint(1, 6)
    while True:
        bits = [rng.choice("01") for _ in range(length)]
        # Rows of less than 5 bits are too few to keep some apart.
        if length < 5 or held_out(" ".join(bits)) == (split == "test"):
            odd = bits.count("1") % 2
            asked = f"Is the sum of {' '.join(bits)} odd or even?"
            return Question("parity", asked, f"It is {'odd' if odd else 'even'}.")
