"""How a model marks what it thinks before it answers."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.server.parsers.family import Traits


@dataclass(frozen=True)
class Thinking:
    """`open` and `close` stand around the reasoning; `wrap`, where a family has it, around the answer after it."""

    open: str
    close: str
    wrap: tuple[str, str] | None = None

    @property
    def tags(self) -> frozenset[str]:
        return frozenset((self.open, self.close, *(self.wrap or ())))

    def opened_by(self, prompt: str) -> bool:
        """Whether the prompt ends inside of reasoning: the template opened it, or the message that is continued."""
        return prompt.rstrip().endswith(self.open)

    def open_in(self, message: str) -> bool:
        """Whether an assistant's message, which the model goes on with, ends inside of reasoning."""
        return message.rfind(self.open) > message.rfind(self.close)


THINK = Thinking("<think>", "</think>")
GRANITE = Thinking("<think>", "</think>", ("<response>", "</response>"))
MISTRAL = Thinking("[THINK]", "[/THINK]")


def thinking_of(traits: Traits) -> Thinking | None:
    """None for a model that does not think before it answers, or not in marks."""
    template = traits.template
    if "<think>" in template and "<response>" in template and "<|start_of_role|>" in template:
        return GRANITE
    if MISTRAL.open in template:
        return MISTRAL
    marks = (THINK.open, THINK.close)
    if any(mark in template for mark in marks) or any(mark in traits.special_tokens for mark in marks):
        return THINK
    return None
