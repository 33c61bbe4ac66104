"""Least recently used: KV and states in one list, by when somebody last used them."""

from __future__ import annotations

from milepost.cache.policies.always import Always
from milepost.cache.policies.least_value import LeastValue
from milepost.cache.policies.policy import Facts, Policy, Thing


def build(facts: Facts) -> Policy:
    return Policy(Always(), LeastValue[Thing](facts.may_go, lambda thing: thing.last_use))
