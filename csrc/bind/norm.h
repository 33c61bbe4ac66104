#pragma once
#include "../norm.h"
#include "address.h"

namespace milepost {

template <typename T>
void bind_norm_of(nb::module_& m, const char* rms_norm_name) {
    define(m, rms_norm_name, [](Address x, Address weight, Address out, Int rows, Int size, float eps) {
        rms_norm(at<const T>(x), at<const T>(weight), at<T>(out), rows, size, eps);
    });
}

inline void bind_norm(nb::module_& m) {
    bind_norm_of<float>(m, "rms_norm_f32");
    bind_norm_of<bf16>(m, "rms_norm_bf16");
}

}  // namespace milepost
