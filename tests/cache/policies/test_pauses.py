"""What is learnt from pauses."""

from __future__ import annotations

from milepost.cache.policies.pauses import REVIEW_EVERY, Pauses


def after(length: float, share: float, *, num_classes: int = 1, group: int = 0, num: int = 400) -> Pauses:
    """What is known when this share of people has come back after pauses of such a length, and the others have not."""
    pauses, now = Pauses(num_classes), 0.0
    for number in range(num):
        pause = pauses.begin(group, now)
        now += length
        if number % 100 < 100 * share:
            pauses.came_back(pause, now)
    now += 50
    for _ in range(REVIEW_EVERY):
        pauses.begin(group, now)
    assert pauses.review(now)
    return pauses


def test_before_anything_is_known_what_was_left_last_is_worth_most() -> None:
    pauses = Pauses(1)
    worth = [pauses.worth(0, age) for age in (0.0, 0.01, 0.1, 1.0, 10.0, 1000.0)]
    assert worth == sorted(worth, reverse=True)


def test_a_text_is_worth_most_when_people_are_about_to_come_back() -> None:
    pauses = after(1.0, 0.5)
    early, late, past = (pauses.worth(0, age) for age in (0.05, 0.99, 5.0))
    assert late > early > past


def test_a_class_that_people_come_back_to_more_often_is_worth_more() -> None:
    often, seldom = after(1.0, 0.9), after(1.0, 0.1)
    assert often.worth(0, 0.5) > 4 * seldom.worth(0, 0.5)


def test_a_class_of_which_nothing_is_known_is_like_the_others() -> None:
    pauses = after(1.0, 0.9, num_classes=2)
    assert 0.5 < pauses.worth(1, 0.5) / pauses.worth(0, 0.5) <= 1.0


def test_what_eviction_cuts_short_says_nothing_of_longer_pauses() -> None:
    cut, waited = Pauses(1), Pauses(1)
    for pauses in (cut, waited):
        begun = [pauses.begin(0, 0.0) for _ in range(200)]
        for pause in begun[20:] if pauses is cut else []:
            pauses.cut_short(pause, 1.0)
        for pause in begun[:20]:
            pauses.came_back(pause, 4.0)
        pauses.review(40.0)
    assert cut.worth(0, 3.9) > waited.worth(0, 3.9)


def test_the_table_forgets() -> None:
    pauses, now = Pauses(1), 0.0
    for share in (1.0, 0.0):
        for number in range(20_000):
            pause = pauses.begin(0, now)
            now += 0.1
            if share:
                pauses.came_back(pause, now)
            elif number % 2:
                pauses.cut_short(pause, now)
            pauses.review(now)
        if share:
            before = pauses.worth(0, 0.05)
    assert pauses.worth(0, 0.05) < before / 2
