#pragma once
#include "../recurrence.h"
#include "address.h"

namespace milepost {

template <bool DELTA>
void bind_recurrence_of(nb::module_& m, const char* name) {
    define(m, name,
           [](Address q, Int q_stride, Address k, Int k_stride, Address u, Int u_stride, Address log_g, Int log_g_stride,
              Address beta, Int beta_stride, Address state, Address window_k, Address window_u, Address window_log_g,
              Address carried, Address out, Address segments, Int num_segments, Address dots, Address active, Int heads,
              Int groups, Int k_size, Int v_size) {
               using recurrence::Rows;
               recurrence::Call call{};
               call.heads = heads, call.groups = groups, call.k_size = k_size, call.v_size = v_size;
               call.q = Rows{at<const float>(q), q_stride}, call.k = Rows{at<const float>(k), k_stride};
               call.u = Rows{at<const float>(u), u_stride}, call.log_g = Rows{at<const float>(log_g), log_g_stride};
               call.beta = Rows{at<const float>(beta), beta_stride};
               call.state = at<float>(state), call.carried = at<float>(carried), call.out = at<float>(out);
               call.window_k = at<float>(window_k), call.window_u = at<float>(window_u);
               call.window_log_g = at<float>(window_log_g);
               call.segments = at<const Segment>(segments), call.num_segments = num_segments;
               call.dots = at<float>(dots), call.active = at<recurrence::Active>(active);
               recurrence::run<DELTA>(call);
           });
}

inline void bind_recurrence(nb::module_& m) {
    bind_recurrence_of<false>(m, "mamba2");
    bind_recurrence_of<true>(m, "gated_delta");
}

}  // namespace milepost
