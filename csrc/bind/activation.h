#pragma once
#include "address.h"

namespace milepost {

inline void bind_activation(nb::module_&) {}

}  // namespace milepost
