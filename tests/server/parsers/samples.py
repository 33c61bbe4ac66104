"""What models of each family write, and what is in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.server.parsers.family import Family
from milepost.server.parsers.reasoning import GRANITE as GRANITE_THINKING
from milepost.server.parsers.reasoning import MISTRAL as MISTRAL_THINKING
from milepost.server.parsers.reasoning import THINK, Thinking
from milepost.server.parsers.registry import DEEPSEEK, GRANITE, HERMES, LFM2, LLAMA3, MISTRAL, NEMOTRON, PLAIN, QWEN_XML

TOOLS = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    },
    "write": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "mode": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "deep": {"type": "object"},
            "loud": {"type": "boolean"},
        },
    },
}

PARIS = ("weather", {"city": "Paris"})
ROME = ("weather", {"city": "Rome", "days": 2})

DS_CALLS, DS_CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
DS_CALL, DS_CALL_END, DS_SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"  # noqa: RUF001


@dataclass(frozen=True)
class Sample:
    """`text` and what it holds. `thinking`, `opened`: as `AnswerParser` takes them."""

    name: str
    family: Family
    text: str
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, object]] = field(default_factory=list)
    thinking: Thinking | None = THINK
    opened: bool = False


LONG = 'line one\n"two"\t</b> {[ é \\' * 60

SAMPLES = [
    Sample("words", HERMES, "\n 2 < 3 and <tool> is no tag. ", "\n 2 < 3 and <tool> is no tag. "),
    Sample("only space", HERMES, " \n", " \n"),
    Sample("think", HERMES, "<think>\nWell.\n\n</think>\n\nYes.\n", "Yes.\n", "Well."),
    Sample("think opened by the template", HERMES, "Well.\n</think>\n\nYes.", "Yes.", "Well.", opened=True),
    Sample("nothing thought", HERMES, "<think>\n\n</think>\n\nYes.", "Yes."),
    Sample("never stops thinking", HERMES, "<think>on and </th on\n", "", "on and </th on"),
    Sample("a tag in words", HERMES, "Use <think> and </think>.", "Use <think> and </think>."),
    Sample("a model that does not think", HERMES, "<think>a</think>b", "<think>a</think>b", thinking=None),
    Sample(
        "one call",
        HERMES,
        'Let me look.\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n',
        "Let me look.",
        calls=[PARIS],
    ),
    Sample(
        "two calls after a thought",
        HERMES,
        '<think>Both.</think>\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>{"arguments": {"city": "Rome", "days": 2}, "name": "weather"}</tool_call>',
        "",
        "Both.",
        [PARIS, ROME],
    ),
    Sample(
        "a call inside of a thought",
        HERMES,
        '<think>I ask. <tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call> Done.</think>Now.',
        "Now.",
        "I ask.Done.",
        [PARIS],
    ),
    Sample(
        "a thought between calls",
        HERMES,
        '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call><think>And?</think>'
        '<tool_call>{"name": "weather", "arguments": {"city": "Rome", "days": 2}}</tool_call>',
        "",
        "And?",
        [PARIS, ROME],
    ),
    Sample("no closing tag", HERMES, '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}', calls=[PARIS]),
    Sample(
        "no last brace",
        HERMES,
        '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}</tool_call>',
        calls=[PARIS],
    ),
    Sample("no arguments", HERMES, '<tool_call>{"name": "weather"}</tool_call>', calls=[("weather", {})]),
    Sample(
        "arguments as a text",
        HERMES,
        '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>',
        calls=[PARIS],
    ),
    Sample(
        "OpenAI's form",
        HERMES,
        '<tool_call>{"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}</tool_call>',
        calls=[PARIS],
    ),
    Sample(
        "tags in arguments",
        HERMES,
        '<tool_call>{"name": "write", "arguments": {"text": "</tool_call> <think> \\" }"}}</tool_call>.',
        ".",
        calls=[("write", {"text": '</tool_call> <think> " }'})],
    ),
    Sample(
        "a line break that is not escaped",
        HERMES,
        '<tool_call>{"name": "write", "arguments": {"text": "a\nb"}}</tool_call>',
        calls=[("write", {"text": "a\nb"})],
    ),
    Sample(
        "XML from a model of JSON",
        HERMES,
        "<tool_call><function=weather><parameter=city>Paris</parameter></function></tool_call>",
        calls=[PARIS],
    ),
    Sample("no JSON", HERMES, "The tag <tool_call> is a tag.", "The tag <tool_call> is a tag."),
    Sample(
        "broken JSON",
        HERMES,
        'x <tool_call>{"name": "weather", "arguments": {"city": Paris}}</tool_call>\n',
        'x <tool_call>{"name": "weather", "arguments": {"city": Paris}}</tool_call>\n',
    ),
    Sample(
        "broken JSON, then a call",
        HERMES,
        '<tool_call>{"name": }</tool_call><tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>',
        '<tool_call>{"name": }</tool_call>',
        calls=[PARIS],
    ),
    Sample("cut off", HERMES, '<tool_call>{"name": "weather", "argu', '<tool_call>{"name": "weather", "argu'),
    Sample(
        "arguments that are no object",
        HERMES,
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
    ),
    Sample(
        "half a surrogate pair",
        HERMES,
        '<tool_call>{"name": "write", "arguments": "{\\"text\\": \\"\\ud800\\"}"}</tool_call>'
        '<tool_call>{"name": "\\ud800"}</tool_call>',
        '<tool_call>{"name": "\\ud800"}</tool_call>',
        calls=[("write", {"text": "\ud800"})],
    ),
    Sample(
        "no number of JSON",
        HERMES,
        '<tool_call>{"name": "weather", "arguments": {"days": NaN}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"days": NaN}}</tool_call>',
    ),
    Sample("broken in a thought", HERMES, "<think>a <tool_call>b</think>c", "c", "a <tool_call>b"),
    Sample(
        "XML",
        QWEN_XML,
        "Go.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        '</function>\n</tool_call>\n<tool_call>\n<function=write>\n<parameter=text>\na\n\n"b" <c>\n\n</parameter>\n'
        '<parameter=mode>\nnull\n</parameter>\n<parameter=deep>\n{"x": [1]}\n</parameter>\n<parameter=loud>\nTrue\n'
        "</parameter>\n<parameter=unknown>\n1\n</parameter>\n</function>\n</tool_call>",
        "Go.",
        calls=[
            ROME,
            ("write", {"text": 'a\n\n"b" <c>\n', "mode": None, "deep": {"x": [1]}, "loud": True, "unknown": "1"}),
        ],
    ),
    Sample(
        "XML without the outer tag, without arguments, without ends",
        QWEN_XML,
        "<function=weather>\n</function>\n<tool_call><function=weather>\n<parameter=city>\nRome\n<parameter=days>\n2\n"
        "</function>",
        calls=[("weather", {}), ROME],
    ),
    Sample(
        "a long text in XML",
        QWEN_XML,
        f"Well.</think>\n<tool_call>\n<function=write>\n<parameter=text>\n{LONG}\n</parameter>\n</function>\n</tool_call>",
        "",
        "Well.",
        [("write", {"text": LONG})],
        opened=True,
    ),
    Sample("XML that is none", QWEN_XML, "Write <function=f> and <parameter=", "Write <function=f> and <parameter="),
    Sample("JSON", LLAMA3, '{"name": "weather", "parameters": {"city": "Paris"}}', calls=[PARIS]),
    Sample(
        "two in JSON",
        LLAMA3,
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}; '
        '{"type": "function", "name": "weather", "parameters": {"city": "Rome", "days": 2}}',
        calls=[PARIS, ROME],
    ),
    Sample("JSON that is no call", LLAMA3, '{"name": "Anna", "parameters": {}}', '{"name": "Anna", "parameters": {}}'),
    Sample(
        "JSON with other keys", LLAMA3, '{"city": "Paris", "name": "weather"}', '{"city": "Paris", "name": "weather"}'
    ),
    Sample("JSON later on", LLAMA3, 'So: {"name": "weather"}', 'So: {"name": "weather"}'),
    Sample(
        "a list",
        MISTRAL,
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}, "id": "abcdefghi"}, '
        '{"name": "weather", "arguments": {"city": "Rome", "days": 2}}]',
        calls=[PARIS, ROME],
    ),
    Sample(
        "since 2025",
        MISTRAL,
        '[THINK]Both.[/THINK]Sure.[TOOL_CALLS]weather[ARGS]{"city": "Paris"}'
        '[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{"city": "Rome", "days": 2}',
        "Sure.",
        "Both.",
        [PARIS, ROME],
        thinking=MISTRAL_THINKING,
    ),
    Sample(
        "a list of which one is broken",
        MISTRAL,
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}}, {"name": 1}]',
        ', {"name": 1}]',
        calls=[PARIS],
    ),
    Sample(
        "a list after a thought",
        GRANITE,
        '<think>W.</think><response>So.</response><|tool_call|>[{"name": "weather", "arguments": {"city": "Paris"}}]',
        "So.",
        "W.",
        [PARIS],
        thinking=GRANITE_THINKING,
    ),
    Sample("<response> as a word", GRANITE, "A <response> b.", "A <response> b.", thinking=GRANITE_THINKING),
    Sample(
        "TOOLCALL",
        NEMOTRON,
        '<TOOLCALL>[{"name": "weather", "arguments": {"city": "Paris"}}]</TOOLCALL>',
        calls=[PARIS],
    ),
    Sample(
        "Python",
        LFM2,
        "Sure. <|tool_call_start|>[weather(city=\"Paris\"), weather(city='Rome', days=2)]<|tool_call_end|>Done.",
        "Sure.Done.",
        calls=[PARIS, ROME],
    ),
    Sample(
        "Python with JSON's words",
        LFM2,
        "<|tool_call_start|>[a.b(deep={'x': [None, true, -1.5]}, loud=false)]<|tool_call_end|>",
        calls=[("a.b", {"deep": {"x": [None, True, -1.5]}, "loud": False})],
    ),
    Sample(
        "JSON instead of Python",
        LFM2,
        '<|tool_call_start|>[{"name": "weather", "arguments": {"city": "Paris"}}]<|tool_call_end|>',
        calls=[PARIS],
    ),
    Sample(
        "Python that is no call",
        LFM2,
        "<|tool_call_start|>[weather(open('x'))]<|tool_call_end|>",
        "<|tool_call_start|>[weather(open('x'))]<|tool_call_end|>",
    ),
    Sample(
        "V3",
        DEEPSEEK,
        f"Hm.\n</think>\n\nSo.{DS_CALLS}{DS_CALL}function{DS_SEP}weather\n```json\n"
        f'{{"city": "Paris"}}\n```{DS_CALL_END}\n{DS_CALL}function{DS_SEP}weather\n```json\n'
        f'{{"city": "Rome", "days": 2}}\n```{DS_CALL_END}{DS_CALLS_END}',
        "So.",
        "Hm.",
        [PARIS, ROME],
        opened=True,
    ),
    Sample(
        "V3.1",
        DEEPSEEK,
        f'{DS_CALLS}{DS_CALL}weather{DS_SEP}{{"city": "Paris"}}{DS_CALL_END}'
        f'{DS_CALL}weather{DS_SEP}{{"city": "Rome", "days": 2}}{DS_CALL_END}{DS_CALLS_END}',
        calls=[PARIS, ROME],
    ),
    Sample("no call", DEEPSEEK, f"{DS_CALLS}nothing{DS_CALLS_END}", f"{DS_CALLS}nothing{DS_CALLS_END}"),
    Sample("bare JSON", PLAIN, ' {"name": "weather", "arguments": {"city": "Paris"}}', calls=[PARIS]),
    Sample(
        "fenced JSON",
        PLAIN,
        '```json\n[{"name": "weather", "arguments": {"city": "Paris"}}]\n```',
        calls=[PARIS],
    ),
    Sample(
        "Hermes's tags",
        PLAIN,
        'I ask. <tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>',
        "I ask.",
        calls=[PARIS],
    ),
    Sample("an answer in JSON", PLAIN, '[{"name": "Anna"}]', '[{"name": "Anna"}]'),
    Sample("a fenced answer", PLAIN, "```json\n{}\n```", "```json\n{}\n```"),
]
