// The regions that go into the arena, as buffers for the layout, and those that lend them memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pygraph/image.h"
#include "pygraph/layout.h"
#include "pygraph/link.h"
#include "pygraph/relocate.h"

namespace pygraph {

class Scratch {
 public:
  /// The destinations of `copies` are the regions behind `regions`. `own_memory` are the graph's
  /// own allocations, whose regions are numbered from `first_own`.
  Scratch(std::span<const LinkRegion> regions, std::span<const CopyOut> copies,
          std::span<const Region> own_memory, std::uint32_t first_own);

  /// Finds the nodes during which each is in use: those that mention it; the other nodes of the
  /// same operators, but for those that the times of regions rule out; and of a buffer, nodes that
  /// may start before one of those has finished.
  void find_nodes(std::span<const Relocation> relocations, const Image& image,
                  std::span<const OperatorSpan> operators);

  [[nodiscard]] std::span<const Buffer> buffers() const noexcept { return buffers_; }
  [[nodiscard]] std::span<const Lender> lenders() const noexcept { return lenders_; }
  /// The given regions with the role kSpent, and the nodes during which each is in use.
  [[nodiscard]] std::span<const Buffer> spent() const noexcept { return spent_; }
  /// Per given region with the role kSpent the last of those nodes; 0 for all others.
  [[nodiscard]] std::vector<std::uint32_t> last_nodes() const;
  [[nodiscard]] std::size_t regions() const noexcept { return buffer_of_.size(); }  ///< in all
  [[nodiscard]] bool holds(std::uint32_t region) const { return buffer_of_[region] != kNone; }
  /// Of a region that it holds.
  [[nodiscard]] std::size_t bytes_of(std::uint32_t region) const {
    return buffers_[buffer_of_[region]].bytes;
  }

  /// Whether a region that it holds is in use during a node. In front of those nodes and behind
  /// them others may have its place, and it has none if there are none.
  [[nodiscard]] bool in_use(std::uint32_t region, std::uint32_t node) const {
    const std::vector<std::uint32_t>& nodes = buffers_[buffer_of_[region]].nodes;
    return std::binary_search(nodes.begin(), nodes.end(), node);
  }

  /// The relocation, which is of scratch, as `layout` has it: in a lender's region, or in a piece
  /// of the arena, whose first is region `arena`.
  void move(Relocation& relocation, const Layout& layout, std::uint32_t arena) const;

 private:
  static constexpr std::uint32_t kNone = ~0U;

  void add_buffer(std::size_t region, std::size_t bytes, std::uint32_t device);
  void add_lender(std::size_t region, std::size_t bytes, std::uint32_t device);
  /// The nodes of what the region is; null if it is neither buffer, lender nor spent.
  std::vector<std::uint32_t>* nodes_of(std::size_t region);

  std::vector<Buffer> buffers_;
  std::vector<Lender> lenders_;
  std::vector<Buffer> spent_;
  std::vector<std::uint32_t> buffer_of_;  ///< by region; kNone: stays what it is
  std::vector<std::uint32_t> lender_of_;  ///< by region; kNone: lends nothing
  std::vector<std::uint32_t> spent_of_;   ///< by given region; kNone: not spent
  std::vector<std::uint32_t> region_of_lender_;
  std::vector<Times> times_;  ///< by given region
};

}  // namespace pygraph
