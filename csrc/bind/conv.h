#pragma once
#include "../conv.h"
#include "address.h"

namespace milepost {

template <typename T, bool SILU>
void bind_conv_of(nb::module_& m, const char* name) {
    define(m, name,
           [](Address x, Int x_stride, Address weight, Address bias, Address state, Address window, Address out, Int channels,
              Int taps, Address segments, Int num_segments) {
               using Kernel = Conv<T, SILU>;
               const Kernel conv{at<const T>(x), x_stride,  at<const T>(weight), at<const T>(bias),
                                 at<T>(state),   at<T>(window), at<typename Kernel::Out>(out), channels, taps};
               causal_conv(conv, at<const Segment>(segments), num_segments);
           });
}

inline void bind_conv(nb::module_& m) {
    bind_conv_of<float, false>(m, "causal_conv_f32");
    bind_conv_of<bf16, false>(m, "causal_conv_bf16");
    bind_conv_of<float, true>(m, "causal_conv_silu_f32");
    bind_conv_of<bf16, true>(m, "causal_conv_silu_bf16");
}

}  // namespace milepost
