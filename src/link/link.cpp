#include "pygraph/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "copies.h"
#include "cut.h"
#include "prepare.h"
#include "scratch.h"

namespace pygraph {
namespace {

/// Whether a number is an address that the driver knows as device memory.
IsDeviceMemory device_memory_test(const Driver& driver) {
  return [&driver](CUdeviceptr address) {
    unsigned int type = 0;
    return driver.api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ==
               CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE;
  };
}

/// The places of the given regions, then of the memory that the graphs allocate themselves.
std::vector<Region> all_places(std::span<const LinkRegion> regions,
                               const std::vector<Region>& own_memory) {
  std::vector<Region> places;
  places.reserve(regions.size() + own_memory.size());
  for (const LinkRegion& region : regions) {
    places.push_back(region.place);
  }
  places.insert(places.end(), own_memory.begin(), own_memory.end());
  return places;
}

/// What needs memory when; nothing if the graph must not be cut.
std::vector<Tenant> tenants(const LinkRequest& request, const LinkedGraph& linked,
                            const Scratch& scratch) {
  std::vector<Tenant> found;
  const auto last_node = static_cast<std::uint32_t>(linked.image.nodes.size()) - 1;
  const std::size_t slack = request.options.peak_slack;
  if (slack == LinkOptions{}.peak_slack || linked.image.nodes.empty()) {
    return found;
  }
  for (const Buffer& spent : scratch.spent()) {
    found.push_back({spent.bytes, 0, spent.nodes.empty() ? 0 : spent.nodes.back(), false});
  }
  for (const Lender& output : scratch.lenders()) {
    const std::uint32_t first = output.nodes.empty() ? last_node : output.nodes.front();
    found.push_back({output.bytes, first, last_node, false});
  }
  for (const Buffer& buffer : scratch.buffers()) {
    if (!buffer.nodes.empty()) {
      found.push_back({buffer.bytes, buffer.nodes.front(), buffer.nodes.back(), true});
    }
  }
  return found;
}

}  // namespace

LinkedGraph link(const Driver& driver, const LinkRequest& request) {
  const std::span<const LinkRegion> regions = request.regions;
  check_copies(request.copies, regions);
  const ReadOptions read{request.options.keep_host_functions};

  LinkedGraph linked;
  linked.first_copy = static_cast<std::uint32_t>(regions.size());
  linked.arena = linked.first_copy + static_cast<std::uint32_t>(request.copies.size());
  Prepared a = prepare_copy(driver, request.a, read);
  const Prepared b = prepare_probe(driver, request.b, read);
  linked.graph = std::move(a.graph);
  linked.image = std::move(a.image);

  const std::vector<Region> own = own_memory(a.allocations, b.allocations, linked.table.problems);
  if (!linked.table.sound()) {
    return linked;
  }
  linked.table = relocate(linked.image, b.image, all_places(regions, own), request.phantom_begin,
                          request.phantom_end, device_memory_test(driver));
  if (!linked.table.sound()) {
    return linked;
  }

  // The program's numbering has the copies' destinations and the arena between the given regions
  // and the graph's own memory, which the arena swallows.
  const std::uint32_t first_own = linked.arena + 1;
  linked.relocations = linked.table.relocations;
  for (Relocation& relocation : linked.relocations) {
    if (relocation.region >= regions.size()) {
      relocation.region += first_own - linked.first_copy;
    }
  }
  add_copies(driver, linked.graph.get(), request.copies, regions, linked.first_copy, linked.image,
             linked.relocations);
  linked.mentions.assign(regions.size(), 0);
  for (const Relocation& relocation : linked.relocations) {
    if (relocation.region < regions.size()) {
      ++linked.mentions[relocation.region];
    }
  }

  Scratch scratch(regions, request.copies, own, first_own);
  scratch.find_nodes(linked.relocations, linked.image, request.operators);
  linked.last_nodes = scratch.last_nodes();
  linked.layout = lay_out(scratch.buffers(), NodeOrder(linked.image),
                          {.share = request.options.share_scratch,
                           .in_pieces = request.options.arena_in_pieces,
                           .lenders = scratch.lenders(),
                           .smallest_loan = request.options.smallest_loan});
  linked.spans.assign(linked.layout.pieces.size(), {});
  const std::vector<Tenant> needed = tenants(request, linked, scratch);
  const auto nodes = static_cast<std::uint32_t>(linked.image.nodes.size());
  const std::size_t slack = request.options.peak_slack;
  if (request.options.share_scratch &&
      !one_part_is_enough(needed, nodes, linked.layout.bytes, slack)) {
    linked.cuts = choose_cuts(needed, nodes, slack);
  }
  if (!linked.cuts.empty()) {
    linked.layout = lay_out_parts(scratch, linked.image, linked.cuts, linked.spans);
  }
  for (Relocation& relocation : linked.relocations) {
    if (scratch.holds(relocation.region)) {
      scratch.move(relocation, linked.layout, linked.arena);
    }
  }
  return linked;
}

}  // namespace pygraph
