#include "pygraph/link.h"

#include <fmt/format.h>

#include <algorithm>

namespace pygraph {
namespace {

/// The scratch regions as buffers: their used sizes, and the nodes that mention them.
std::vector<Buffer> scratch_buffers(std::span<const LinkRegion> regions, const LinkTable& table,
                                    std::vector<std::uint32_t>& buffer_of) {
  std::vector<Buffer> buffers;
  buffer_of.assign(regions.size(), 0);
  for (std::size_t i = 0; i < regions.size(); ++i) {
    if (regions[i].role == RegionRole::kScratch) {
      buffer_of[i] = static_cast<std::uint32_t>(buffers.size());
      buffers.push_back({regions[i].used_bytes, {}});
    }
  }
  for (const Relocation& relocation : table.relocations) {  // ascending by node
    if (regions[relocation.region].role == RegionRole::kScratch) {
      std::vector<std::uint32_t>& nodes = buffers[buffer_of[relocation.region]].nodes;
      if (nodes.empty() || nodes.back() != relocation.node) {
        nodes.push_back(relocation.node);
      }
    }
  }
  return buffers;
}

/// A scratch region gets room for its used bytes only: a word that points further would point into
/// its neighbour in the arena.
void refuse_beyond_used(std::span<const LinkRegion> regions, LinkTable& table) {
  for (const Relocation& relocation : table.relocations) {
    const LinkRegion& region = regions[relocation.region];
    if (region.role == RegionRole::kScratch &&
        static_cast<std::size_t>(relocation.addend) > region.used_bytes) {
      table.problems.push_back(
          fmt::format("node {} offset {} points {} bytes into scratch region {}, of which only {} "
                      "are said to be used",
                      relocation.node, relocation.offset, relocation.addend, relocation.region,
                      region.used_bytes));
    }
  }
}

}  // namespace

LinkedGraph link(const Driver& driver, CUgraph a, CUgraph b, std::span<const LinkRegion> regions,
                 CUdeviceptr phantom_begin, CUdeviceptr phantom_end) {
  LinkedGraph linked;
  CUgraph clone = nullptr;
  driver.check(driver.api.cuGraphClone(&clone, a), "cuGraphClone", "the captured graph");
  linked.graph = GraphHandle(driver, clone);
  linked.image = read_image(driver, clone);
  linked.arena = static_cast<std::uint32_t>(regions.size());

  std::vector<Region> places;
  places.reserve(regions.size());
  for (const LinkRegion& region : regions) {
    places.push_back(region.place);
  }
  linked.table = relocate(linked.image, read_image(driver, b), places, phantom_begin, phantom_end);
  if (!linked.table.sound()) {
    return linked;
  }

  linked.mentions.assign(regions.size(), 0);
  for (const Relocation& relocation : linked.table.relocations) {
    ++linked.mentions[relocation.region];
  }
  refuse_beyond_used(regions, linked.table);
  if (!linked.table.sound()) {
    return linked;
  }
  std::vector<std::uint32_t> buffer_of;
  const std::vector<Buffer> buffers = scratch_buffers(regions, linked.table, buffer_of);
  linked.layout = lay_out(buffers, NodeOrder(linked.image));

  linked.relocations = linked.table.relocations;
  for (Relocation& relocation : linked.relocations) {
    if (regions[relocation.region].role == RegionRole::kScratch) {
      const std::size_t offset = linked.layout.offsets[buffer_of[relocation.region]];
      relocation.addend += static_cast<std::int64_t>(offset);
      relocation.region = linked.arena;
    }
  }
  return linked;
}

}  // namespace pygraph
