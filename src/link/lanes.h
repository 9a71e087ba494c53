// Running side by side what does not depend on each other, as far as memory allows.
#pragma once

#include "pygraph/link.h"
#include "scratch.h"

namespace pygraph {

/// The layout of scratch for nodes in this order, with or without cuts. `spans` gets the parts of
/// each piece of the arena.
Layout lay_out_for(const NodeOrder& order, const Scratch& scratch, const LinkOptions& options,
                   std::span<const std::uint32_t> cuts, std::vector<PartSpan>& spans);

/// What the nodes of one operator do to a region, from the first that may have it in use to the
/// last.
struct Mention {
  std::uint32_t first;
  std::uint32_t last;
  std::vector<ByteSet> writes;  ///< none: they read
};

struct Independence {
  Accesses accesses;
  std::vector<std::vector<Mention>> mentions;  ///< by region, ascending
  std::vector<std::size_t> bytes;              ///< by region: what nodes may write of it
  std::vector<bool> kept;  ///< by region: has the caller's values, and keeps them
  Edges dependencies;
  std::vector<bool> fills;  ///< per node: its blocks take all of the device
  Scratch scratch;
  std::vector<Relocation> relocations;  ///< scratch in regions of its own
  LinkOptions options;
};

/// Of a linked graph whose relocations still have scratch in regions of its own. Null for a graph
/// of more nodes than can be looked at. Throws DriverError. `places`: of the given regions.
std::shared_ptr<const Independence> find_independence(const Driver& driver,
                                                      const LinkRequest& request,
                                                      std::span<const Region> places,
                                                      const Scratch& scratch,
                                                      const LinkedGraph& linked);

/// The edges of the graph become `edges`, between nodes of its image. Throws DriverError.
void thread(const Driver& driver, const LinkedGraph& linked, const Edges& edges);

/// A copy that is not cut, since nodes that only it has are in no part: all of its memory is needed
/// as long as it runs. Throws DriverError.
LinkedGraph in_one_part(const Driver& driver, const LinkedGraph& linked);

/// Relocations of scratch become relocations of what the scratch was laid out in.
void fold_scratch(const Scratch& scratch, LinkedGraph& linked);

}  // namespace pygraph
