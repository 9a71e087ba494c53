// Addresses of device memory that are nobody's region.
#pragma once

#include "pygraph/relocate.h"

namespace pygraph {

/// Whether a number is an address that the driver knows as device memory.
IsDeviceMemory device_memory_test(const Driver& driver);

}  // namespace pygraph
