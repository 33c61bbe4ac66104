"""What `milepost explain` tells of two prompts, as text or as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from milepost.cli.answer import for_terminal

if TYPE_CHECKING:
    from milepost.cli.comparison import Comparison, Policy
    from milepost.cli.prompt_files import FilePrompt
    from milepost.engine.tokenizer import Tokenizer

TOKENS_AROUND = 8
"""Shown of each prompt, before and after the parting."""


@dataclass(frozen=True)
class Explanation:
    """All that is told of two prompts. `message`: the one of B in which they part, from 0 on (see `message_at`)."""

    model: str
    policy: Policy
    tokenizer: Tokenizer
    a: FilePrompt
    b: FilePrompt
    found: Comparison
    message: int | None
    causes: list[str]

    def as_json(self) -> dict[str, Any]:
        found = self.found
        return {
            "model": self.model,
            "grid_tokens": 64 if self.policy.has_states else None,
            "retention_interval": self._interval() if self.policy.has_states else None,
            "a": self._prompt(self.a),
            "b": self._prompt(self.b),
            "position": found.position,
            "message": self.message,
            "matched_tokens": found.num_matched,
            "resumed_tokens": found.num_resumed,
            "recomputed_tokens": found.num_for_want_of_a_state,
            "reason": found.reason,
            "reason_position": found.reason_position,
            "causes": self.causes,
        }

    def show(self, console: Console) -> None:
        found = self.found
        _line(console, "model", f"{self.model}: {self._places()}")
        for name, prompt in (("A", self.a), ("B", self.b)):
            messages = "" if prompt.messages is None else f", {len(prompt.messages)} messages"
            _line(console, name, f"{len(prompt.ids):,} tokens{messages} ({prompt.name})")
        _line(console, "parting", self._parting())
        if self.a.ids != self.b.ids:
            for name, prompt in (("A", self.a), ("B", self.b)):
                before, after = self._around(prompt)
                _line(console, "", f"{name}: {quoted(before)} then {quoted(after) if after else 'its end'}")
        _line(console, "resumed", f"{found.num_resumed:,} of {found.num_tokens:,} tokens of B")
        for label, text in zip(("computed", *[""] * 3), self._computed(), strict=False):
            _line(console, label, text)
        unknown = ["none of the usual ones"] if found.position < len(self.a.ids) and found.num_new else []
        for cause in self.causes or unknown:
            _line(console, "cause", cause)

    def _places(self) -> str:
        if not self.policy.has_states:
            return "attention only, prompts are resumed at each 16 tokens"
        kept = {"dense": "all of them", 0: "those at the ends of prompts"}.get(
            self._interval(), f"one each {self._interval()} tokens"
        )
        return f"recurrent states on a grid of 64 tokens, of which {kept} are kept"

    def _parting(self) -> str:
        found = self.found
        if self.a.ids == self.b.ids:
            return "none: the prompts are the same; the last token is always computed"
        if found.position == len(self.a.ids):
            return f"none: B goes on where A ends, at token {found.position:,}"
        where = f"at token {found.position:,}"
        if self.message is None or self.b.messages is None:
            return where
        if self.message == len(self.b.messages):
            return f"{where}, behind the last message, where the answer is opened"
        role = self.b.messages[self.message].get("role")
        return f"{where}, in message {self.message + 1} of {len(self.b.messages)} ({role})"

    def _computed(self) -> list[str]:
        """How many in all, then why."""
        found = self.found
        part, gap = found.num_in_part_of_a_block, found.num_for_want_of_a_state
        if not self.policy.has_kv:
            part, gap = 0, part + gap
        lines = [f"{found.num_tokens - found.num_resumed:,} tokens"]
        if found.num_new:
            lines.append(f"  {found.num_new:,} that A does not have there")
        if part:
            lines.append(
                f"  {part:,} known ones: only whole blocks of 16 are shared, and the last token is always computed"
            )
        if gap:
            place = f"the deepest is at token {found.num_resumed:,}" if found.num_resumed else "none is kept so early"
            lines.append(f"  {gap:,} known ones: of the recurrent states on the way {place}")
        return lines

    def _around(self, prompt: FilePrompt) -> tuple[str, str]:
        place = self.found.position
        parts = prompt.ids[max(0, place - TOKENS_AROUND) : place], prompt.ids[place : place + TOKENS_AROUND]
        before, after = (self.tokenizer.decode(part, skip_special_tokens=False) for part in parts)
        return before, after

    def _prompt(self, prompt: FilePrompt) -> dict[str, Any]:
        before, after = self._around(prompt)
        messages = None if prompt.messages is None else len(prompt.messages)
        return {"file": prompt.name, "tokens": len(prompt.ids), "messages": messages, "before": before, "after": after}

    def _interval(self) -> str | int:
        return "dense" if self.policy.interval is None else self.policy.interval


def _line(console: Console, label: str, text: str) -> None:
    console.print(Text.assemble((f"{label:<9}", "bold"), for_terminal(text)))


def quoted(text: str) -> str:
    """On one line."""
    return for_terminal(json.dumps(text, ensure_ascii=False))
