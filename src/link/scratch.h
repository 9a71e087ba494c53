// The regions that go into the arena, as buffers for the layout.
#pragma once

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
  /// `room`: bytes that each of `regions` needs; `own_memory` are the graph's own allocations,
  /// whose regions are numbered from `first_own`.
  Scratch(std::span<const LinkRegion> regions, std::span<const std::size_t> room,
          std::span<const Region> own_memory, std::uint32_t first_own);

  [[nodiscard]] bool holds(std::uint32_t region) const { return buffer_of_[region] != kNone; }
  [[nodiscard]] std::uint32_t buffer(std::uint32_t region) const { return buffer_of_[region]; }

  /// The buffers with the nodes during which they are in use: those that mention them; nodes that
  /// may start before one of those has finished; and the other nodes of the same operators.
  [[nodiscard]] std::vector<Buffer> buffers(std::span<const Relocation> relocations,
                                            const Image& image,
                                            std::span<const OperatorSpan> operators) const;

 private:
  static constexpr std::uint32_t kNone = ~0U;

  void add(std::size_t region, std::size_t bytes);

  std::vector<Buffer> buffers_;
  std::vector<std::uint32_t> buffer_of_;  ///< by region; kNone: stays what it is
};

/// Gives every buffer that is used bytes of its own.
void set_apart(std::span<const Buffer> buffers, Layout& layout);

}  // namespace pygraph
