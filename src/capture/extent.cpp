#include "extent.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace pygraph {
namespace {

/// The bytes that a node reads or writes at one of its addresses, counted from there. Empty: none,
/// or the node does not say.
struct Extent {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// One end of a copy: where it begins, in bytes, rows and slices, and how far apart these are.
struct CopySide {
  std::size_t x;
  std::size_t row;
  std::size_t slice;
  std::size_t pitch;
  std::size_t height;

  [[nodiscard]] std::size_t at(std::size_t rows, std::size_t slices) const {
    return ((slice + slices) * height + row + rows) * pitch + x;
  }
};

Extent extent_of_copy(const Node& node, std::uint32_t offset) {
  const auto copy = node.as<CUDA_MEMCPY3D>();
  if (copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0) {
    return {};
  }
  const bool source = offset < offsetof(CUDA_MEMCPY3D, dstXInBytes);
  const CopySide end =
      source ? CopySide{copy.srcXInBytes, copy.srcY, copy.srcZ, copy.srcPitch, copy.srcHeight}
             : CopySide{copy.dstXInBytes, copy.dstY, copy.dstZ, copy.dstPitch, copy.dstHeight};
  return {end.at(0, 0), end.at(copy.Height - 1, copy.Depth - 1) + copy.WidthInBytes};
}

Extent extent_of_fill(const Node& node) {
  const auto fill = node.as<CUDA_MEMSET_NODE_PARAMS>();
  if (fill.width == 0 || fill.height == 0) {
    return {};
  }
  return {0, (fill.height - 1) * fill.pitch + fill.width * fill.elementSize};
}

Extent extent_of(const Node& node, std::uint32_t offset) {
  switch (node.kind) {
    case NodeKind::kMemcpy:
      return extent_of_copy(node, offset);
    case NodeKind::kMemset:
      return extent_of_fill(node);
    default:
      return {};
  }
}

}  // namespace

void check_extents(const LinkedGraph& linked, std::span<const LinkRegion> regions,
                   std::size_t buffers) {
  // As compared: there scratch is not yet part of the arena.
  for (const Relocation& relocation : linked.table.relocations) {
    if (relocation.region >= regions.size()) {
      continue;  // memory that the graph allocates itself
    }
    const Node& node = linked.image.nodes[relocation.node];
    const auto bytes = static_cast<std::int64_t>(regions[relocation.region].place.bytes);
    const Extent extent = extent_of(node, relocation.offset);
    const std::int64_t begin = relocation.addend + static_cast<std::int64_t>(extent.begin);
    const std::int64_t end = relocation.addend + static_cast<std::int64_t>(extent.end);
    if (extent.end != 0 && (begin < 0 || end > bytes)) {
      const bool own = relocation.region < buffers;
      throw UnsupportedGraph(fmt::format(
          "node {}, a {}, takes bytes {} to {} of {} {}, which has {} bytes; needed: a size that "
          "holds all that the work addresses",
          relocation.node, node.kind == NodeKind::kMemcpy ? "copy" : "fill", begin, end,
          own ? "buffer" : "scratch", relocation.region - (own ? 0 : buffers), bytes));
    }
  }
}

}  // namespace pygraph
