// Rotary position embedding: angles of positions, and heads turned by them.
#pragma once
#include "rows.h"
#include "simd.h"

namespace milepost {

// Half as many lanes of double as there are of float.
inline constexpr int HALF_W = W / 2;
typedef double vd __attribute__((vector_size(8 * HALF_W)));
typedef std::uint64_t vl __attribute__((vector_size(8 * HALF_W)));
typedef float vf_half __attribute__((vector_size(4 * HALF_W)));

inline vl as_bits(vd x) { return reinterpret_cast<vl>(x); }

/// cos and sin of angles, computed in double: the angle less the nearest multiple of pi / 2 (in two parts, the upper of 33
/// bits, so that its products are exact), then Taylor's series up to the 14th power. Within 1e-15 for angles up to a million.
inline void turn(vd angle, vd& cosine, vd& sine) {
    const vd shifted = angle * 0.63661977236758134308 + 6755399441055744.0;  // 1.5 * 2^52: rounds to an integer
    const vd n = shifted - 6755399441055744.0;
    const vd r = angle - n * 1.57079632673412561417 - n * 6.07710050650619224932e-11, z = r * r;
    vd s = z * (1.0 / 6227020800.0) - 1.0 / 39916800.0;
    s = s * z + 1.0 / 362880.0;
    s = s * z - 1.0 / 5040.0;
    s = s * z + 1.0 / 120.0;
    s = s * z - 1.0 / 6.0;
    s = s * z * r + r;
    vd c = z * (-1.0 / 87178291200.0) + 1.0 / 479001600.0;
    c = c * z - 1.0 / 3628800.0;
    c = c * z + 1.0 / 40320.0;
    c = c * z - 1.0 / 720.0;
    c = c * z + 1.0 / 24.0;
    c = c * z - 0.5;
    c = c * z + 1.0;
    // the last two bits of n: how many quarter turns were taken off
    const vl quarter = as_bits(shifted), odd = 0 - (quarter & 1), differ = (as_bits(s) ^ as_bits(c)) & odd;
    cosine = reinterpret_cast<vd>((as_bits(c) ^ differ) ^ ((quarter + 1) & 2) << 62);
    sine = reinterpret_cast<vd>((as_bits(s) ^ differ) ^ (quarter & 2) << 62);
}

/// `bytes` of one V, usually all.
template <typename V>
void copy_upto(void* to, const void* from, std::size_t bytes) {
    if (bytes == sizeof(V))
        std::memcpy(to, from, sizeof(V));
    else
        std::memcpy(to, from, bytes);
}

/// cos and sin [rows, size] of position * inv_freq [size], times `factor`. The angle is an fp32 product, as in the models'
/// training; its cosine and sine are rounded to fp32 once.
inline void rope_angles(const std::int64_t* positions, const float* inv_freq, float factor, float* cos, float* sin,
                        std::int64_t rows, std::int64_t size) {
    for_rows(rows, size, [&](std::int64_t r) {
        const float position = static_cast<float>(positions[r]);
        for (std::int64_t i = 0; i < size; i += HALF_W) {
            const std::size_t bytes = (size - i < HALF_W ? size - i : HALF_W) * sizeof(float);
            vf_half angle = {};
            copy_upto<vf_half>(&angle, inv_freq + i, bytes);
            vd cosine, sine;
            turn(__builtin_convertvector(position * angle, vd), cosine, sine);
            const vf_half c = __builtin_convertvector(cosine, vf_half) * factor;
            const vf_half s = __builtin_convertvector(sine, vf_half) * factor;
            copy_upto<vf_half>(cos + r * size + i, &c, bytes);
            copy_upto<vf_half>(sin + r * size + i, &s, bytes);
        }
    });
}

/// Turns pairs (i, i + half) of each head's values by the row's angles cos, sin [rows, half]; values beyond 2 half pass.
/// x [rows, heads, dim], rows x_row and heads x_head values apart; out [rows, heads, dim]. No fused products: the reference
/// has none, and the bits are the same.
template <typename T>
void rotate_half(const T* x, std::int64_t x_row, std::int64_t x_head, const float* cos, const float* sin, T* out,
                 std::int64_t rows, std::int64_t heads, std::int64_t dim, std::int64_t half) {
    for_rows(rows, heads * dim, [&](std::int64_t r) {
        for (std::int64_t h = 0; h < heads; ++h) {
            const T* from = x + r * x_row + h * x_head;
            T* to = out + (r * heads + h) * dim;
            for_lanes(half, [&](std::int64_t i, std::int64_t n) {
                const vf first = load_upto(from + i, n), second = load_upto(from + half + i, n);
                const vf c = load_upto(cos + r * half + i, n), s = load_upto(sin + r * half + i, n);
                store_upto(to + i, first * c - second * s, n);
                store_upto(to + half + i, second * c + first * s, n);
            });
            std::memcpy(to + 2 * half, from + 2 * half, (dim - 2 * half) * sizeof(T));
        }
    });
}

}  // namespace milepost
