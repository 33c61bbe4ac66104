#pragma once
#include "../scan.h"
#include "address.h"

namespace milepost {

inline void bind_scan(nb::module_& m) {
    define(m, "selective_scan",
           [](Address x, Int x_stride, Address dt, Int dt_stride, Address a, Address b, Int b_stride, Address c, Int c_stride,
              Address state, Address window, Address out, Int channels, Int size, Address segments, Int num_segments) {
               const Scan scan{at<const float>(x), at<const float>(dt), at<const float>(a), at<const float>(b),
                               at<const float>(c), x_stride,            dt_stride,          b_stride,
                               c_stride,           at<float>(state),    at<float>(window),  at<float>(out),
                               channels,           size};
               selective_scan(scan, at<const Segment>(segments), num_segments);
           });
}

}  // namespace milepost
