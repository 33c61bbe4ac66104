"""Finds stop strings in a text that arrives in pieces, wherever the pieces are cut."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Watches a text; the first stop string to be complete ends it, the longest of those that end at one character.

    Since only characters count, the same text ends at the same place however it is cut into pieces. Text that may be
    the start of a stop string is held back (unless `include_in_output`: then it is shown in any case). Each stop string
    is followed by the failure function of Knuth, Morris and Pratt (1977): the cost is linear in the text.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        self.found: str | None = None
        self._include_in_output = include_in_output
        self._stops = [(stop, _failure(stop)) for stop in dict.fromkeys(stops)]
        self._first_characters = frozenset(stop[0] for stop, _ in self._stops)
        self._matched = [0] * len(self._stops)  # of each stop string, how much the text so far ends with
        self._held = ""

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """Adds `text`; returns what can be shown now. `may_stop` false: stop strings that end in it do not count.

        Once a stop string is `found`, nothing more is shown.
        """
        if self.found is not None:
            return ""
        if not any(self._matched) and self._first_characters.isdisjoint(text):
            return text
        whole, start = self._held + text, len(self._held)
        for end, character in enumerate(text, start + 1):
            stop = self._advance(character)
            if stop and may_stop:
                self.found, self._held = stop, ""
                return whole[: end if self._include_in_output else end - len(stop)]
        num_held = 0 if self._include_in_output else max(self._matched)
        self._held = whole[len(whole) - num_held :]
        return whole[: len(whole) - num_held]

    def flush(self) -> str:
        """What was held back: the text ends here."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str:
        """Takes one character; returns the longest stop string that ends with it, or an empty text."""
        ended = ""
        for i, (stop, failure) in enumerate(self._stops):
            matched = self._matched[i]
            while matched and stop[matched] != character:
                matched = failure[matched - 1]
            matched += stop[matched] == character
            if matched == len(stop):
                matched = failure[-1]
                ended = max(ended, stop, key=len)
            self._matched[i] = matched
        return ended


def _failure(stop: str) -> list[int]:
    """For each length n + 1: how long the longest proper prefix of `stop` is that stop[: n + 1] also ends with."""
    failure = [0] * len(stop)
    matched = 0
    for i in range(1, len(stop)):
        while matched and stop[matched] != stop[i]:
            matched = failure[matched - 1]
        matched += stop[matched] == stop[i]
        failure[i] = matched
    return failure
