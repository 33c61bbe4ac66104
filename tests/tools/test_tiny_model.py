"""The training model is the model that Milepost and transformers read from its checkpoint."""

from pathlib import Path

import pytest
import torch
import transformers
from parity import difference, logits_by_transformers, prompt_of
from tools.tiny import kernels
from tools.tiny.checkpoint import save_checkpoint
from tools.tiny.delta import gated_delta
from tools.tiny.model import GatedDelta, Shape, TinyModel
from tools.tiny.tokenizer import train_tokenizer

from milepost.engine.plain import logits_of
from milepost.models.loader.load import load_model, open_model

SHAPE = Shape(
    vocab_size=330,
    hidden_size=48,
    intermediate_size=64,
    num_layers=4,
    attention=(1,),
    head_dim=24,
    key_dim=16,
    value_dim=24,
)


def moved(model: TinyModel) -> TinyModel:
    """Norms, decays and attention's output, which start at ones or zeros, are moved, so that they matter."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("o_proj.weight"):
                parameter += parameter.shape[1] ** -0.5 * torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[TinyModel, Path]:
    model, folder = moved(TinyModel(SHAPE)), tmp_path_factory.mktemp("tiny")
    save_checkpoint(model, train_tokenizer(50, SHAPE.vocab_size), folder, torch.float32)
    return model, folder


def test_three_ways_to_the_same_logits(checkpoint: tuple[TinyModel, Path]) -> None:
    model, folder = checkpoint
    prompt = prompt_of(SHAPE.vocab_size, 200)
    with torch.no_grad():
        trained = model.logits(model.hidden(torch.tensor([prompt])))[0]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours = load_model(open_model(str(folder)), torch.float32).model
    assert difference(trained, logits_by_transformers(theirs, prompt)) < 1e-4
    assert difference(trained, logits_of(ours, prompt)) < 1e-4


def test_the_checkpoint_holds_every_weight(checkpoint: tuple[TinyModel, Path]) -> None:
    model, folder = checkpoint
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    names = {name for name, _ in theirs.named_parameters()} - {"lm_head.weight"}
    assert {name for name, _ in model.named_parameters()} == names


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 200])
def test_the_chunked_rule_is_the_recurrence(tokens: int) -> None:
    torch.manual_seed(0)
    q, k = (torch.randn(2, 3, tokens, 8) for _ in range(2))
    k = k / k.norm(dim=-1, keepdim=True)
    v, g, beta = torch.randn(2, 3, tokens, 5), -torch.rand(2, 3, tokens) * 3, torch.rand(2, 3, tokens)
    state, expected = torch.zeros(2, 3, 8, 5, dtype=torch.float64), []
    for t in range(tokens):
        state = state * g[..., t, None, None].double().exp()
        read = torch.einsum("bhkv,bhk->bhv", state, k[..., t, :].double())
        u = beta[..., t, None] * (v[..., t, :] - read)
        state = state + torch.einsum("bhk,bhv->bhkv", k[..., t, :].double(), u)
        expected.append(torch.einsum("bhkv,bhk->bhv", state, q[..., t, :].double()))
    assert difference(gated_delta(q, k, v, g, beta).double(), torch.stack(expected, 2)) < 1e-5


@pytest.mark.skipif(not kernels.available(), reason="needs gcc")
@pytest.mark.parametrize("tokens", [1, 3, 16, 77])
def test_the_kernels_are_torchs_layer(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and every gradient."""
    shape = Shape(hidden_size=32, delta_heads=2)
    assert shape.fits_kernels
    layer, x = GatedDelta(shape), torch.randn(3, tokens, 32, requires_grad=True)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.3 * torch.randn(parameter.shape)
    weights = torch.randn(3, tokens, 32)

    def rows_and_gradients() -> list[torch.Tensor]:
        rows = layer(x)
        return [rows, *torch.autograd.grad((rows * weights).sum(), [x, *layer.parameters()])]

    ours = rows_and_gradients()
    monkeypatch.setattr(kernels, "available", lambda: False)
    for one, other in zip(ours, rows_and_gradients(), strict=True):
        assert float((one - other).detach().abs().max()) < 1e-5 * max(1.0, float(other.detach().abs().max()))


@pytest.mark.skipif(not kernels.available(), reason="needs gcc")
def test_gates_far_below_zero_are_shut() -> None:
    """exp would overflow, which -ffast-math leaves undefined."""
    x, gate = torch.randn(4, kernels.DIM, requires_grad=True), torch.full((4, kernels.DIM), -300.0, requires_grad=True)
    rows = kernels.gated_norm(x, gate, torch.ones(kernels.DIM), 1e-6)
    rows.sum().backward()
    for found in (rows, x.grad, gate.grad):
        assert found is not None
        assert float(found.detach().abs().max()) < 1e-20


def test_rows_read_without_attention() -> None:
    """They do not see the attention layers; the rows beside them do."""
    model, ids = moved(TinyModel(SHAPE)), torch.tensor([prompt_of(SHAPE.vocab_size, 80)] * 2)
    with torch.no_grad():
        both, whole = model.hidden(ids, torch.tensor([0.0, 1.0])), model.hidden(ids)
        for layer in model.model.layers:
            if layer.self_attn is not None:
                layer.self_attn.o_proj.weight.zero_()
        without = model.hidden(ids)
    assert difference(both[0], without[0]) < 1e-5
    assert difference(both[1], whole[1]) < 1e-5
    assert difference(without[0], whole[0]) > 1e-2


def test_gradients_reach_every_weight_and_stay_finite_under_strong_decay() -> None:
    model = moved(TinyModel(SHAPE))
    with torch.no_grad():
        for layer in model.model.layers:
            if layer.linear_attn is not None:
                layer.linear_attn.A_log.fill_(6.0)
    model.logits(model.hidden(torch.tensor([prompt_of(SHAPE.vocab_size, 130)]))).logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name
