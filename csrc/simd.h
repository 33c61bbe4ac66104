// Vectors of W floats for the instruction set that this module is compiled for, and what the kernels do with them.
//
// One source serves all sets: W lanes, the same operations in the same order in each. Bits may differ between two sets
// (their lanes and fused products differ), never within one. Sums are written with explicit lanes; the compiler may not
// reorder or fuse them (-ffp-contract=off).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "bf16.h"

#if defined(MILEPOST_AVX512BF16) || defined(MILEPOST_AVX512) || defined(MILEPOST_AVX2)
#include <immintrin.h>
#endif

namespace milepost {

#if defined(MILEPOST_AVX512BF16) || defined(MILEPOST_AVX512)
inline constexpr int W = 16;
#elif defined(MILEPOST_AVX2)
inline constexpr int W = 8;
#else
inline constexpr int W = 4;
#endif

typedef float vf __attribute__((vector_size(4 * W)));
typedef std::int32_t vi __attribute__((vector_size(4 * W)));
typedef std::uint32_t vu __attribute__((vector_size(4 * W)));
typedef std::uint16_t vh __attribute__((vector_size(2 * W)));

inline vf splat(float x) { return x - vf{}; }  // not vf{} + x: that would turn -0 into 0
inline vf as_float(vu x) { return reinterpret_cast<vf>(x); }
inline vu as_bits(vf x) { return reinterpret_cast<vu>(x); }

/// a * b + c: rounded once where the set has fused products, twice where it has none.
inline vf fma(vf a, vf b, vf c) {
#if defined(MILEPOST_AVX512BF16) || defined(MILEPOST_AVX512)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(MILEPOST_AVX2)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/// The same for one value, with the same rounding.
inline float fma(float a, float b, float c) {
#if defined(MILEPOST_AVX512BF16) || defined(MILEPOST_AVX512) || defined(MILEPOST_AVX2)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/// yes where the mask is set, no elsewhere; masks are all ones or all zeros, as comparisons make them.
inline vf select(vi mask, vf yes, vf no) {
    const vu m = reinterpret_cast<vu>(mask);
    return as_float((as_bits(yes) & m) | (as_bits(no) & ~m));
}

/// a > b ? a : b: b where either is NaN.
inline vf max(vf a, vf b) {
#if defined(MILEPOST_AVX512BF16) || defined(MILEPOST_AVX512)
    return (vf)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(MILEPOST_AVX2)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return select(a > b, a, b);
#endif
}

/// a < b ? a : b: b where either is NaN.
inline vf min(vf a, vf b) {
#if defined(MILEPOST_AVX512BF16) || defined(MILEPOST_AVX512)
    return (vf)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(MILEPOST_AVX2)
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return select(a < b, a, b);
#endif
}

inline vf abs(vf a) { return as_float(as_bits(a) & 0x7fffffffu); }

/// The nearest bf16 values, ties to even; NaN stays NaN.
inline vh halves(vf v) {
#if defined(MILEPOST_AVX512BF16)
    return (vh)_mm512_cvtneps_pbh((__m512)v);
#else
    const vu bits = as_bits(v), rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const vu nan = reinterpret_cast<vu>(v != v);
    return __builtin_convertvector((rounded & ~nan) | (nan & 0x7fc0u), vh);
#endif
}

inline vf widened(vh v) {
#if defined(MILEPOST_AVX512BF16) || defined(MILEPOST_AVX512)
    return as_float((vu)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)v) << 16);  // one instruction, below four
#else
    return as_float(__builtin_convertvector(v, vu) << 16);
#endif
}

// Loads and stores need no alignment. Those of n < W values read and write nothing beyond them; lanes from n on are 0.

inline vf load(const float* p) {
    vf v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline vf load(const bf16* p) {
    vh v;
    std::memcpy(&v, p, sizeof v);
    return widened(v);
}

inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }

inline void store(bf16* p, vf v) {
    const vh half = halves(v);
    std::memcpy(p, &half, sizeof half);
}

template <typename T>
vf load_n(const T* p, std::int64_t n) {
    T lanes[W] = {};
    std::memcpy(lanes, p, n * sizeof(T));
    return load(lanes);
}

template <typename T>
void store_n(T* p, vf v, std::int64_t n) {
    T lanes[W];
    store(lanes, v);
    std::memcpy(p, lanes, n * sizeof(T));
}

/// What a value is once it has been stored as T.
inline vf rounded_to(vf v, const float*) { return v; }
inline vf rounded_to(vf v, const bf16*) { return widened(halves(v)); }

/// Calls f(i, n) for runs of at most W of `size` values: the tail gets fewer lanes, not other arithmetic.
template <typename F>
void for_lanes(std::int64_t size, F f) {
    std::int64_t i = 0;
    for (; i + W <= size; i += W) f(i, static_cast<std::int64_t>(W));
    if (i < size) f(i, size - i);
}

template <typename T>
vf load_upto(const T* p, std::int64_t n) {
    return n == W ? load(p) : load_n(p, n);
}

template <typename T>
void store_upto(T* p, vf v, std::int64_t n) {
    if (n == W)
        store(p, v);
    else
        store_n(p, v, n);
}

/// Lanes LANE of a and b, b's numbered from W on.
template <int... LANE, typename V>
V shuffled(V a, V b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, LANE...);
#else
    return __builtin_shuffle(a, b, vi{LANE...});
#endif
}

/// a0 b0 a1 b1 ... of the lanes from FIRST on.
template <int FIRST, int... J, typename V>
V interleaved(V a, V b, std::integer_sequence<int, J...>) {
    return shuffled<(FIRST + J / 2 + J % 2 * W)...>(a, b);
}

/// Lane j of vector i becomes lane i of vector j. Each round deals the two halves of the vectors into one another.
template <typename V>
void transpose(V (&tile)[W]) {
    constexpr auto lanes = std::make_integer_sequence<int, W>();
    for (int done = 1; done < W; done *= 2) {
        V next[W];
        for (int i = 0; i < W / 2; ++i) {
            next[2 * i] = interleaved<0>(tile[i], tile[i + W / 2], lanes);
            next[2 * i + 1] = interleaved<W / 2>(tile[i], tile[i + W / 2], lanes);
        }
        std::memcpy(tile, next, sizeof tile);
    }
}

/// The sum of the lanes, halves folded onto each other: one order.
inline float sum(vf v) {
    float lane[W];
    store(lane, v);
    for (int width = W / 2; width > 0; width /= 2)
        for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
    return lane[0];
}

inline float largest(vf v) {
#if defined(MILEPOST_AVX512BF16) || defined(MILEPOST_AVX512) || defined(MILEPOST_AVX2)
#if defined(MILEPOST_AVX2)
    const __m256 half = (__m256)v;
#else
    const __m256 half = _mm256_max_ps(_mm512_castps512_ps256((__m512)v), _mm512_maskz_extractf32x8_ps(0xff, (__m512)v, 1));
#endif
    __m128 top = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    top = _mm_max_ps(top, _mm_movehl_ps(top, top));
    return _mm_cvtss_f32(_mm_max_ss(top, _mm_movehdup_ps(top)));
#else
    float lane[W];
    store(lane, v);
    float top = lane[0];
    for (int j = 1; j < W; ++j) top = lane[j] > top ? lane[j] : top;
    return top;
#endif
}

/// p * 2^n for the polynomial below: n = shifted - 1.5 * 2^23, an integer.
inline vf scaled(vf p, vf shifted) {
#if defined(MILEPOST_AVX512BF16) || defined(MILEPOST_AVX512)
    return (vf)_mm512_maskz_scalef_ps(0xffff, (__m512)p, (__m512)(shifted - 12582912.0f));
#else
    const vi whole = reinterpret_cast<vi>(as_bits(shifted)) - 0x4b400000;
    // two factors: 2^128 alone would not fit
    const vi half = whole >> 1;
    return p * as_float(reinterpret_cast<vu>((half + 127) << 23)) * as_float(reinterpret_cast<vu>((whole - half + 127) << 23));
#endif
}

/// e^x within 2 units in the last place: x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial of degree 7 in r, times 2^n. Results
/// below the smallest normal number are 0; NaN stays NaN.
inline vf exp(vf x) {
    const vf near = min(splat(89.0f), max(splat(-104.0f), x));  // beyond, 0 or infinity; NaN passes
    const vf shifted = fma(near, splat(1.44269504088896341f), splat(12582912.0f));  // 1.5 * 2^23: rounds to an integer
    const vf n = shifted - 12582912.0f;
    vf r = fma(n, splat(-0.693145751953125f), near);
    r = fma(n, splat(-1.42860682030941723e-6f), r);
    vf p = splat(1.0f / 5040);
    p = fma(p, r, splat(1.0f / 720));
    p = fma(p, r, splat(1.0f / 120));
    p = fma(p, r, splat(1.0f / 24));
    p = fma(p, r, splat(1.0f / 6));
    p = fma(p, r, splat(0.5f));
    p = fma(p, r, splat(1.0f));
    p = fma(p, r, splat(1.0f));
    return scaled(p, shifted);
}

/// 2^x for x <= 0, within 3 units in the last place, 1 at 0; below 2^-126 it may be 0, and at -infinity it is. NaN stays NaN.
/// Coefficients as in functions.h, with a first one of 1.
inline vf exp2(vf x) {
    const vf near = max(splat(-160.0f), x);  // NaN passes
    const vf shifted = near + 12582912.0f;  // as above
    const vf r = near - (shifted - 12582912.0f);
    vf p = splat(0.00132647273f);
    p = fma(p, r, splat(0.00967151299f));
    p = fma(p, r, splat(0.0555073358f));
    p = fma(p, r, splat(0.240222424f));
    p = fma(p, r, splat(0.693147004f));
    p = fma(p, r, splat(1.0f));
    return scaled(p, shifted);
}

}  // namespace milepost
