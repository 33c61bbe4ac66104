#pragma once
#include "address.h"

namespace milepost {

inline void bind_rope(nb::module_&) {}

}  // namespace milepost
