#pragma once
#include "address.h"

namespace milepost {

inline void bind_scan(nb::module_&) {}

}  // namespace milepost
