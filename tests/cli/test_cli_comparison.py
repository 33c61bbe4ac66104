"""What a second prompt resumes of a first: the engine's own cache is asked, so the numbers are its numbers."""

from __future__ import annotations

import pytest

from milepost.cli.comparison import Comparison, Policy, common_text, compare, message_at
from milepost.cli.prompt_files import FilePrompt
from milepost.engine.chat import ChatTemplate
from milepost.engine.places import Places
from milepost.errors import RequestError

TEXT = list(range(1000, 2000))
ATTENTION, HYBRID, RECURRENT = Policy(True, False), Policy(True, True), Policy(False, True)


def told(found: Comparison) -> tuple[int, int, int, int]:
    """The sum of the last three and of what is resumed is all of B."""
    parts = found.num_new, found.num_in_part_of_a_block, found.num_for_want_of_a_state
    assert found.num_resumed + sum(parts) == found.num_tokens
    return found.num_resumed, *parts


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(ATTENTION, (144, 250, 6, 0)), (HYBRID, (128, 250, 6, 16)), (RECURRENT, (128, 250, 6, 16))],
)
def test_where_texts_part(policy: Policy, expected: tuple[int, int, int, int]) -> None:
    found = compare(TEXT[:500], [*TEXT[:150], *range(250)], policy)
    assert (found.position, told(found)) == (150, expected)
    assert (found.reason, found.reason_position) == ("diverged", 150)


@pytest.mark.parametrize(("policy", "resumed"), [(ATTENTION, 288), (HYBRID, 256), (RECURRENT, 256)])
def test_the_same_and_a_longer_prompt(policy: Policy, resumed: int) -> None:
    same = compare(TEXT[:300], TEXT[:300], policy)
    assert (same.position, same.num_resumed, same.num_new, same.reason) == (300, resumed, 0, None)
    longer = compare(TEXT[:300], TEXT[:400], policy)
    assert (longer.position, longer.num_resumed, longer.num_new) == (300, resumed, 100)


@pytest.mark.parametrize(("interval", "resumed"), [(None, 512), (64, 512), (128, 512), (320, 320), (0, 0)])
def test_states_are_kept_as_the_interval_says(interval: int | None, resumed: int) -> None:
    found = compare(TEXT, [*TEXT[:530], *range(50)], Policy(True, True, interval))
    assert (found.num_matched, found.num_resumed) == (528, resumed)
    assert (found.reason == "state thinned") == (resumed < 512)


def test_states_at_message_boundaries_and_breakpoints_are_kept_whatever_the_interval() -> None:
    second = [*TEXT[:530], *range(50)]
    for places, resumed in ((Places((200,), ()), 192), (Places((200,), (330,)), 320), (Places((600,), ()), 0)):
        assert compare(TEXT, second, Policy(True, True, 0), places).num_resumed == resumed


def test_nothing_in_common_too_short_and_empty() -> None:
    assert compare(TEXT, [7] * 100, HYBRID).reason == "no prefix"
    assert compare(TEXT, TEXT[:30], HYBRID).reason == "too short"
    with pytest.raises(RequestError, match="empty"):
        compare(TEXT, [], HYBRID)


@pytest.mark.parametrize(
    ("first", "second", "same"), [("", "", 0), ("abc", "abc", 3), ("abc", "abx", 2), ("ab", "abc", 2)]
)
def test_common_text(first: str, second: str, same: int) -> None:
    assert common_text(first, second) == same


def test_the_message_that_holds_a_place() -> None:
    template = ChatTemplate(
        "{% if messages[0].role != 'user' %}{{ raise_exception('no') }}{% endif %}"
        "{% for m in messages %}<{{ m.content }}>{% endfor %}{% if add_generation_prompt %}!{% endif %}"
    )
    messages = [{"role": role, "content": text} for role, text in (("user", "aa"), ("assistant", "bb"), ("user", "cc"))]
    prompt = FilePrompt("b", "<aa><bb><cc>!", [1], messages, None, {"add_generation_prompt": True})
    assert [message_at(prompt, template, place) for place in (0, 3, 4, 7, 8, 11, 12)] == [0, 0, 1, 1, 2, 2, 3]
    assert message_at(FilePrompt("b", "text", [1]), template, 0) is None
    hidden = FilePrompt("b", "x", [1], [{"role": "system", "content": "aa"}])
    assert message_at(hidden, template, 0) is None, "the template refuses it"
