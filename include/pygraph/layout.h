// Layout: where each buffer stands in the arena.
//
// Like a linker laying out sections, this runs after the capture, when the life of every buffer is
// known: the nodes that mention it. Two buffers may share bytes when every node of one must have
// finished before any node of the other starts, which the graph's edges decide (reachability, not
// the order in which nodes happen to be listed: branches run side by side).
//
// Finding the smallest arena is NP-hard even for a serial chain (dynamic storage allocation: Garey
// and Johnson, problem SR2), so two greedy orders are tried, by size and by size times life, and
// each buffer gets the lowest offset that fits. The smaller arena is kept. (With thousands of
// buffers that nearly all live at once, only the first order is tried.) Nothing here calls the
// driver; all of it is thread-safe in the way of const containers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "pygraph/image.h"

namespace pygraph {

/// Scratch memory of a graph: its size in bytes and the nodes (indices, ascending, each once) that
/// mention it. A buffer without nodes needs no place and gets none.
struct Buffer {
  std::size_t bytes = 0;
  std::vector<std::uint32_t> nodes;
};

struct Layout {
  static constexpr std::size_t kNoPlace = ~std::size_t{0};

  std::vector<std::size_t> offsets;  ///< per buffer, in bytes; kNoPlace when it has no nodes
  std::size_t bytes = 0;             ///< size of the arena: a multiple of the alignment
  /// The largest sum of bytes that must be live at once at any node: no layout is smaller.
  std::size_t lower_bound = 0;
};

/// Which nodes must have finished before which others start.
///
/// The nodes are cut into chains, along edges. What comes after a node is then one number per
/// chain: the first position there that it precedes. A serial graph takes one number per node, k
/// branches take k. A graph too wide for that (more than a chain for every 32 nodes) has a bit per
/// pair of nodes instead. Immutable: safe to share between threads.
class NodeOrder {
 public:
  /// Of the image, nothing is kept. Cost: nodes and edges times chains.
  explicit NodeOrder(const Image& image);

  /// True when `before` precedes `after` on every execution of the graph; a node does not precede
  /// itself. Both must be below size().
  [[nodiscard]] bool precedes(std::uint32_t before, std::uint32_t after) const noexcept {
    if (chains_ == 0) {
      return (bits_[before * words_ + after / 64] >> (after % 64) & 1U) != 0;
    }
    return places_[after].position >= first_after_[before * chains_ + places_[after].chain];
  }

  /// The smallest index from which on every node comes after `node`; size() if there is none.
  [[nodiscard]] std::uint32_t all_after(std::uint32_t node) const noexcept { return after_[node]; }
  /// An index below which every node comes before `node`. Not always the largest such, and never
  /// descending from one node to the next.
  [[nodiscard]] std::uint32_t all_before(std::uint32_t node) const noexcept {
    return before_[node];
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  struct Place {
    std::uint32_t chain;
    std::uint32_t position;
  };
  static constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();

  std::vector<std::vector<std::uint32_t>> cut_into_chains(const Image& image);
  void reach_by_chain(const Image& image, const std::vector<std::vector<std::uint32_t>>& chains);
  void reach_by_bit(const Image& image);

  std::size_t size_;
  std::size_t chains_ = 0;                  ///< 0: bits are used
  std::vector<Place> places_;               ///< per node
  std::vector<std::uint32_t> first_after_;  ///< per node and chain: a position, or kNever
  std::size_t words_ = 0;
  std::vector<std::uint64_t> bits_;  ///< bit set per node: the nodes it precedes
  std::vector<std::uint32_t> after_;
  std::vector<std::uint32_t> before_;
};

/// Places `buffers` at multiples of `alignment` bytes (a power of two; 512 is what torch's
/// allocator guarantees). `order` is that of the graph whose nodes the buffers name. Throws nothing
/// but std::bad_alloc. Buffers of one graph, n of them with c neighbours in time each: about
/// n * c * log(n).
Layout lay_out(std::span<const Buffer> buffers, const NodeOrder& order,
               std::size_t alignment = 512);

}  // namespace pygraph
