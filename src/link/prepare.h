// A capture made ready for linking.
#pragma once

#include <string>
#include <vector>

#include "pygraph/flatten.h"
#include "pygraph/handles.h"
#include "pygraph/image.h"
#include "pygraph/relocate.h"

namespace pygraph {

struct Prepared {
  GraphHandle graph;  ///< a copy of the capture; none when only the image was asked for
  Image image;
  std::vector<GraphAllocation> allocations;
  bool flattened = false;  ///< its nodes were made anew
};

/// Reads `capture` without keeping a copy, or with one: a clone where nothing must be flattened.
Prepared prepare_probe(const Driver& driver, CUgraph capture, const ReadOptions& options);
Prepared prepare_copy(const Driver& driver, CUgraph capture, const ReadOptions& options);

/// The memory that both captures allocate for themselves, as regions. A graph may use an address
/// again after a free (CUDA programming guide, "Address Reuse within a Graph"): allocations that
/// share bytes in either capture form one region and move as a whole. Where that cannot be, adds to
/// `problems`.
std::vector<Region> own_memory(const std::vector<GraphAllocation>& a,
                               const std::vector<GraphAllocation>& b,
                               std::vector<std::string>& problems);

}  // namespace pygraph
