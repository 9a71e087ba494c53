// The lives of buffers: which of them may hold something at the same time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pygraph/layout.h"

namespace pygraph {

/// When a buffer with nodes is in use. Indices of nodes; ranges are half-open.
struct Life {
  std::uint32_t first;  ///< its first node in the listing, and one past its last
  std::uint32_t end;
  std::uint32_t all_before;             ///< every node below comes before all of its nodes
  std::uint32_t all_after;              ///< every node from here on comes after all of them
  std::vector<std::uint32_t> earliest;  ///< its nodes that none of its others precedes
  std::vector<std::uint32_t> latest;    ///< its nodes that precede none of its others

  /// Between its nodes and all others, the listing is the order of execution.
  [[nodiscard]] bool serial() const noexcept { return all_before == first && all_after == end; }
};

/// One per buffer; that of a buffer without nodes is empty.
std::vector<Life> lives_of(std::span<const Buffer> buffers, const NodeOrder& order);

/// Every node of `first` precedes every node of `second`; asked when the listing does not rule it
/// out and `all_after` does not settle it.
bool branches_allow(const Life& first, const Life& second, const NodeOrder& order);

/// The largest sum of bytes (rounded up to `alignment`) of the buffers numbered in `chosen` that
/// must be live at one node, whatever order of execution the graph allows. All of them have nodes.
std::size_t live_maximum(std::span<const Buffer> buffers, std::span<const Life> lives,
                         std::span<const std::uint32_t> chosen, const NodeOrder& order,
                         std::size_t alignment);

}  // namespace pygraph
