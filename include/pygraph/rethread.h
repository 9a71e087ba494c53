// Re-threading: the nodes of a captured chain become lanes that run side by side.
//
// A capture of one stream runs node after node, though many of them do not depend on each other. A
// node depends on an earlier one when both touch the same bytes and one of them writes. Which
// memory a node addresses is known from its relocations; what it reads and writes there is declared
// by whom knows the operator that launched it, and where nobody does it reads and writes all of it.
//
// Two steps. true_dependencies() puts an order between nodes that need one and takes all others
// away. in_lanes() gives the nodes to a bounded number of lanes, each of which is a chain: a graph
// as wide as its dependencies allow keeps the GPU's queues busy with waiting. find_race() is the
// check behind both: it does not know how the edges came about.
//
// Nothing here calls the driver; all of it is thread-safe in the way of const containers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "pygraph/image.h"
#include "pygraph/layout.h"
#include "pygraph/relocate.h"

namespace pygraph {

/// A set of bytes of a region: those of the elements of a strided tensor. Without dimensions it is
/// one element; `item_bytes` 0: all bytes of the region.
struct ByteSet {
  struct Dimension {
    std::uint64_t size;    ///< in elements; 0: the set is empty
    std::uint64_t stride;  ///< in bytes
    bool operator==(const Dimension&) const = default;
  };
  std::uint64_t offset = 0;  ///< of the first element, in bytes from the start of the region
  std::uint64_t item_bytes = 0;
  std::vector<Dimension> dimensions{};

  bool operator==(const ByteSet&) const = default;
  [[nodiscard]] bool whole() const noexcept { return item_bytes == 0; }
  /// One past the last byte; not for the whole region.
  [[nodiscard]] std::uint64_t end() const noexcept;
};

/// Whether two sets of one region have a byte in common. True where that is not known.
bool overlap(const ByteSet& left, const ByteSet& right);

/// Memory that an operator is given or returns: a tensor at its address in capture A.
struct Touch {
  CUdeviceptr address = 0;
  ByteSet bytes{};  ///< `offset` counts from `address`
  bool writes = false;
};

/// Nodes of capture A that were created when `begin` nodes were there, up to when `end` were, and
/// all that they touch of the regions that they are given. A region that one of them mentions, and
/// no touch is in, is memory of the operator's own: read and written.
struct KnownNodes {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::vector<Touch> touches{};
  bool in_order = false;  ///< among all for which this is true: they draw, or meet other ranks
};

/// Memory that nodes have addresses of and nobody knows. One region: two addresses may be in one
/// allocation.
inline constexpr std::uint32_t kUnknownMemory = ~0U;
/// What stands for memory that nodes write which stay in the order of the capture.
inline constexpr std::uint32_t kOrder = ~0U - 1;

/// What a node does to a region.
struct Access {
  std::uint32_t region;
  bool writes;
  ByteSet bytes{};
};

/// What each node of an image reads and writes.
struct Accesses {
  std::vector<std::vector<Access>> of_node{};
  /// Nodes that everything before and behind them is ordered against: they do what no word tells.
  std::vector<bool> barrier{};
  /// Nodes that stay in order, since one operator launched both: (before, after).
  std::vector<std::pair<std::uint32_t, std::uint32_t>> together{};
};

/// Of all nodes, from the words that refer to regions (`relocations`, ascending by node), those
/// that refer to memory which nobody knows (`foreign`), and what is known of the operators
/// (ascending, apart). `places` are the regions that touches are in, by number; relocations may
/// name further ones.
Accesses accesses_of(const Image& image, std::span<const Relocation> relocations,
                     std::span<const ForeignWord> foreign, std::span<const Region> places,
                     std::span<const KnownNodes> known);

using Edges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

/// The least edges that order every two nodes of which one writes what the other touches, in the
/// order of the listing. Ascending.
Edges true_dependencies(const Accesses& accesses);

/// What running a node takes.
struct NodeCost {
  double us = 1;
  bool fills = false;  ///< its blocks take all of the device: beside another such it gains nothing
};

struct Lanes {
  Edges edges;                        ///< ascending, the least that keep the order
  std::vector<std::uint32_t> lane{};  ///< per node
  std::size_t count = 0;              ///< lanes that have nodes
  double us = 0;                      ///< when the last node is done
};

/// Gives each node, in the order of the listing, to the lane in which it would begin first, or to
/// that of a node it waits for: one of `width` lanes. `windows`: how many of the nodes in front of
/// it each may overtake, which bounds what is in use at the same time; 0: it runs behind all of
/// them. `costs`, by node. Each of `cuts`, ascending, begins what runs behind all in front of it.
Lanes in_lanes(const Edges& dependencies, std::size_t width, std::span<const std::uint32_t> windows,
               std::span<const NodeCost> costs, std::span<const std::uint32_t> cuts = {});

/// Two nodes that `order` does not order though they touch the same bytes and one writes, or though
/// they are to stay in order; none: there is no race.
std::optional<std::pair<std::uint32_t, std::uint32_t>> find_race(const Accesses& accesses,
                                                                 const NodeOrder& order);

}  // namespace pygraph
