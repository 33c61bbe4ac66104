"""The bounds on chat templates."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from milepost.engine.chat import ChatTemplate
from milepost.engine.chat_sandbox import Budget, ChatEnvironment, TemplateBound, render
from milepost.errors import RequestError

NESTED = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
CALLS = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
RECURSIVE = "{% for x in [[1, 2], [3]] recursive %}{{ loop(x * 2000) if x is iterable }}{% endfor %}"


def ticking() -> Iterator[int]:
    """A clock that moves by a second each time someone looks at it."""
    return itertools.count()


@pytest.mark.parametrize("source", [NESTED, CALLS, NESTED.replace("range(100000)", "'abc' * 10000"), RECURSIVE])
def test_endless_templates_are_stopped(source: str) -> None:
    clock = ticking()
    template = ChatTemplate(source, timer=lambda: next(clock), max_seconds=1000)
    with pytest.raises(RequestError, match="was stopped: it ran for more than 1000 s"):
        template.render([{"role": "user", "content": "a"}])
    assert next(clock) < 5000


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10000000000 }}",
        "{{ 10000000000 * 'a' }}",
        "{{ [1] * 10000000000 }}",
        "{{ 10 ** 10000000000 }}",
        "{{ '%100000000d' % 1 }}",
        "{{ '%*d' % (100000000, 1) }}",
        "{{ 'a'.center(10000000000) }}",
        "{{ 'a'.ljust(width=10000000000) }}",
        "{{ 'a' | center(10000000000) }}",
        "{{ 'a' | indent(width=10000000000) }}",
        "{{ [1] | slice(10000000000) | list }}",
        "{{ [1] | batch(10000000000, 'x') | list }}",
        "{% set ns = namespace(a='ab') %}{% for i in range(99) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
        "{% set ns = namespace(a='ab') %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
        "{% set ns = namespace(a=[1]) %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
    ],
)
def test_giant_values_are_refused(source: str) -> None:
    with pytest.raises(RequestError, match="was stopped"):
        ChatTemplate(source).render([{"role": "user", "content": "a"}])


def test_range_is_bounded_by_the_sandbox() -> None:
    with pytest.raises(RequestError, match="Range too big"):
        ChatTemplate("{{ range(1000000) | list }}").render([{"role": "user", "content": "a"}])


def test_long_output_is_stopped() -> None:
    template = ChatEnvironment().compile_template("{% for i in range(1000) %}0123456789{% endfor %}")
    assert len(render(template, {}, Budget(10))) == 10_000
    with pytest.raises(TemplateBound, match="more than 9999 characters"):
        render(template, {}, Budget(10), max_chars=9_999)


def text_of(source: str, **variables: Any) -> str:
    return render(ChatEnvironment().compile_template(source), variables, Budget(10))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a' ~ 1 ~ none ~ [2] }}", "a1None[2]"),
        ("{{ 3 * 'ab' + 'c' }}{{ 7 % 4 }}{{ 2 ** 10 }}{{ '%03d|%s|100%%' % (7, 'x') }}", "abababc31024007|x|100%"),
        ("{% for x in 'abc' if x != 'b' %}{{ loop.index }}{{ x }}{{ loop.length }}{% else %}no{% endfor %}", "1a22c2"),
        ("{% for x in [] %}{% else %}none{% endfor %}{% for x in missing %}{% else %}none{% endfor %}", "nonenone"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{% for x in [[1, [2]], 3] recursive %}{{ loop(x) if x is iterable else x }},{% endfor %}", "1,2,,,3,"),
        ("{{ {'é': '<&>', 'b': [1]} | tojson }}", '{"é": "<&>", "b": [1]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{{ 'é' | tojson(ensure_ascii=true) }}{{ [1, 2] | tojson(separators=(',', ':')) }}", '"\\u00e9"[1,2]'),
        ("{{ '123456' | length }}{{ '{n: 123456}'.split(':')[1] }}", "6 123456}"),
        (
            "{{ 'a' | center(5) }}|{{ 'a\nb' | indent(2) }}|{{ [1, 2, 3] | batch(2, 0) | list }}",
            "  a  |a\n  b|[[1, 2], [3, 0]]",
        ),
        ("{{ [1, 2, 3] | slice(2) | list }}{{ 'a'.ljust(3) }}{{ 'abc'.find('c', 1) }}", "[[1, 2], [3]]a  2"),
        ("  {% if true %}\n  a\n  {% endif %}\n", "  a\n"),
    ],
)
def test_ordinary_templates_are_untouched(source: str, text: str) -> None:
    assert text_of(source) == text


def test_variables_cannot_replace_the_bounds() -> None:
    assert text_of("{{ range(3) | list }}", **{"the budget": None}) == "[0, 1, 2]"
