// Where a graph is cut into parts, so that memory can change hands between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pygraph/image.h"
#include "scratch.h"

namespace pygraph {

/// Memory that is needed from node `first` to node `last`. Tenants that `share` are laid out
/// together within a part; each of the others is an allocation of its own.
struct Tenant {
  std::size_t bytes;
  std::uint32_t first;
  std::uint32_t last;
  bool share;
};

/// Whether one part is enough: what the tenants that do not share and `whole` bytes, which the
/// others take in one part, need is not more than the tenants of some node and `slack` bytes.
bool one_part_is_enough(std::span<const Tenant> tenants, std::uint32_t nodes, std::size_t whole,
                        std::size_t slack);

/// The nodes at which parts begin, except the first. Greedy: each part is as long as it can be
/// without needing more than the tenants of any one node and `slack` bytes; if there would be more
/// than `most` parts, more slack is taken, as little as is enough within `slack`. Nodes are
/// numbered in an order in which they may run.
std::vector<std::uint32_t> choose_cuts(std::span<const Tenant> tenants, std::uint32_t nodes,
                                       std::size_t slack, std::size_t most = 12);

/// The layout of scratch for a graph with cuts: buffers that are needed during the same parts share
/// a piece of the arena. `spans` gets the parts of each piece.
Layout lay_out_parts(const Scratch& scratch, const NodeOrder& order,
                     std::span<const std::uint32_t> cuts, std::vector<PartSpan>& spans);

/// The most bytes that pieces of the arena have during one part, each of which has its span.
std::size_t most_at_once(std::span<const std::size_t> pieces, std::span<const PartSpan> spans);

/// The part that a node is in.
std::uint32_t part_of(std::uint32_t node, std::span<const std::uint32_t> cuts);

}  // namespace pygraph
