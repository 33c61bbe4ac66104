"""Runs each scenario over the engine and over HTTP, for each kind of state: all in the full run, a sample otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from kinds import KINDS
from plain_answers import PlainLoop
from stage import Place, Serve, sample

from milepost.ops.cpu import library


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "serve" in metafunc.fixturenames:
        everywhere = [Place(kind, over, False) for over in ("engine", "http") for kind in KINDS]
        places = [pytest.param(place, marks=[pytest.mark.full, pytest.mark.timeout(3600)]) for place in everywhere]
        metafunc.parametrize("serve", [*places, *sample(metafunc.function.__name__)], indirect=True, ids=str)


@pytest.fixture(autouse=True)
def small_models(one_thread: None) -> None:
    """The threads would spend their time waiting for each other."""


@pytest.fixture(scope="session")
def plain_loops() -> Iterator[Callable[[bool], PlainLoop]]:
    loops = {apart: PlainLoop(apart) for apart in (False, True)}
    yield loops.__getitem__
    for loop in loops.values():
        loop.close()


@pytest.fixture
def serve(request: pytest.FixtureRequest, plain_loops: Callable[[bool], PlainLoop]) -> Iterator[Serve]:
    if not library.available():
        pytest.skip("without kernels the ops run in torch, whose rows are not exact")
    with ExitStack() as stack:
        yield Serve(request.param, plain_loops(not request.param.small), stack)
