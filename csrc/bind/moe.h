#pragma once
#include "../moe.h"
#include "address.h"

namespace milepost {

template <typename T>
void bind_moe_of(nb::module_& m, const char* route_name, const char* grouped_linear_name, const char* weighted_sum_name) {
    define(m, route_name,
           [](Address logits, Address ids, Address weights, Int rows, Int experts, Int chosen, bool among_chosen) {
               route(at<const T>(logits), at<Int>(ids), at<float>(weights), rows, experts, chosen, among_chosen);
           });
    define(m, grouped_linear_name,
           [](Address x, Int x_stride, Address packed, Address starts, Address out, Int experts, Int inputs, Int outputs) {
               grouped_linear(at<const T>(x), x_stride, at<const T>(packed), at<const Int>(starts), at<T>(out), experts, inputs,
                              outputs);
           });
    define(m, weighted_sum_name, [](Address made, Address places, Address weights, Address out, Int rows, Int count, Int size) {
        weighted_sum(at<const T>(made), at<const Int>(places), at<const float>(weights), at<T>(out), rows, count, size);
    });
}

inline void bind_moe(nb::module_& m) {
    bind_moe_of<float>(m, "route_f32", "grouped_linear_f32", "weighted_sum_f32");
    bind_moe_of<bf16>(m, "route_bf16", "grouped_linear_bf16", "weighted_sum_bf16");
}

}  // namespace milepost
