// Layout: where each buffer stands in the arena.
//
// Like a linker laying out sections, this runs after the capture, when the life of every buffer is
// known: the nodes that mention it. Two buffers may share bytes when every node of one must have
// finished before any node of the other starts, which the graph's edges decide (reachability, not
// the order in which nodes happen to be listed: branches run side by side). Greedy by size, each
// buffer at the lowest offset that fits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pygraph/image.h"

namespace pygraph {

/// Scratch memory of a graph: its size in bytes and the nodes (indices, ascending) that mention
/// it. A buffer without nodes needs no place and gets none.
struct Buffer {
  std::size_t bytes = 0;
  std::vector<std::uint32_t> nodes;
};

struct Layout {
  static constexpr std::size_t kNoPlace = ~std::size_t{0};

  std::vector<std::size_t> offsets;  ///< per buffer, in bytes; kNoPlace when it has no nodes
  std::size_t bytes = 0;             ///< size of the arena
  /// The largest sum of bytes that must be live at once at any node: no layout is smaller.
  std::size_t lower_bound = 0;
};

/// Which nodes must have finished before which others start.
class NodeOrder {
 public:
  explicit NodeOrder(const Image& image);

  /// True when `before` precedes `after` on every execution of the graph.
  [[nodiscard]] bool precedes(std::uint32_t before, std::uint32_t after) const noexcept {
    return (reach_[before * words_ + after / 64] >> (after % 64) & 1U) != 0;
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  std::size_t size_;
  std::size_t words_;
  std::vector<std::uint64_t> reach_;  ///< bit set per node: the nodes it precedes
};

/// Places `buffers` at multiples of `alignment` bytes (a power of two; 512 is what torch's
/// allocator guarantees).
Layout lay_out(std::span<const Buffer> buffers, const NodeOrder& order,
               std::size_t alignment = 512);

}  // namespace pygraph
