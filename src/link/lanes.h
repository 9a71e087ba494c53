// Running side by side what does not depend on each other, as far as memory allows.
#pragma once

#include "pygraph/link.h"
#include "scratch.h"

namespace pygraph {

/// The layout of scratch for a graph of one part.
Layout lay_out_for(const NodeOrder& order, const Scratch& scratch, const LinkOptions& options);

/// Replaces the edges of a linked graph, which is laid out, by those of lanes, and lays it out
/// again: no more than were asked for, and as its memory allows. Leaves it as it is where lanes
/// gain nothing, or a check finds two nodes that share bytes and no order. Throws DriverError.
/// `places`: of the given regions.
void spread_over_lanes(const Driver& driver, const LinkRequest& request,
                       std::span<const Region> places, const Scratch& scratch, LinkedGraph& linked);

}  // namespace pygraph
