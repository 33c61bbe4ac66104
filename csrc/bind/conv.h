#pragma once
#include "address.h"

namespace milepost {

inline void bind_conv(nb::module_&) {}

}  // namespace milepost
