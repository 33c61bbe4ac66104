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
    define(m, l2_norm_name,
           [](Address x, Int inner, Int outer, Int step, Address out, Int rows, Int size, float eps, float factor) {
        l2_norm(at<const T>(x), {inner, outer, step}, at<T>(out), rows, size, eps, factor);
    });
}

template <typename T>
void bind_scan_output(nb::module_& m, const char* name) {
    define(m, name,
           [](Address y, Address x, Int x_inner, Int x_outer, Int x_step, Address skip, Address gate, Int gate_inner,
              Int gate_outer, Int gate_step, Address weight, Address out, Int rows, Int size, Int groups, float eps,
              bool gate_first) {
               scan_output(ScanOutput<T>{at<const float>(y),
                                         at<const float>(x),
                                         {x_inner, x_outer, x_step},
                                         at<const float>(skip),
                                         at<const T>(gate),
                                         {gate_inner, gate_outer, gate_step},
                                         at<const T>(weight),
                                         at<T>(out),
                                         rows,
                                         size,
                                         groups,
                                         eps,
                                         gate_first});
           });
}

inline void bind_norm(nb::module_& m) {
    bind_scan_output<float>(m, "scan_output_f32");
    bind_scan_output<bf16>(m, "scan_output_bf16");
    bind_norm_of<float>(m, "rms_norm_f32", "offset_rms_norm_f32", "gated_rms_norm_f32", "l2_norm_f32");
    bind_norm_of<bf16>(m, "rms_norm_bf16", "offset_rms_norm_bf16", "gated_rms_norm_bf16", "l2_norm_bf16");
}

}  // namespace milepost
