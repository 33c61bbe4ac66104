"""The jinja environment that chat templates written for Hugging Face's `apply_chat_template` expect, with bounds.

A template is a program that comes with the model. It runs in jinja's sandbox, it can change nothing that it is given,
and it is stopped when it takes too long or makes too much.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import wraps
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_SECONDS = 2.0
"""Processor time of one rendering; templates in use take milliseconds, also for a thousand messages."""

MAX_CHARS = 32 * 1024 * 1024
"""Length of a rendering, and of any text or list that a template puts together on the way."""

_BUDGET, _ITERATE, _JOIN = "the budget", "bounded iteration", "bounded join"
"""Names that no template can spell, and so not replace."""

MAX_WIDTH = 9_999
"""Largest width or count that a text method or a filter may be given to pad or to slice to."""

_PADDING_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_PADDING_FILTERS = ("batch", "center", "indent", "slice", "wordwrap")
_WIDE_FORMAT = re.compile(r"%[^%a-zA-Z]*(\d{5}|\*)")
"""A `%` format that pads beyond MAX_WIDTH, or to a width that comes with the values."""

_ITEM_CHARS = 32
"""What an item of a list counts for, in characters."""


class TemplateRefusal(jinja2.TemplateError):
    """What a template says of its input by `raise_exception`."""


class TemplateBound(jinja2.TemplateError):
    """A template that was stopped for what it takes."""


class Budget:
    """The processor time that one rendering has left."""

    def __init__(self, max_seconds: float, timer: Callable[[], float] = time.thread_time) -> None:
        self._timer = timer
        self._max_seconds = max_seconds
        self._end = timer() + max_seconds

    def check(self) -> None:
        """Raises `TemplateBound` once the time is over."""
        if self._timer() > self._end:
            raise TemplateBound(f"it ran for more than {self._max_seconds:g} s")


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """jinja's sandbox with blocks trimmed, loop controls, and what Hugging Face's environment adds.

    Every turn of a loop and every call looks at the budget; sums and products of texts and lists have a largest size.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        extensions = ["jinja2.ext.loopcontrols", _Generation]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, cache_size=0)
        self.filters["tojson"] = _to_json
        self.filters[_ITERATE] = _iterate
        self.filters[_JOIN] = _join
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: now().strftime(format)
        self.filters |= {name: _of_checked_width(self.filters[name]) for name in _PADDING_FILTERS}
        del self.globals["lipsum"]

    def compile_template(self, source: str) -> jinja2.Template:
        """Raises `jinja2.TemplateSyntaxError`."""
        tree = _Bounded().visit(self.parse(source))
        return self.template_class.from_code(self, self.compile(tree), self.make_globals(None))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """jinja's hook for calls; its first names are such that they cannot clash with the arguments' names."""
        __context[_BUDGET].check()
        if isinstance(getattr(__obj, "__self__", None), str) and __obj.__name__ in _PADDING_METHODS:
            _check_width(__obj.__name__, *args, *kwargs.values())
        if isinstance(__obj, LoopContext) and args:  # the next level of a recursive loop
            args = (_iterate(__context, args[0]), *args[1:])
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """jinja's hook for the `intercepted_binops`."""
        _check_size(operator, left, right)
        return super().call_binop(context, operator, left, right)


def render(template: jinja2.Template, variables: dict[str, Any], budget: Budget, max_chars: int = MAX_CHARS) -> str:
    """Renders a template of `ChatEnvironment`. Raises whatever the template runs into."""
    pieces, num_chars = [], 0
    for piece in template.generate(variables | {_BUDGET: budget}):
        num_chars += len(piece)
        if num_chars > max_chars:
            raise TemplateBound(f"it makes more than {max_chars} characters")
        pieces.append(piece)
    return "".join(pieces)


class _Bounded(NodeTransformer):
    """Sends what is looped over, and what `~` joins, through filters that keep to the bounds."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(cast(nodes.Expr, node.iter), _ITERATE)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), _JOIN)


class _Generation(Extension):
    """`{% generation %}` marks what the model writes, for training; here its content is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja declares it as an instance's)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _filtered(value: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)


@jinja2.pass_context
def _iterate(context: Context, values: Iterable[Any]) -> Iterator[Any]:
    budget: Budget = context[_BUDGET]
    for value in values:
        budget.check()
        yield value


def _join(values: list[Any]) -> str:
    texts = [str(value) for value in values]
    if sum(map(len, texts)) > MAX_CHARS:
        raise TemplateBound(f"it makes a text of more than {MAX_CHARS} characters")
    return "".join(texts)


def _check_size(operator: str, left: Any, right: Any) -> None:
    """Refuses what one operation would make too large."""
    if operator == "+":
        too_large = _size(left) + _size(right) > MAX_CHARS
    elif operator == "%":
        too_large = isinstance(left, str) and _WIDE_FORMAT.search(left) is not None
    elif operator == "*":
        factor = next((value for value in (left, right) if isinstance(value, int)), 0)
        too_large = max(_size(left), _size(right)) * factor > MAX_CHARS
    else:
        too_large = abs(left) > 2**64 or abs(right) > 2**10
    if too_large:
        raise TemplateBound(f"it makes a value that is too large, with {operator!r}")


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return _ITEM_CHARS * len(value) if isinstance(value, list | tuple) else 0


def _check_width(name: str, *values: Any) -> None:
    if any(isinstance(value, int) and value > MAX_WIDTH for value in values):
        raise TemplateBound(f"{name} is asked for more than {MAX_WIDTH}")


def _of_checked_width(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)  # keeps jinja's marks on it
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_width(function.__name__.removeprefix("do_"), *args, *kwargs.values())
        return function(*args, **kwargs)

    return checked


def _raise_exception(message: object) -> None:
    raise TemplateRefusal(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
