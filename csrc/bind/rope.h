#pragma once
#include "../rope.h"
#include "address.h"

namespace milepost {

template <typename T>
void bind_rope_of(nb::module_& m, const char* rotate_half_name) {
    define(m, rotate_half_name,
           [](Address x, Int x_row, Int x_head, Address cos, Address sin, Address out, Int rows, Int heads, Int dim, Int half) {
               rotate_half(at<const T>(x), x_row, x_head, at<const float>(cos), at<const float>(sin), at<T>(out), rows,
                           heads, dim, half);
           });
}

inline void bind_rope(nb::module_& m) {
    define(m, "rope_angles",
           [](Address positions, Address inv_freq, float factor, Address cos, Address sin, Int rows, Int size) {
               rope_angles(at<const Int>(positions), at<const float>(inv_freq), factor, at<float>(cos), at<float>(sin), rows,
                           size);
           });
    bind_rope_of<float>(m, "rotate_half_f32");
    bind_rope_of<bf16>(m, "rotate_half_bf16");
}

}  // namespace milepost
