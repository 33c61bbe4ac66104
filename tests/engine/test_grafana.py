"""The dashboard asks for nothing that a server does not have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tiny_engine import MakeEngine, add, drain

from milepost.sampling_params import SamplingParams

FILE = Path(__file__).parents[2] / "docs" / "grafana.json"


@pytest.fixture(scope="module")
def board() -> Any:
    return json.loads(FILE.read_text())


def test_every_metric_and_label_is_there(board: Any, make_engine: MakeEngine) -> None:
    engine = make_engine()
    add(engine, "a", [1, 2, 3], SamplingParams(max_tokens=2))
    drain(engine)
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(engine.metrics.text().decode()):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(asked) > 20
    for expr in asked:
        names = re.findall(r"((?:vllm|milepost):\w+)\{", expr)
        assert names
        for name in names:
            assert name in labels, name
            grouped = {label for group in re.findall(r"by \((\w+)\)", expr) for label in group.split(",")}
            assert grouped | {"model_name"} <= labels[name], expr
    assert "vllm:num_requests_running" in board["templating"]["list"][0]["query"]


def test_panels_are_told_apart_and_do_not_overlap(board: Any) -> None:
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
