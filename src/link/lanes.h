// Running side by side what does not depend on each other, as far as memory allows.
#pragma once

#include "pygraph/link.h"
#include "scratch.h"

namespace pygraph {

/// The layout of scratch for a graph of one part.
Layout lay_out_for(const Image& image, const Scratch& scratch, const LinkOptions& options);

/// Replaces the edges of a linked graph, which is laid out, by those of lanes, and lays it out
/// again: as many lanes as were asked for, or as its memory allows. Leaves it as it is where lanes
/// gain nothing, or a check finds two nodes that share bytes and no order. Throws DriverError.
void spread_over_lanes(const Driver& driver, const LinkRequest& request, const Scratch& scratch,
                       LinkedGraph& linked);

}  // namespace pygraph
