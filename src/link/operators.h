// Which nodes an operator launched, and which of them can have had a region in use.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pygraph/image.h"
#include "pygraph/link.h"

namespace pygraph {

/// Numbers of nodes by creation: [begin, end).
struct CreationSpan {
  std::uint32_t begin = 0;
  std::uint32_t end = ~0U;
};

/// The nodes of each operator that has several.
class Operators {
 public:
  Operators(const Image& image, std::span<const OperatorSpan> spans);

  [[nodiscard]] bool any() const noexcept { return !nodes_.empty(); }

  /// Adds to `nodes` (ascending) the other nodes of their operators that were created in `span`.
  void complete(std::vector<std::uint32_t>& nodes, CreationSpan span) const;

 private:
  static constexpr std::uint32_t kNone = ~0U;

  const Image& image_;
  std::vector<std::vector<std::uint32_t>> nodes_;
  std::vector<std::uint32_t> operator_of_;  ///< by node
};

/// When each region can have been in use, by the nodes that mention the others: `mentions` are
/// those of each region, `times` when it was allocated and freed. Regions that no node mentions,
/// and whose times are not known, tell nothing.
std::vector<CreationSpan> possible_use(const Image& image, std::span<const Times> times,
                                       std::span<const std::vector<std::uint32_t>> mentions);

}  // namespace pygraph
