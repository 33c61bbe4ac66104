"""What a client of a cache with memory in plenty can foretell: it remembers all that it has sent and got."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import takewhile

BLOCK, CHUNK = 16, 64


@dataclass(frozen=True)
class Found:
    """The report to expect: tokens matched, whole blocks, or resumed, at most those in `common`; why not more, and why
    if it was resumed behind the last grid point."""

    matched: int
    common: int
    why: tuple[str | None, int | None]
    why_behind: tuple[str | None, int | None]


@dataclass
class Texts:
    """Texts as whole blocks, by what they go on with, and what they end with that is no whole block."""

    children: dict[tuple[int, ...], Texts] = field(default_factory=dict)
    tails: set[tuple[int, ...]] = field(default_factory=set)

    def add(self, text: list[int]) -> Texts:
        node = self
        for block in _blocks(text):
            node = node.children.setdefault(block, Texts())
        node.tails.add(tuple(text[len(text) // BLOCK * BLOCK :]))
        return self

    def common(self, prompt: list[int], tails: bool = False) -> int:
        """Tokens that `prompt` has in common with the whole blocks of one of them; with `tails`, with all of one."""
        node, depth = self, 0
        while (block := tuple(prompt[depth : depth + BLOCK])) in node.children:
            node, depth = node.children[block], depth + BLOCK
        others = [*node.children, *(node.tails if tails else ())]
        return depth + max((_common(block, other) for other in others), default=0)

    def go_on_after(self, prompt: list[int]) -> bool:
        """Whether one of them begins with `prompt`, whole blocks, and is longer."""
        node: Texts | None = self
        for block in _blocks(prompt):
            node = None if node is None else node.children.get(block)
        return node is not None and bool(node.children)


class KnownTexts:
    """The texts whose rows were computed, by scope; those of requests under way or left may be known in part.

    Without KV a text is known up to its last state, and further, by blocks, while it runs: `_ever`, what requests that
    run beside others may find.
    """

    def __init__(self, unit: int, has_kv: bool) -> None:
        self._unit, self._grain = unit, BLOCK if has_kv else CHUNK
        self._known: dict[str, Texts] = defaultdict(Texts)
        self._ever: dict[str, Texts] = defaultdict(Texts)
        self._under_way: dict[str, dict[object, Callable[[], list[int]]]] = defaultdict(dict)
        self._beside: set[object] = set()
        self.num_texts = 0

    def begin(self, scope: str, talk: object, text: Callable[[], list[int]]) -> None:
        """`talk` has begun, and its text so far is `text()`."""
        others = self._under_way[scope]
        others[talk] = text
        if len(others) > 1:
            self._beside.update(others)

    def end(self, scope: str, talk: object, texts: Iterable[list[int]]) -> None:
        """All rows of `texts` were computed in `talk`."""
        del self._under_way[scope][talk]
        self._beside.discard(talk)
        for text in texts:
            self._known[scope].add(text[: len(text) // self._grain * self._grain])
            self._ever[scope].add(text)
            self.num_texts += 1

    def surely(self, scope: str, prompt: list[int]) -> Found:
        """What is told of `prompt` if nothing is known but what was answered to its end."""
        return self._found(prompt, [self._known[scope]], [self._ever[scope]])

    def perhaps(self, scope: str, prompt: list[int], talk: object) -> Found:
        """The same, if all that may be known to `talk` by now is."""
        if talk not in self._beside:
            return self.surely(scope, prompt)
        others = [text() for other, text in self._under_way[scope].items() if other is not talk]
        ever = [self._ever[scope], *(Texts().add(text) for text in others)]
        return self._found(prompt, ever, ever)

    def _found(self, prompt: list[int], known: list[Texts], ever: list[Texts]) -> Found:
        reach = len(prompt) - 1
        common = max(texts.common(prompt) for texts in known)
        matched = min(common, reach) // BLOCK * BLOCK
        why: tuple[str | None, int | None] = (None, None)
        if matched != reach // BLOCK * BLOCK:
            if common and any(texts.go_on_after(prompt[:matched]) for texts in known):
                why = "diverged", common
            elif not matched:
                why = "no prefix", 0
        longest = min(reach, max(texts.common(prompt, tails=True) for texts in ever))
        return Found(matched, longest, ("too short", 0) if reach < self._unit else why, why)


def _blocks(text: list[int]) -> list[tuple[int, ...]]:
    return [tuple(text[start : start + BLOCK]) for start in range(0, len(text) - BLOCK + 1, BLOCK)]


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
