#pragma once
#include "../gemm.h"
#include "address.h"

namespace milepost {

template <typename T>
void bind_gemm_of(nb::module_& m, const char* linear_name, const char* pack_name, const char* unpack_rows_name) {
    define(m, linear_name,
           [](Address x, Int x_stride, Address packed, Address bias, Address out, Int rows, Int inputs, Int outputs) {
               linear(at<const T>(x), x_stride, at<const T>(packed), at<const T>(bias), at<T>(out), rows, inputs, outputs);
           });
    define(m, pack_name, [](Address w, Address packed, Int inputs, Int outputs) {
        pack(at<const T>(w), at<T>(packed), inputs, outputs);
    });
    define(m, unpack_rows_name, [](Address packed, Address ids, Address out, Int count, Int inputs) {
        unpack_rows(at<const T>(packed), at<const Int>(ids), at<T>(out), count, inputs);
    });
}

inline void bind_gemm(nb::module_& m) {
    bind_gemm_of<float>(m, "linear_f32", "pack_f32", "unpack_rows_f32");
    bind_gemm_of<bf16>(m, "linear_bf16", "pack_bf16", "unpack_rows_bf16");
}

}  // namespace milepost
