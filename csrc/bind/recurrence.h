#pragma once
#include "address.h"

namespace milepost {

inline void bind_recurrence(nb::module_&) {}

}  // namespace milepost
