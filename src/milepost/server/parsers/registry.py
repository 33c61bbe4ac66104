"""The known families, the most particular first: the first that a model's files match is its family."""

from __future__ import annotations

from milepost.server.parsers.deepseek import DEEPSEEK
from milepost.server.parsers.family import Family, Traits
from milepost.server.parsers.granite import GRANITE
from milepost.server.parsers.hermes import HERMES
from milepost.server.parsers.lfm2 import LFM2
from milepost.server.parsers.llama3 import LLAMA3
from milepost.server.parsers.mistral import MISTRAL
from milepost.server.parsers.nemotron import NEMOTRON
from milepost.server.parsers.plain import PLAIN
from milepost.server.parsers.qwen_xml import QWEN_XML

FAMILIES: tuple[Family, ...] = (
    DEEPSEEK,
    MISTRAL,
    LFM2,
    NEMOTRON,
    GRANITE,
    QWEN_XML,
    HERMES,
    LLAMA3,
    PLAIN,
)


def family_of(traits: Traits) -> Family:
    """`PLAIN` for a model that is of no known family."""
    return next(family for family in FAMILIES if family.matches(traits))
