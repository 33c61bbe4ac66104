"""Milepost's own adaptor on a tiny model: it answers every op, and reuses only what it is told to keep."""

from pathlib import Path

import pytest
from bench.kernel_times import KernelTimes
from bench.peers.child import OPS, Settings, answer
from bench.peers.milepost import MilepostRuns, make
from transformers import LlamaConfig, LlamaForCausalLM

from milepost.ops.cpu import library

CONFIG = LlamaConfig(
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
)
SMALL = {
    "prefill": {"tokens": 40},
    "decode": {"batch": 2, "prompt": 8, "tokens": 5},
    "burst": {"requests": 3, "prompt": 8, "answer": 4},
    "reuse": {"tokens": 100, "shared": 80},
    "gemm": {"rows": 4, "size_in": 1024, "size_out": 1024},
    "outside_kernels": {"batch": 1, "prompt": 8, "tokens": 5},
}
WORK = {"prefill": 40, "decode": 10, "burst": 12, "reuse": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(CONFIG).save_pretrained(folder)
    return folder


def runs_of(folder: Path, prefix_caching: bool) -> MilepostRuns:
    return make(Settings(folder, 1, prefix_caching, context=256, options={}))


def test_it_answers_every_op(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if library.chosen() is None:
        pytest.skip("no kernels were built")
    monkeypatch.setattr("bench.peers.milepost.GEMM_OPERATIONS", 1e6)
    runs = runs_of(folder, prefix_caching=False)
    for op in OPS:
        found = answer(runs, {"op": op, **SMALL[op]})
        assert "error" not in found, found
        assert found["work"] == WORK.get(op, found["work"])
        assert found["seconds"] > 0
    assert found["seconds"] < found["work"]


@pytest.mark.parametrize("caching", [True, False])
def test_prompts_are_reused_where_prefix_caching_is_on(folder: Path, caching: bool) -> None:
    runs = runs_of(folder, caching)
    runs.prefill(tokens=40)
    assert runs.reuse(tokens=100, shared=80)["cached"] == (80 if caching else 0)


def test_timed_kernels_are_put_back(folder: Path) -> None:
    engine = runs_of(folder, prefix_caching=False).engine.engine
    replays = engine.runner.replays
    if replays is None or replays.kernels is None:
        pytest.skip("no kernels were built")
    before = dict(vars(replays.kernels))
    with KernelTimes().of(engine):
        assert dict(vars(replays.kernels)) != before
    assert dict(vars(replays.kernels)) == before
