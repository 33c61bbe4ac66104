"""Content and reasoning, without the tags between them and the space around these."""

from __future__ import annotations

from collections.abc import Callable

from milepost.server.parsers.events import Content, Event, Reasoning


class Writer:
    """Text of the one kind or the other. Space at the end of a text waits until it is known what comes next."""

    def __init__(self, emit: Callable[[Event], None], thinks: bool) -> None:
        self._emit = emit
        self._kind: type[Content] | type[Reasoning] = Reasoning if thinks else Content
        self._held = ""
        self._after_tag = thinks
        self.fresh = True

    @property
    def thinks(self) -> bool:
        return self._kind is Reasoning

    def text(self, piece: str) -> None:
        """`fresh`: nothing visible since the start, or since the last tag."""
        text = self._held + piece
        if self._after_tag:
            text = text.lstrip()
        visible = text.rstrip()
        self._held = text[len(visible) :]
        if visible:
            self._after_tag = self.fresh = False
            self._emit(self._kind(visible))

    def tag(self, thinks: bool | None = None) -> None:
        """A tag stood here: the space around it is dropped. `thinks`: of which kind the text is from now on."""
        self._held, self._after_tag, self.fresh = "", True, True
        if thinks is not None:
            self._kind = Reasoning if thinks else Content

    def end(self) -> None:
        if self._held and not self.thinks:
            self._emit(self._kind(self._held))
        self._held = ""
