// Functions of single values, on vectors: each lane's result depends on its own value alone, by the same operations.
//
// All are built on `exp`, are within a few units in the last place of the true value (tests measure it), have its limits for
// large arguments, and keep NaN. The coefficients are minimax fits (Remez) made for these ranges.
#pragma once
#include "simd.h"

namespace milepost {

inline vf sigmoid(vf x) { return 1.0f / (1.0f + exp(-x)); }

/// x * sigmoid(x) (Elfwing, Uchibe and Doya, 2017). At -infinity NaN, as in torch.
inline vf silu(vf x) { return x / (1.0f + exp(-x)); }

/// x / 2 * (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3) (Hendrycks and Gimpel, 2016); (1 + tanh(u)) / 2 is sigmoid(2 u),
/// which keeps its digits where tanh(u) is almost -1.
inline vf gelu_tanh(vf x) {
    const vf twice_u = x * fma(x * x, splat(0.0713548162726f), splat(1.5957691216057308f));
    return x / (1.0f + exp(-twice_u));
}

/// Near 0 an odd polynomial, which keeps small values' digits; beyond, 1 - 2 / (e^(2 |x|) + 1) with x's sign.
inline vf tanh(vf x) {
    const vf size = abs(x), square = x * x;
    vf p = splat(-0.00570497774979f);
    p = fma(p, square, splat(0.0206390778233f));
    p = fma(p, square, splat(-0.0537397117029f));
    p = fma(p, square, splat(0.133314421486f));
    p = fma(p, square, splat(-0.333332819396f));
    const vf near = fma(x * square, p, x);
    const vf far = 1.0f - 2.0f / (exp(size + size) + 1.0f);
    return as_float(as_bits(select(size < 0.625f, near, far)) | (as_bits(x) & 0x80000000u));
}

/// log(1 + e^x) = max(x, 0) + log(1 + y), y = e^-|x|; log(1 + y) = 2 artanh(s / 2), s = 2 y / (2 + y) <= 2/3: an odd polynomial.
inline vf softplus(vf x) {
    const vf y = exp(-abs(x)), s = (y + y) / (2.0f + y), square = s * s;
    vf p = splat(0.00054710916173f);
    p = fma(p, square, splat(0.00218764099691f));
    p = fma(p, square, splat(0.0125067272739f));
    p = fma(p, square, splat(0.083333020356f));
    return max(x, vf{}) + fma(s * square, p, s);
}

}  // namespace milepost
