#include "lanes.h"

#include <algorithm>
#include <utility>

#include "../image/structure.h"
#include "../layout/life.h"
#include "cut.h"

namespace pygraph {
namespace {

/// What precedes what is a bit for each pair of nodes here, and each pair that shares memory is
/// looked at.
constexpr std::size_t kMostNodes = 4096;
/// What torch's allocator takes from the driver at least (kSmallBuffer, CUDACachingAllocator).
constexpr std::size_t kFreeBytes = std::size_t{2} << 20;

/// Whether all blocks of a kernel must be resident at once, since they wait for each other: beside
/// another of its kind neither might get the room.
bool is_cooperative(const Driver& driver, const Node& kernel) {
  CUkernelNodeAttrValue value{};
  driver.check(driver.api.cuGraphKernelNodeGetAttribute(
                   kernel.handle, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &value),
               "cuGraphKernelNodeGetAttribute", "the linked graph");
  return value.cooperative != 0;
}

int processors_of(const Driver& driver) {
  CUdevice device = 0;
  driver.check(driver.api.cuCtxGetDevice(&device), "cuCtxGetDevice");
  int count = 0;
  driver.check(
      driver.api.cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
      "cuDeviceGetAttribute");
  return count;
}

/// Whether a kernel has as many blocks as the device has room for, or more.
bool fills_device(const Driver& driver, const LaunchShape& shape, int processors) {
  // A kernel without a context may stand for a function (driver API, Occupancy).
  CUfunction function =
      shape.function != nullptr ? shape.function : reinterpret_cast<CUfunction>(shape.kernel);
  const std::uint32_t threads = shape.block[0] * shape.block[1] * shape.block[2];
  int resident = 0;
  driver.check(driver.api.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                   &resident, function, static_cast<int>(threads), shape.shared_bytes),
               "cuOccupancyMaxActiveBlocksPerMultiprocessor", kernel_name(driver, shape));
  const std::uint64_t blocks = std::uint64_t{shape.grid[0]} * shape.grid[1] * shape.grid[2];
  return blocks >= static_cast<std::uint64_t>(resident) * static_cast<std::uint64_t>(processors);
}

/// By region; nodes of one operator together.
std::vector<std::vector<Mention>> mentions_of(const Accesses& accesses, std::size_t regions) {
  const auto nodes = static_cast<std::uint32_t>(accesses.of_node.size());
  std::vector<bool> goes_on(nodes);  // the operator of the node in front of it
  for (const auto& [before, after] : accesses.together) {
    goes_on[after] = goes_on[after] || before + 1 == after;
  }
  std::vector<std::vector<Mention>> found(regions);
  std::uint32_t begin = 0;  // of its operator's nodes
  for (std::uint32_t node = 0; node < nodes; ++node) {
    begin = goes_on[node] ? begin : node;
    for (const Access& access : accesses.of_node[node]) {
      if (access.region >= kOrder) {
        continue;
      }
      std::vector<Mention>& all = found[access.region];
      if (all.empty() || all.back().last < begin) {
        all.push_back({node, node, {}});
      }
      Mention& mention = all.back();
      mention.last = node;
      const bool said = std::find(mention.writes.begin(), mention.writes.end(), access.bytes) !=
                        mention.writes.end();
      if (access.writes && !said) {
        mention.writes.push_back(access.bytes);
      }
    }
  }
  return found;
}

std::vector<bool> kept_by_caller(const LinkRequest& request, std::size_t regions) {
  std::vector<bool> found(regions);
  for (std::size_t region = 0; region < request.regions.size(); ++region) {
    const RegionRole role = request.regions[region].role;
    found[region] = role == RegionRole::kOwn || role == RegionRole::kSpent;
  }
  return found;
}

std::vector<std::size_t> bytes_of(const LinkRequest& request, const Scratch& scratch,
                                  std::size_t regions) {
  std::vector<std::size_t> found(regions);
  for (std::uint32_t region = 0; region < regions; ++region) {
    const std::size_t given = request.regions.size();
    if (scratch.holds(region)) {
      found[region] = scratch.bytes_of(region);
    } else if (region < given) {
      const LinkRegion& each = request.regions[region];
      found[region] = each.role == RegionRole::kOwn ? each.place.bytes : each.used_bytes;
    } else if (region - given < request.copies.size()) {
      found[region] = request.copies[region - given].bytes;
    }
  }
  return found;
}

/// Takes away what is declared of scratch that is not in use then: no node of the operator has an
/// address of it. The values of a tensor that only lends its shape (randn_like) may be gone by
/// then.
void keep_to_use(Accesses& accesses, const Scratch& scratch) {
  for (std::uint32_t node = 0; node < accesses.of_node.size(); ++node) {
    std::erase_if(accesses.of_node[node], [&](const Access& access) {
      return access.region < kOrder && scratch.holds(access.region) &&
             !scratch.in_use(access.region, node);
    });
  }
}

/// Accesses to the memory that scratch was laid out in, where two regions may share bytes.
Accesses placed(const Accesses& accesses, const Scratch& scratch, const Layout& layout,
                std::uint32_t arena) {
  Accesses found = accesses;
  for (std::uint32_t node = 0; node < found.of_node.size(); ++node) {
    for (Access& access : found.of_node[node]) {
      if (access.region >= kOrder || !scratch.holds(access.region)) {
        continue;
      }
      if (access.bytes.whole()) {
        access.bytes.item_bytes = scratch.bytes_of(access.region);
      }
      Relocation start{node, 0, access.region, 0};
      scratch.move(start, layout, arena);
      access.region = start.region;
      access.bytes.offset += static_cast<std::uint64_t>(start.addend);
    }
  }
  return found;
}

/// Per node, the bytes of all buffers that may hold something while it runs.
std::vector<std::size_t> memory_by_node(std::span<const Buffer> buffers, const NodeOrder& order) {
  std::vector<std::ptrdiff_t> change(order.size() + 1);
  const std::vector<Life> lives = lives_of(buffers, order);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (!buffers[i].nodes.empty()) {
      const auto bytes = static_cast<std::ptrdiff_t>(round_up(buffers[i].bytes, kArenaAlignment));
      change[lives[i].all_before] += bytes;
      change[lives[i].all_after] -= bytes;
    }
  }
  std::vector<std::size_t> found(order.size());
  std::ptrdiff_t now = 0;
  for (std::size_t node = 0; node < found.size(); ++node) {
    now += change[node];
    found[node] = static_cast<std::size_t>(now);
  }
  return found;
}

/// Takes a quarter off the windows of nodes that may run while more memory than `limit` is in use;
/// if it is enough everywhere and only cannot be laid out, while the most is, to a twentieth.
/// False if no node has a smaller one then.
bool narrow(std::vector<std::uint32_t>& windows, const std::vector<std::size_t>& memory,
            std::size_t limit) {
  const std::size_t count = windows.size();
  // How many nodes may run while a node does, or in front of it, that stand behind it; or it may
  // overtake others itself.
  std::vector<std::ptrdiff_t> change(count + 1);
  for (std::size_t node = 0; node < count; ++node) {
    if (windows[node] != 0) {
      ++change[node - std::min<std::size_t>(node, windows[node])];
      --change[node + 1];
    }
  }
  std::size_t most = 0;
  std::ptrdiff_t beside = 0;
  std::vector<bool> full(count);
  for (std::size_t node = 0; node < count; ++node) {
    beside += change[node];
    full[node] = beside > 0;
    most = full[node] ? std::max(most, memory[node]) : most;
  }
  const std::size_t above = std::min(limit, most / 20 * 19);
  bool smaller = false;
  std::optional<std::size_t> last;  // up to this node, at which it is too much
  for (std::size_t node = 0; node < count; ++node) {
    if (full[node] && memory[node] > above) {
      last = node;
    }
    if (last && *last + windows[node] >= node) {
      smaller = smaller || windows[node] != 0;
      windows[node] = windows[node] * 3 / 4;
    }
  }
  return smaller;
}

}  // namespace

Layout lay_out_for(const NodeOrder& order, const Scratch& scratch, const LinkOptions& options,
                   std::span<const std::uint32_t> cuts, std::vector<PartSpan>& spans) {
  if (!cuts.empty()) {
    return lay_out_parts(scratch, order, cuts, spans);
  }
  Layout layout = lay_out(scratch.buffers(), order,
                          {.share = options.share_scratch,
                           .in_pieces = options.arena_in_pieces,
                           .lenders = scratch.lenders(),
                           .smallest_loan = options.smallest_loan});
  spans.assign(layout.pieces.size(), {});
  return layout;
}

void thread(const Driver& driver, const LinkedGraph& linked, const Edges& edges) {
  CUgraph graph = linked.graph.get();
  const GraphStructure before = read_structure(driver, graph);
  std::vector<CUgraphNode> from;
  std::vector<CUgraphNode> to;
  std::vector<CUgraphEdgeData> data;
  for (const GraphEdge& edge : before.edges) {
    from.push_back(before.nodes[edge.from]);
    to.push_back(before.nodes[edge.to]);
    data.push_back(edge.data);
  }
  driver.check(
      driver.api.cuGraphRemoveDependencies(graph, from.data(), to.data(), data.data(), from.size()),
      "cuGraphRemoveDependencies", "the linked graph");
  from.clear();
  to.clear();
  for (const auto& [first, second] : edges) {
    from.push_back(linked.image.nodes[first].handle);
    to.push_back(linked.image.nodes[second].handle);
  }
  driver.check(
      driver.api.cuGraphAddDependencies(graph, from.data(), to.data(), nullptr, from.size()),
      "cuGraphAddDependencies", "the linked graph");
}

void fold_scratch(const Scratch& scratch, LinkedGraph& linked) {
  for (Relocation& relocation : linked.relocations) {
    if (scratch.holds(relocation.region)) {
      scratch.move(relocation, linked.layout, linked.arena);
    }
  }
}

std::shared_ptr<const Independence> find_independence(const Driver& driver,
                                                      const LinkRequest& request,
                                                      std::span<const Region> places,
                                                      const Scratch& scratch,
                                                      const LinkedGraph& linked) {
  const std::vector<Node>& nodes = linked.image.nodes;
  if (nodes.size() > kMostNodes) {
    return nullptr;
  }
  Accesses accesses =
      accesses_of(linked.image, linked.relocations, linked.table.foreign, places, request.known);
  keep_to_use(accesses, scratch);
  const int processors = processors_of(driver);
  std::vector<bool> fills(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].kind == NodeKind::kKernel) {
      accesses.barrier[i] = accesses.barrier[i] || is_cooperative(driver, nodes[i]);
      fills[i] = fills_device(driver, nodes[i].shape, processors);
    }
  }
  Edges dependencies = true_dependencies(accesses);
  const std::size_t regions = scratch.regions();
  std::vector<std::vector<Mention>> mentions = mentions_of(accesses, regions);
  return std::make_shared<const Independence>(
      Independence{std::move(accesses), std::move(mentions), bytes_of(request, scratch, regions),
                   kept_by_caller(request, regions), std::move(dependencies), std::move(fills),
                   scratch, linked.relocations, request.options});
}

std::optional<LinkedGraph> spread(const Driver& driver, const LinkedGraph& linked,
                                  const SpreadOptions& options) {
  if (linked.independence == nullptr) {
    return std::nullopt;
  }
  const Independence& known = *linked.independence;
  const std::size_t nodes = linked.image.nodes.size();
  std::vector<NodeCost> costs(nodes);
  for (std::size_t i = 0; i < nodes; ++i) {
    costs[i].fills = known.fills[i];
    if (!options.node_us.empty()) {
      costs[i].us = options.node_us[i];
    }
  }
  const auto allowed =
      options.memory * static_cast<double>(most_at_once(linked.pieces(), linked.spans));
  const std::size_t limit = std::max(kFreeBytes, static_cast<std::size_t>(allowed));
  std::vector<std::uint32_t> windows(nodes, static_cast<std::uint32_t>(nodes));
  while (true) {
    Lanes lanes = in_lanes(known.dependencies, options.lanes, windows, costs, linked.cuts);
    if (lanes.count <= 1) {
      return std::nullopt;
    }
    Image image;
    image.nodes.resize(nodes);
    image.edges = std::move(lanes.edges);
    const NodeOrder order(image);
    std::vector<PartSpan> spans;
    Layout layout = lay_out_for(order, known.scratch, known.options, linked.cuts, spans);
    if (most_at_once(layout.pieces, spans) > limit) {
      if (!narrow(windows, memory_by_node(known.scratch.buffers(), order), limit)) {
        return std::nullopt;
      }
      continue;
    }
    if (find_race(placed(known.accesses, known.scratch, layout, linked.arena), order)) {
      return std::nullopt;
    }
    LinkedGraph made = clone_of(driver, linked);
    thread(driver, made, image.edges);
    made.image.edges = std::move(image.edges);
    made.image.programmatic.clear();
    made.layout = std::move(layout);
    made.spans = std::move(spans);
    made.relocations = known.relocations;
    fold_scratch(known.scratch, made);
    made.lanes = lanes.count;
    made.predicted_us = options.node_us.empty() ? 0 : lanes.us;
    return made;
  }
}

}  // namespace pygraph
