// Milepost's CPU kernels. Arguments are addresses: the Python side owns shapes, dtypes and lifetimes.
#include <nanobind/nanobind.h>
#include <omp.h>

#include <cstdint>

#include "rms_norm.h"

namespace nb = nanobind;

NB_MODULE(_kernels, m) {
    m.def("num_threads", [] { return omp_get_max_threads(); });
    m.def("rms_norm_f32", [](std::uintptr_t x, std::uintptr_t w, std::uintptr_t out, std::int64_t rows, std::int64_t size, float eps) {
        nb::gil_scoped_release release;
        milepost::rms_norm(reinterpret_cast<const float*>(x), reinterpret_cast<const float*>(w), reinterpret_cast<float*>(out), rows, size, eps);
    });
    m.def("rms_norm_bf16", [](std::uintptr_t x, std::uintptr_t w, std::uintptr_t out, std::int64_t rows, std::int64_t size, float eps) {
        nb::gil_scoped_release release;
        milepost::rms_norm(reinterpret_cast<const milepost::bf16*>(x), reinterpret_cast<const milepost::bf16*>(w),
                           reinterpret_cast<milepost::bf16*>(out), rows, size, eps);
    });
}
