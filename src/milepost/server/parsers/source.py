"""Text that arrives in pieces, for readers that are written as if it were all there.

A reader is a generator: it yields where it needs more text. What it finds depends on characters alone, never on where
the pieces were cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]


class Source:
    """The text from a kept place on. `ended`: no more comes."""

    def __init__(self) -> None:
        self.ended = False
        self._text = ""
        self._place = 0
        self._kept = 0
        self._num_dropped = 0

    def feed(self, piece: str) -> None:
        self._text = self._text[self._kept :] + piece
        self._place -= self._kept
        self._num_dropped += self._kept
        self._kept = 0

    def keep(self) -> None:
        """What was read so far is settled: `rewind` comes back to here."""
        self._kept = self._place

    def rewind(self) -> None:
        self._place = self._kept

    @property
    def num_kept(self) -> int:
        """Characters before the kept place, from the start on."""
        return self._num_dropped + self._kept

    @property
    def next_char(self) -> str:
        """After `more` said that there is one."""
        return self._text[self._place]

    @property
    def waiting(self) -> str:
        """What has come and is not yet read."""
        return self._text[self._place :]

    def skip(self, num_chars: int) -> None:
        self._place += num_chars

    def more(self) -> Reading[bool]:
        """Whether there is another character."""
        while self._place == len(self._text) and not self.ended:
            yield
        return self._place < len(self._text)

    def skip_space(self) -> Reading[None]:
        while (yield from self.more()):
            waiting = self.waiting
            visible = waiting.lstrip()
            self.skip(len(waiting) - len(visible))
            if visible:
                return

    def take(self, *words: str) -> Reading[str]:
        """Reads whichever of `words` comes next, the longest that does; "" and nothing read for none."""
        while not self.ended and any(self._may_become(word) for word in words):
            yield
        found = max((word for word in words if self._text.startswith(word, self._place)), key=len, default="")
        self.skip(len(found))
        return found

    def until(self, words: Sequence[str], write: Callable[[str], None]) -> Reading[str]:
        """Gives `write` the text before the first of `words`, as it comes, and reads that word; "" at the end.

        `write` gets only what is read: it may `keep`.
        """
        while True:
            found = _any_of(tuple(words)).search(self._text, self._place) if words else None
            end = found.start() if found else len(self._text) - (0 if self.ended else self._num_open(words))
            text = self._text[self._place : end]
            self._place = end
            if text:
                write(text)
            if found:
                self.skip(len(found.group()))
                return found.group()
            if self.ended:
                return ""
            yield

    def _may_become(self, word: str) -> bool:
        return len(self._text) - self._place < len(word) and word.startswith(self._text[self._place :])

    def _num_open(self, words: Sequence[str]) -> int:
        """How many of the last characters may be the start of one of `words`."""
        longest = max(map(len, words), default=1) - 1
        tail = self._text[max(self._place, len(self._text) - longest) :] if longest else ""
        return next((len(tail) - i for i in range(len(tail)) if any(w.startswith(tail[i:]) for w in words)), 0)


@lru_cache(maxsize=256)
def _any_of(words: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)))
