#pragma once
#include "../norm.h"
#include "address.h"

namespace milepost {

/// RowPlaces come as three numbers: inner, outer stride, inner stride.
template <typename T>
void bind_norm_of(nb::module_& m, const char* rms_norm_name, const char* offset_rms_norm_name, const char* gated_rms_norm_name,
                  const char* l2_norm_name) {
    define(m, rms_norm_name,
           [](Address x, Int inner, Int outer, Int step, Address weight, Address out, Int rows, Int size, float eps) {
               rms_norm(at<const T>(x), {inner, outer, step}, at<const T>(weight), at<T>(out), rows, size, eps);
           });
    define(m, offset_rms_norm_name,
           [](Address x, Int inner, Int outer, Int step, Address weight, Address out, Int rows, Int size, float eps) {
               offset_rms_norm(at<const T>(x), {inner, outer, step}, at<const T>(weight), at<T>(out), rows, size, eps);
           });
    define(m, gated_rms_norm_name,
           [](Address x, Int inner, Int outer, Int step, Address gate, Int gate_inner, Int gate_outer, Int gate_step,
              Address weight, Address out, Int rows, Int size, float eps) {
               gated_rms_norm(at<const float>(x), {inner, outer, step}, at<const T>(gate), {gate_inner, gate_outer, gate_step},
                              at<const T>(weight), at<T>(out), rows, size, eps);
           });
    define(m, l2_norm_name, [](Address x, Int inner, Int outer, Int step, Address out, Int rows, Int size, float eps) {
        l2_norm(at<const T>(x), {inner, outer, step}, at<T>(out), rows, size, eps);
    });
}

inline void bind_norm(nb::module_& m) {
    bind_norm_of<float>(m, "rms_norm_f32", "offset_rms_norm_f32", "gated_rms_norm_f32", "l2_norm_f32");
    bind_norm_of<bf16>(m, "rms_norm_bf16", "offset_rms_norm_bf16", "gated_rms_norm_bf16", "l2_norm_bf16");
}

}  // namespace milepost
