"""Models of a few thousand weights: the threads would spend their time waiting for each other."""

import pytest


@pytest.fixture(autouse=True)
def small_models(one_thread: None) -> None:
    pass
