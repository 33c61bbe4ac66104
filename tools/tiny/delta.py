"""The gated delta rule over whole sequences with autograd, chunk by chunk in matrix products.

S_t = exp(g_t) S_{t-1} + k_t u_t',  u_t = beta_t (v_t - exp(g_t) S_{t-1}' k_t),  out_t = S_t' q_t
(Yang, Kautz and Hatamizadeh, 2024). Within a chunk the u solve a triangular system; between chunks goes the state.
This is for training: fast, not bit-exact against the engine's op.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

CHUNK = 32
"""The fastest on a CPU of 16, 32 and 64."""


def gated_delta(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, chunk: int = CHUNK
) -> torch.Tensor:
    """q, k [batch, heads, tokens, key_dim], v [batch, heads, tokens, value_dim], g (log decays, <= 0) and beta
    [batch, heads, tokens], all fp32; returns [batch, heads, tokens, value_dim]. States start at 0."""
    batch, heads, tokens, _ = q.shape
    missing = -tokens % chunk
    q, k, v = (_in_chunks(F.pad(x, (0, 0, 0, missing)), chunk) for x in (q, k, v))
    g, beta = (F.pad(x, (0, missing)).reshape(batch * heads, -1, chunk) for x in (g, beta))
    total = g.cumsum(-1)
    # The upper triangle's exponents are positive and may overflow: they are masked before exp, not after.
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(1)
    decay = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(later, float("-inf")).exp()
    from_start, to_end = total.exp().unsqueeze(-1), (total[..., -1:] - total).exp().unsqueeze(-1)
    scaled = beta.unsqueeze(-1) * k
    system = scaled @ k.transpose(-1, -2) * decay
    wanted = torch.cat([beta.unsqueeze(-1) * v, scaled * from_start], -1)
    solved = torch.linalg.solve_triangular(system.tril(-1), wanted, upper=False, unitriangular=True)
    u_alone, u_of_state = solved.split([v.shape[-1], k.shape[-1]], -1)
    with torch.autocast(q.device.type, enabled=False):  # states are fp32 whatever the products around them are
        states, u = _scan(u_alone, u_of_state, (k * to_end).transpose(-1, -2), total[..., -1].exp())
    out = (q * from_start) @ states + (q @ k.transpose(-1, -2) * decay) @ u
    return out.reshape(batch, heads, tokens + missing, -1)[:, :, :tokens]


def _scan(
    u_alone: torch.Tensor, u_of_state: torch.Tensor, keys: torch.Tensor, decay: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The states before each chunk [rows, chunks, key_dim, value_dim], and all u [rows, chunks, chunk, value_dim]."""
    rows, chunks, key_dim = keys.shape[:3]
    state = keys.new_zeros(rows, key_dim, u_alone.shape[-1])
    states, all_u = [], []
    parts = (x.unbind(1) for x in (u_alone, u_of_state, keys, decay.reshape(rows, chunks, 1, 1)))
    for alone, of_state, key, kept in zip(*parts, strict=True):
        states.append(state)
        all_u.append(torch.baddbmm(alone, of_state, state, alpha=-1))
        state = torch.baddbmm(state * kept, key, all_u[-1])
    return torch.stack(states, 1), torch.stack(all_u, 1)


def _in_chunks(x: torch.Tensor, chunk: int) -> torch.Tensor:
    batch, heads, tokens, width = x.shape
    return x.reshape(batch * heads, tokens // chunk, chunk, width)
