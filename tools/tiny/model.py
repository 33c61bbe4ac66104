"""The model as it is trained: plain torch with autograd, whole sequences, every name as in a `qwen3_5_text` checkpoint.

What it computes is what `milepost.models.qwen3_5` and transformers' Qwen3_5ForCausalLM compute.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tools.tiny import kernels
from tools.tiny.delta import gated_delta

LINEAR, FULL = "linear_attention", "full_attention"


@dataclass(frozen=True)
class Shape:
    """Sizes. The layers numbered in `attention` are attention; the others are the gated delta rule, with as many key
    heads as value heads."""

    vocab_size: int = 1280
    hidden_size: int = 256
    intermediate_size: int = 512
    num_layers: int = 4
    attention: tuple[int, ...] = (2,)
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 48
    rotated: float = 0.5
    delta_heads: int = 4
    key_dim: int = 64
    value_dim: int = 64
    conv_taps: int = 4
    eps: float = 1e-6
    rope_theta: float = 10_000.0
    max_length: int = 4096

    @property
    def layer_types(self) -> list[str]:
        return [FULL if i in self.attention else LINEAR for i in range(self.num_layers)]

    @property
    def conv_width(self) -> int:
        return self.delta_heads * (2 * self.key_dim + self.value_dim)

    @property
    def fits_kernels(self) -> bool:
        return self.key_dim == self.value_dim == kernels.DIM and self.conv_taps == kernels.TAPS

    def config(self, eos: int, pad: int) -> dict[str, Any]:
        """The checkpoint's `config.json`."""
        return {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "layer_types": self.layer_types,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "linear_num_key_heads": self.delta_heads,
            "linear_num_value_heads": self.delta_heads,
            "linear_key_head_dim": self.key_dim,
            "linear_value_head_dim": self.value_dim,
            "linear_conv_kernel_dim": self.conv_taps,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.rope_theta,
                "partial_rotary_factor": self.rotated,
            },
            "rms_norm_eps": self.eps,
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": True,
            "max_position_embeddings": self.max_length,
            "bos_token_id": None,
            "eos_token_id": eos,
            "pad_token_id": pad,
            "dtype": "bfloat16",
        }

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class OffsetRMSNorm(nn.Module):
    """`weight` [size], stored as its distance from 1."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(size)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], 1 + self.weight, self.eps)


class GatedRMSNorm(nn.Module):
    """`weight` [size], then a gate through silu."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], self.weight, self.eps) * F.silu(gate)


class GatedDelta(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, size, heads = shape, shape.hidden_size, shape.delta_heads
        self.in_proj_qkv = nn.Linear(size, shape.conv_width, bias=False)
        self.in_proj_z = nn.Linear(size, heads * shape.value_dim, bias=False)
        self.in_proj_b = nn.Linear(size, heads, bias=False)
        self.in_proj_a = nn.Linear(size, heads, bias=False)
        self.conv1d = nn.Conv1d(
            shape.conv_width, shape.conv_width, shape.conv_taps, groups=shape.conv_width, bias=False
        )
        # Half-lives from a few tokens to thousands: step = softplus(dt_bias), log-uniform; A = 1.
        steps = torch.exp(torch.linspace(math.log(1e-5), math.log(0.03), heads))
        self.dt_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.norm = GatedRMSNorm(shape.value_dim, shape.eps)
        self.out_proj = nn.Linear(heads * shape.value_dim, size, bias=False)

    @torch.no_grad()
    def start_copying(self, scale: float) -> None:
        """From the start, what is read of a state is near the row that was written: the output matrix is the inverse of
        the values' part of the input matrix, times `scale`. Only keys are then left to be found, for any value."""
        width = self.shape.delta_heads * self.shape.value_dim
        values = self.in_proj_qkv.weight[-width:]
        nn.init.orthogonal_(values)
        self.out_proj.weight.copy_(scale * values.t())
        taps = self.conv1d.weight[-width:, 0]
        taps.zero_()
        taps[:, -1] = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, tokens, hidden_size]; returns the same."""
        s, (batch, tokens, _) = self.shape, x.shape
        inputs = (self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a)
        sizes = [layer.out_features for layer in inputs]
        mixed, gate, rates, steps = F.linear(x, torch.cat([layer.weight for layer in inputs])).split(sizes, -1)
        g, beta = -self.A_log.exp() * F.softplus(steps.float() + self.dt_bias), rates.float().sigmoid()
        gate = gate.reshape(batch, tokens, s.delta_heads, s.value_dim)
        if s.fits_kernels and kernels.available():
            out = kernels.delta(kernels.conv_silu(mixed, self.conv1d.weight), g, beta)
            out = kernels.gated_norm(out, gate, self.norm.weight, s.eps)
        else:
            out = self.norm(self._by_torch(mixed, g, beta), gate)
        return self.out_proj(_narrow(out).reshape(batch, tokens, -1))

    def _by_torch(self, mixed: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        """mixed [batch, tokens, conv_width], g and beta [batch, tokens, heads]; returns [batch, tokens, heads,
        value_dim]."""
        s, (batch, tokens, _) = self.shape, mixed.shape
        padded = F.pad(mixed.transpose(1, 2), (s.conv_taps - 1, 0))
        mixed = F.silu(F.conv1d(padded, self.conv1d.weight, groups=s.conv_width))
        q, k, v = (
            part.reshape(batch, s.delta_heads, -1, tokens).transpose(2, 3).float()
            for part in torch.split(mixed, [s.delta_heads * dim for dim in (s.key_dim, s.key_dim, s.value_dim)], 1)
        )
        out = gated_delta(_unit(q) * s.key_dim**-0.5, _unit(k), v, g.transpose(1, 2), beta.transpose(1, 2))
        return out.transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, size, dim = shape, shape.hidden_size, shape.head_dim
        self.q_proj = nn.Linear(size, 2 * shape.num_heads * dim, bias=False)
        self.k_proj = nn.Linear(size, shape.num_kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(size, shape.num_kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(shape.num_heads * dim, size, bias=False)
        self.q_norm, self.k_norm = OffsetRMSNorm(dim, shape.eps), OffsetRMSNorm(dim, shape.eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, tokens, hidden_size]; returns the same."""
        s, (batch, tokens, _) = self.shape, x.shape
        q, gate = self.q_proj(x).reshape(batch, tokens, s.num_heads, -1).chunk(2, -1)
        k, v = (project(x).reshape(batch, tokens, s.num_kv_heads, -1) for project in (self.k_proj, self.v_proj))
        q, k = (self._rotated(norm(part)).transpose(1, 2) for norm, part in ((self.q_norm, q), (self.k_norm, k)))
        k, v = (part.repeat_interleave(s.num_heads // s.num_kv_heads, 1) for part in (k, v.transpose(1, 2)))
        out = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        return self.o_proj((out.transpose(1, 2) * gate.sigmoid()).reshape(batch, tokens, -1))

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, tokens, heads, head_dim]: the first part of each head, by halves."""
        width = int(self.shape.head_dim * self.shape.rotated)
        frequencies = self.shape.rope_theta ** -(torch.arange(0, width, 2, device=x.device) / width)
        angles = torch.outer(torch.arange(x.shape[1], device=x.device), frequencies).unsqueeze(1)
        first, second, rest = torch.split(x, [width // 2, width // 2, self.shape.head_dim - width], -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


class GatedMLP(nn.Module):
    def __init__(self, size: int, inner_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, inner_size, bias=False)
        self.up_proj = nn.Linear(size, inner_size, bias=False)
        self.down_proj = nn.Linear(inner_size, size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(x, torch.cat([self.gate_proj.weight, self.up_proj.weight])).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, shape: Shape, kind: str) -> None:
        super().__init__()
        self.input_layernorm = OffsetRMSNorm(shape.hidden_size, shape.eps)
        self.linear_attn = GatedDelta(shape) if kind == LINEAR else None
        self.self_attn = Attention(shape) if kind == FULL else None
        self.post_attention_layernorm = OffsetRMSNorm(shape.hidden_size, shape.eps)
        self.mlp = GatedMLP(shape.hidden_size, shape.intermediate_size)

    def forward(self, x: torch.Tensor, attends: torch.Tensor | None = None) -> torch.Tensor:
        """x [batch, tokens, hidden_size]; returns the same. `attends`: as in `TinyModel.hidden`."""
        normed = _narrow(self.input_layernorm(x))
        if self.linear_attn is not None:
            x = x + self.linear_attn(normed)
        if self.self_attn is not None and (attends is None or attends.any()):
            mixed = self.self_attn(normed)
            x = x + (mixed if attends is None else mixed * attends[:, None, None])
        return x + self.mlp(_narrow(self.post_attention_layernorm(x)))


class Decoder(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape, kind) for kind in shape.layer_types)
        self.norm = OffsetRMSNorm(shape.hidden_size, shape.eps)


class TinyModel(nn.Module):
    """The head is the embedding: the checkpoint has one of the two."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.shape, self.model = shape, Decoder(shape)
        self._start()

    def hidden(self, token_ids: torch.Tensor, attends: torch.Tensor | None = None) -> torch.Tensor:
        """token_ids [batch, tokens]; returns the last norm's rows [batch, tokens, hidden_size].

        `attends` fp32 [batch]: 0 for the rows whose attention layers add nothing, so that only states remember; 1 for
        the others. None: 1 for all, which is the model of the checkpoint.
        """
        x = self.model.embed_tokens(token_ids)
        for layer in self.model.layers:
            x = layer(x, attends)
        return self.model.norm(x)

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """rows [..., hidden_size] of `hidden`; returns fp32 [..., vocab_size]."""
        return F.linear(rows, self.model.embed_tokens.weight.to(rows.dtype)).float()

    @torch.no_grad()
    def _start(self) -> None:
        """Matrices at a deviation of 1 / sqrt(inputs); those that add to the rows smaller, by the number of layers."""
        for name, weight in self.named_parameters():
            if weight.ndim < 2:
                continue
            deviation = 0.02 if "embed_tokens" in name else weight[0].numel() ** -0.5
            if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")):
                deviation *= (2 * self.shape.num_layers) ** -0.5
            # Attention begins with nothing to say: states learn to remember before it does.
            weight.normal_(0, 0.0 if name.endswith(".o_proj.weight") else deviation)
        for module in self.modules():
            if isinstance(module, GatedDelta):
                module.start_copying((2 * self.shape.num_layers) ** -0.5)


def _narrow(x: torch.Tensor) -> torch.Tensor:
    """In autocast's type where that is on: once, not once for each product."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Each row at length 1."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
