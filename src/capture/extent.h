// Whether copies and fills stay within what they were given.
#pragma once

#include <cstddef>
#include <span>

#include "pygraph/link.h"

namespace pygraph {

/// Looks at every copy and fill of a linked graph, which say how far they reach (kernels do not).
/// Of `regions` the first `buffers` are buffers, the others scratch. Throws UnsupportedGraph for
/// one that reaches beyond its region.
void check_extents(const LinkedGraph& linked, std::span<const LinkRegion> regions,
                   std::size_t buffers);

}  // namespace pygraph
