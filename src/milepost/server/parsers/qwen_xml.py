"""Qwen3-Coder, Qwen3.5, Nemotron 3 and others that write XML:

<tool_call><function=f><parameter=a>1</parameter></function></tool_call>
"""

from __future__ import annotations

from milepost.server.parsers import hermes
from milepost.server.parsers.family import Family
from milepost.server.parsers.xml_calls import CLOSE, FUNCTION

QWEN_XML = Family(
    "qwen_xml",
    lambda traits: "<function=" in traits.template and "<parameter=" in traits.template,
    opens=(hermes.OPEN, FUNCTION),  # the first is left out now and then
    read=hermes.read,
    inner=(hermes.CLOSE, CLOSE),
    form=hermes.form,  # in JSON: a grammar for these values would have to be made of the schema by hand
)
