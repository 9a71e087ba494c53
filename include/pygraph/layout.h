// Layout: where each buffer stands in the arena.
//
// Like a linker laying out sections, this runs after the capture, when the life of every buffer is
// known: the nodes that mention it. Two buffers may share bytes when every node of one must have
// finished before any node of the other starts, which the graph's edges decide (reachability, not
// the order in which nodes happen to be listed: branches run side by side).
//
// Two things may be asked beside the smallest arena. Memory that the graph fills anyway, an output,
// is there from the launch on and of no use before its first node: until then it can be lent to
// buffers. And where one large piece of memory is not to be had, the arena can consist of several.
//
// A graph may work on several devices. Memory is of one of them: 0 stands for the graph's own,
// others for its peers. Only buffers of one device share bytes, and each device has pieces of its
// own.
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
  std::uint32_t device = 0;
};

/// Memory of `bytes` bytes that the graph gets at each launch, whatever it holds, and fills by its
/// `nodes` (all that mention it; ascending, each once). Buffers that every execution is done with
/// before the first of these starts may stand in it.
struct Lender {
  std::size_t bytes = 0;
  std::vector<std::uint32_t> nodes;
  std::uint32_t device = 0;
};

/// What torch's allocator aligns memory to, in bytes.
inline constexpr std::size_t kArenaAlignment = 512;

/// `value`, or the next multiple of `alignment`, a power of two, above it.
constexpr std::size_t round_up(std::size_t value, std::size_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

struct LayoutOptions {
  std::size_t alignment = kArenaAlignment;  ///< of every buffer, in bytes: a power of two
  /// Off, no two buffers share bytes, nothing is lent, and the arena is in one piece for a device.
  bool share = true;
  /// Cuts the arena into pieces that are no larger than the largest buffer in them, or than an
  /// eighth of the arena in one piece, whichever is more. They may be larger together.
  bool in_pieces = false;
  std::span<const Lender> lenders{};
  /// Buffers of fewer bytes are not lent memory, and nothing is unless the arena gets smaller by so
  /// much. (Nor if the gain is below 1/64 of all memory, since it costs: when an output moves, the
  /// nodes of all that stands in it are patched.)
  std::size_t smallest_loan = std::size_t{1} << 20;
};

/// Which memory each buffer is in, and where.
struct Layout {
  static constexpr std::size_t kNoPlace = ~std::size_t{0};
  static constexpr std::uint32_t kNoMemory = ~0U;

  std::vector<std::size_t> offsets;  ///< per buffer, in bytes; kNoPlace when it has no nodes
  /// Per buffer: the number of its lender; from there on, of its piece of the arena. Without
  /// lenders, piece 0 is 0.
  std::vector<std::uint32_t> memory;
  std::vector<std::size_t> pieces;     ///< bytes of each piece of the arena; at least one piece
  std::vector<std::uint32_t> devices;  ///< of each piece
  std::size_t bytes = 0;               ///< of all pieces: a multiple of the alignment
  std::size_t lent = 0;                ///< buffers that stand in memory of a lender
  /// The largest sum of bytes of the arena's buffers that must be live at once at any node: no
  /// arena for them is smaller. Of several devices, the sum of theirs.
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

/// Places `buffers`. `order` is that of the graph whose nodes buffers and lenders name. Throws
/// nothing but std::bad_alloc. Buffers of one graph, n of them with c neighbours in time each:
/// about n * c * log(n), and as much once more for each lender and each piece.
Layout lay_out(std::span<const Buffer> buffers, const NodeOrder& order,
               const LayoutOptions& options = {});

}  // namespace pygraph
