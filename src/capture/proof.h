// A program beside the work that it was captured from.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "pygraph/capture.h"

namespace pygraph {

/// Runs `work` on buffers of the given sizes at `addresses`, then the program on the same bytes,
/// and compares; see CaptureOptions::proof. `space` is what the work was captured in. The program
/// is bound to nothing afterwards. Throws ProofFailed, DriverError, what `work` throws.
void prove(const Driver& driver, CUstream stream, CapturedWork& captured, const Work& work,
           std::span<const std::size_t> buffers, const std::vector<CUdeviceptr>& addresses,
           PhantomSpace& space);

}  // namespace pygraph
