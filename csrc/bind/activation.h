#pragma once
#include "../activation.h"
#include "address.h"

namespace milepost {

// RowPlaces come as three numbers: inner, outer stride, inner stride.

template <typename T, typename To = T, typename F>
void bind_function(nb::module_& m, const char* name, F f) {
    define(m, name, [f](Address x, Int inner, Int outer, Int step, Address out, Int rows, Int size) {
        each_value(at<const T>(x), {inner, outer, step}, at<To>(out), rows, size, f);
    });
}

/// `More`: what the kernel takes after the sizes.
template <typename T, typename... More>
using PairKernel = void (*)(const T*, RowPlaces, const T*, RowPlaces, T*, Int, Int, More...);

template <typename T, typename... More>
void bind_pair(nb::module_& m, const char* name, PairKernel<T, More...> kernel) {
    define(m, name,
           [kernel](Address x, Int x_inner, Int x_outer, Int x_step, Address y, Int y_inner, Int y_outer, Int y_step,
                    Address out, Int rows, Int size, More... more) {
               kernel(at<const T>(x), {x_inner, x_outer, x_step}, at<const T>(y), {y_inner, y_outer, y_step}, at<T>(out), rows,
                      size, more...);
           });
}

template <typename T>
void bind_soft_cap(nb::module_& m, const char* name) {
    define(m, name, [](Address x, Int inner, Int outer, Int step, Address out, Int rows, Int size, float cap) {
        soft_cap(at<const T>(x), {inner, outer, step}, at<T>(out), rows, size, cap);
    });
}

inline void bind_activation(nb::module_& m) {
    bind_function<float>(m, "silu_f32", [](vf x) { return silu(x); });
    bind_function<bf16>(m, "silu_bf16", [](vf x) { return silu(x); });
    bind_function<float>(m, "sigmoid_f32", [](vf x) { return sigmoid(x); });
    bind_function<bf16>(m, "sigmoid_bf16", [](vf x) { return sigmoid(x); });
    bind_function<float>(m, "softplus_f32", [](vf x) { return softplus(x); });
    bind_function<bf16>(m, "softplus_bf16", [](vf x) { return softplus(x); });
    bind_function<bf16, float>(m, "wide_bf16", [](vf x) { return x; });
    bind_soft_cap<float>(m, "soft_cap_f32");
    bind_soft_cap<bf16>(m, "soft_cap_bf16");
    bind_pair<float>(m, "silu_mul_f32", silu_mul<float>);
    bind_pair<bf16>(m, "silu_mul_bf16", silu_mul<bf16>);
    bind_pair<float>(m, "gelu_tanh_mul_f32", gelu_tanh_mul<float>);
    bind_pair<bf16>(m, "gelu_tanh_mul_bf16", gelu_tanh_mul<bf16>);
    bind_pair<float>(m, "sigmoid_mul_f32", sigmoid_mul<float>);
    bind_pair<bf16>(m, "sigmoid_mul_bf16", sigmoid_mul<bf16>);
    bind_pair<float>(m, "sigmoid_mul_rows_f32", sigmoid_mul_rows<float>);
    bind_pair<bf16>(m, "sigmoid_mul_rows_bf16", sigmoid_mul_rows<bf16>);
    bind_pair<float>(m, "add_f32", add<float>);
    bind_pair<bf16>(m, "add_bf16", add<bf16>);
    bind_pair<float>(m, "mul_f32", mul<float>);
    bind_pair<bf16>(m, "mul_bf16", mul<bf16>);
    bind_pair<float>(m, "mul_rows_f32", mul_rows<float>);
    bind_pair<bf16>(m, "mul_rows_bf16", mul_rows<bf16>);
}

}  // namespace milepost
