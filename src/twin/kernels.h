// Registration of kernels beyond what twin.h offers.
#pragma once

#include <string>
#include <vector>

#include "pygraph/twin.h"

namespace pygraph::twin {

/// register_kernel, with the bytes *inside* parameters that mean nothing: the padding of structs
/// passed by value. `padding` is in bytes of the block.
CUfunction register_kernel_with_padding(const std::string& name,
                                        std::vector<ParameterSlot> parameters,
                                        std::vector<ParameterSlot> padding, HostKernel run);

/// The same kernel under its other handle type, which graph nodes may name instead of a function.
CUkernel kernel_handle(CUfunction function);

}  // namespace pygraph::twin
