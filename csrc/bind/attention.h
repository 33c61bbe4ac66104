#pragma once
#include "address.h"

namespace milepost {

inline void bind_attention(nb::module_&) {}

}  // namespace milepost
