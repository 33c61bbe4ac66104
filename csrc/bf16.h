// bfloat16 as the upper half of a float; rounding to nearest, ties to even, NaN kept (as torch rounds).
#pragma once
#include <cstdint>
#include <cstring>

namespace milepost {

struct bf16 {
    std::uint16_t bits;
};

inline float widen(float value) { return value; }

inline float widen(bf16 value) {
    const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}

inline void narrow(float value, float& out) { out = value; }

inline void narrow(float value, bf16& out) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (value != value) {
        out.bits = 0x7fc0;
        return;
    }
    out.bits = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace milepost
