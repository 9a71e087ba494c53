#include "pygraph/link.h"

#include <cstddef>
#include <utility>

#include "copies.h"
#include "cut.h"
#include "foreign.h"
#include "lanes.h"
#include "prepare.h"
#include "scratch.h"

namespace pygraph {
namespace {

/// What the passes share: what was asked for, what is being made, and what one pass leaves for
/// those behind it.
struct LinkContext {
  const Driver& driver;
  const LinkRequest& request;
  LinkedGraph linked{};
  Prepared a{};                  ///< capture A; its graph and image move to `linked`
  Prepared b{};                  ///< its probe
  std::vector<Region> own{};     ///< the memory that the graphs allocate themselves
  std::vector<Region> places{};  ///< of the given regions, then of `own`
  Scratch scratch{{}, {}, {}, 0};

  /// The program's region of the first of `own`, until the arena swallows them: the destinations of
  /// the copies and the arena stand between the given regions and the graph's own.
  [[nodiscard]] std::uint32_t first_own() const { return linked.arena + 1; }
};

void prepare(LinkContext& context) {
  const LinkRequest& request = context.request;
  const ReadOptions options{request.options.keep_host_functions};
  context.a = prepare_copy(context.driver, request.a, options);
  context.b = prepare_probe(context.driver, request.b, options);
  context.linked.graph = std::move(context.a.graph);
  context.linked.image = std::move(context.a.image);
}

void find_own_memory(LinkContext& context) {
  context.own =
      own_memory(context.a.allocations, context.b.allocations, context.linked.table.problems);
}

void find_relocations(LinkContext& context) {
  const LinkRequest& request = context.request;
  std::vector<Region>& places = context.places;
  places.reserve(request.regions.size() + context.own.size());
  for (const LinkRegion& region : request.regions) {
    places.push_back(region.place);
  }
  places.insert(places.end(), context.own.begin(), context.own.end());
  context.linked.table =
      relocate(context.linked.image, context.b.image, places, request.phantom_begin,
               request.phantom_end, device_memory_test(context.driver), request.numbers);
}

/// The driver does not tell in which context a copy or a fill was captured. A copy runs on the
/// device that it reads from, as torch has it (aten/src/ATen/native/cuda/Copy.cu), and a fill on
/// the one that it writes.
void place_copies(LinkContext& context) {
  const std::span<const CUcontext> contexts = context.request.contexts;
  LinkedGraph& linked = context.linked;
  for (const Relocation& relocation : linked.table.relocations) {
    Node& node = linked.image.nodes[relocation.node];
    const bool fill = node.kind == NodeKind::kMemset;
    const bool source =
        node.kind == NodeKind::kMemcpy && relocation.offset < offsetof(CUDA_MEMCPY3D, dstXInBytes);
    if ((fill || source) && relocation.region < context.request.regions.size()) {
      node.shape.context = contexts[context.request.regions[relocation.region].device];
    }
  }
}

void number_regions(LinkContext& context) {
  LinkedGraph& linked = context.linked;
  const std::size_t given = context.request.regions.size();
  linked.first_copy = static_cast<std::uint32_t>(given);
  linked.arena = linked.first_copy + static_cast<std::uint32_t>(context.request.copies.size());
  linked.relocations = linked.table.relocations;
  for (Relocation& relocation : linked.relocations) {
    if (relocation.region >= given) {
      relocation.region += context.first_own() - linked.first_copy;
    }
  }
}

void take_numbers(LinkContext& context) {
  context.linked.numbers = context.linked.table.numbers;
  context.linked.number_count = context.request.numbers.size();
}

void count_mentions(LinkContext& context) {
  LinkedGraph& linked = context.linked;
  linked.mentions.assign(context.request.regions.size(), 0);
  for (const Relocation& relocation : linked.relocations) {
    if (relocation.region < linked.mentions.size()) {
      ++linked.mentions[relocation.region];
    }
  }
}

void find_scratch(LinkContext& context) {
  const LinkRequest& request = context.request;
  LinkedGraph& linked = context.linked;
  context.scratch = Scratch(request.regions, request.copies, context.own, context.first_own());
  context.scratch.find_nodes(linked.relocations, linked.image, request.operators);
  linked.last_nodes = context.scratch.last_nodes();
}

/// With the cuts that there are.
void lay_out_scratch(LinkContext& context) {
  LinkedGraph& linked = context.linked;
  linked.layout = lay_out_for(NodeOrder(linked.image), context.scratch, context.request.options,
                              linked.cuts, linked.spans);
}

/// What needs memory when, in a graph of as many nodes.
std::vector<Tenant> tenants(const Scratch& scratch, std::uint32_t nodes) {
  std::vector<Tenant> found;
  const std::uint32_t last_node = nodes - 1;
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

void cut_into_parts(LinkContext& context) {
  const LinkOptions& options = context.request.options;
  LinkedGraph& linked = context.linked;
  const auto nodes = static_cast<std::uint32_t>(linked.image.nodes.size());
  if (!options.share_scratch || options.peak_slack == LinkOptions{}.peak_slack || nodes == 0 ||
      context.request.contexts.size() > 1) {
    return;
  }
  const std::vector<Tenant> needed = tenants(context.scratch, nodes);
  if (one_part_is_enough(needed, nodes, linked.layout.bytes, options.peak_slack)) {
    return;
  }
  linked.cuts = choose_cuts(needed, nodes, options.peak_slack);
  if (!linked.cuts.empty()) {
    lay_out_scratch(context);
  }
}

void find_what_is_independent(LinkContext& context) {
  if (context.request.options.independence) {
    const auto given = std::span(context.places).first(context.request.regions.size());
    context.linked.independence =
        find_independence(context.driver, context.request, given, context.scratch, context.linked);
  }
}

}  // namespace

LinkedGraph link(const Driver& driver, const LinkRequest& request) {
  LinkContext context{driver, request};

  // Throws for copies of what is not there, before the driver is asked for anything.
  check_copies(request.copies, request.regions);

  // Capture A cloned, and flattened with its probe where child graphs or memory nodes are in the
  // way. Behind this neither capture is looked at again: the graph is our own.
  prepare(context);
  if (request.contexts.size() > 1 && (context.a.flattened || context.b.flattened)) {
    throw UnsupportedGraph(
        "the captured graph works on several devices, and has child graphs or memory of its own: "
        "copies and fills that are made anew would run on the first of them");
  }

  // Memory that both graphs allocate themselves becomes regions, or a problem where it differs.
  find_own_memory(context);
  if (!context.linked.table.sound()) {
    return std::move(context.linked);
  }

  // What differs between A and B by a region's displacement is a relocation, what differs as a host
  // number does is one of its words. Behind this addresses mean nothing, and the probe is done
  // with.
  find_relocations(context);
  if (!context.linked.table.sound()) {
    return std::move(context.linked);
  }
  if (request.contexts.size() > 1) {
    place_copies(context);
  }

  // From the numbering of the comparison to that of the program. Behind this `relocations` and
  // `numbers` are what counts, and `table` only what was found.
  number_regions(context);
  take_numbers(context);

  // The copies that the caller wants run behind every leaf. The nodes are complete here: what
  // changes the graph stands above this line.
  add_copies(driver, request, context.linked);

  // Relocations are complete, too: what follows only tells where memory is.
  count_mentions(context);

  // The nodes during which each scratch region is in use.
  find_scratch(context);

  // Every scratch region gets its place in the arena or in an output, as for a graph of one part.
  lay_out_scratch(context);

  // Where that takes more at once than it must, the graph is cut, and its scratch laid out again.
  cut_into_parts(context);

  // What does not depend on each other, for who has that run side by side (spread). Relocations
  // still tell pieces of scratch apart here.
  find_what_is_independent(context);

  // Relocations of scratch become relocations of what the scratch was laid out in.
  fold_scratch(context.scratch, context.linked);
  return std::move(context.linked);
}

}  // namespace pygraph
