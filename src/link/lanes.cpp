#include "lanes.h"

#include <algorithm>
#include <utility>

#include "../image/structure.h"
#include "../layout/life.h"

namespace pygraph {
namespace {

/// What precedes what is a bit for each pair of nodes here, and each pair that shares memory is
/// looked at.
constexpr std::size_t kMostNodes = 4096;
/// What torch's allocator takes from the driver at least (kSmallBuffer, CUDACachingAllocator).
constexpr std::size_t kFreeBytes = std::size_t{2} << 20;

/// Whether all blocks of a kernel must be resident at once, since they wait for each other: beside
/// another of its kind neither might get the room.
bool is_cooperative(const Driver& driver, const Node& node) {
  if (node.kind != NodeKind::kKernel) {
    return false;
  }
  CUkernelNodeAttrValue value{};
  driver.check(driver.api.cuGraphKernelNodeGetAttribute(
                   node.handle, CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &value),
               "cuGraphKernelNodeGetAttribute", "the linked graph");
  return value.cooperative != 0;
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

/// The graph's edges, which are those of `image`, become `edges`.
void thread(const Driver& driver, CUgraph graph, const Image& image, const Edges& edges) {
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
    from.push_back(image.nodes[first].handle);
    to.push_back(image.nodes[second].handle);
  }
  driver.check(
      driver.api.cuGraphAddDependencies(graph, from.data(), to.data(), nullptr, from.size()),
      "cuGraphAddDependencies", "the linked graph");
}

}  // namespace

Layout lay_out_for(const NodeOrder& order, const Scratch& scratch, const LinkOptions& options) {
  return lay_out(scratch.buffers(), order,
                 {.share = options.share_scratch,
                  .in_pieces = options.arena_in_pieces,
                  .lenders = scratch.lenders(),
                  .smallest_loan = options.smallest_loan});
}

void spread_over_lanes(const Driver& driver, const LinkRequest& request,
                       std::span<const Region> places, const Scratch& scratch,
                       LinkedGraph& linked) {
  const LinkOptions& options = request.options;
  const std::size_t nodes = linked.image.nodes.size();
  if (nodes > kMostNodes) {
    return;
  }
  Accesses accesses =
      accesses_of(linked.image, linked.relocations, linked.table.foreign, places, request.known);
  for (std::size_t node = 0; node < nodes; ++node) {
    if (is_cooperative(driver, linked.image.nodes[node])) {
      accesses.barrier[node] = true;
    }
  }
  const Edges dependencies = true_dependencies(accesses);
  const auto limit = std::max(
      kFreeBytes,
      static_cast<std::size_t>(options.parallel_memory * static_cast<double>(linked.layout.bytes)));
  std::vector<std::uint32_t> windows(nodes, static_cast<std::uint32_t>(nodes));
  while (true) {
    Lanes lanes = in_lanes(dependencies, options.lanes, windows);
    if (lanes.count == 1) {
      return;
    }
    Image image;
    image.nodes.resize(nodes);
    image.edges = std::move(lanes.edges);
    const NodeOrder order(image);
    Layout layout = lay_out_for(order, scratch, options);
    if (layout.bytes > limit) {
      if (!narrow(windows, memory_by_node(scratch.buffers(), order), limit)) {
        return;
      }
      continue;
    }
    if (find_race(placed(accesses, scratch, layout, linked.arena), order)) {
      return;
    }
    thread(driver, linked.graph.get(), linked.image, image.edges);
    linked.image.edges = std::move(image.edges);
    linked.image.programmatic.clear();
    linked.layout = std::move(layout);
    linked.spans.assign(linked.layout.pieces.size(), {});
    linked.lanes = lanes.count;
    return;
  }
}

}  // namespace pygraph
