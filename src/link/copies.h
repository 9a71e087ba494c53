// Copies at the end of a graph.
#pragma once

#include <span>

#include "pygraph/link.h"

namespace pygraph {

/// Throws std::invalid_argument for a copy of no region or outside its region.
void check_copies(std::span<const CopyOut> copies, std::span<const LinkRegion> regions);

/// Adds a node per copy asked for that is not empty, to the graph and to its image, and its two
/// relocations: of the source's region and of region `first_copy` + i. The copies run behind every
/// leaf, hence behind every node: what they read is what the region holds at the end, whoever wrote
/// it, and by whatever pointer.
void add_copies(const Driver& driver, const LinkRequest& request, LinkedGraph& linked);

/// Adds a node to the graph that copies `bytes` bytes, from `at` to `at` as yet, behind `before`.
/// The node, with words for both ends; no relocations. Throws DriverError.
Node add_copy(const Driver& driver, CUgraph graph, std::span<const CUgraphNode> before,
              CUdeviceptr at, std::size_t bytes, CUcontext context);

}  // namespace pygraph
