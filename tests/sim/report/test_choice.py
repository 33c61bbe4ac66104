"""Which setting a report speaks for."""

import pytest
from reports import GB, THREE, report, run

from milepost.sim.report.choice import choose


def test_the_best_that_a_server_has_with_the_memory_that_is_enough():
    advice = choose(THREE)
    assert advice is not None
    assert (advice.policy, advice.flags, advice.is_default) == ("ours", "", True)
    assert (advice.budget_bytes, advice.hit_rate) == (8 * GB, 0.47)
    assert (advice.bound, advice.feasible, advice.ceiling) == (0.55, 0.5, 0.6)
    assert advice.by_budget == {4 * GB: 0.30, 8 * GB: 0.47, 16 * GB: 0.49}
    assert (advice.other, advice.other_rate) == ("lru", 0.3)
    assert (advice.best, advice.best_rate) == ("oracle", 0.5)
    assert advice.excess == pytest.approx(0.7 / 0.53 - 1)


def test_where_the_memory_is_given():
    advice = choose(THREE, 4 * GB)
    assert advice is not None
    assert (advice.policy, advice.budget_bytes, advice.by_budget) == ("ours", 4 * GB, {4 * GB: 0.30})


def test_the_default_wins_unless_another_is_clearly_better():
    def chosen(rate: float) -> str:
        advice = choose(report(run("ours", 4, 0.400, ""), run("interval 0", 4, rate, "--interval 0")))
        assert advice is not None
        return advice.policy

    assert [chosen(0.401), chosen(0.41)] == ["ours", "interval 0"]


def test_of_high_hit_rates_the_rest_counts():
    """95 % and 98 % are alike as hit rates; the work left is not."""
    advice = choose(report(run("ours", 4, 0.95, ""), run("ours", 8, 0.98, ""), run("ours", 16, 0.981, "")))
    assert advice is not None
    assert advice.budget_bytes == 8 * GB


def test_without_a_baseline_the_next_best_is_compared():
    advice = choose(report(run("a", 4, 0.3, ""), run("b", 4, 0.1), run("c", 4, 0.2)))
    assert advice is not None
    assert (advice.other, advice.other_rate) == ("c", 0.2)


def test_policies_that_no_server_has_are_compared_where_there_are_no_others():
    advice = choose(report(run("a", 4, 0.3), run("b", 4, 0.1)))
    assert advice is not None
    assert (advice.policy, advice.flags) == ("a", None)


def test_one_policy_everything_resumed_and_nothing_known_of_bounds():
    advice = choose(report(run("a", 4, 1.0, ""), budgets=[], ceiling=None))
    assert advice is not None
    assert (advice.other, advice.bound, advice.ceiling) == (None, None, None)


def test_nothing_ran():
    assert choose(report()) is None
