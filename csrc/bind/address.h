// What all bindings share. Arguments are addresses: the Python side owns shapes, dtypes and lifetimes, and has checked them.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>

#include "../bf16.h"

namespace milepost {

namespace nb = nanobind;

using Address = std::uintptr_t;
using Int = std::int64_t;

template <typename T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

/// Defines a function without the interpreter's lock.
template <typename F>
void define(nb::module_& m, const char* name, F f) {
    m.def(name, f, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace milepost
