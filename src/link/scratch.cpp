#include "scratch.h"

#include <algorithm>

#include "operators.h"

namespace pygraph {
namespace {

/// Adds the nodes that may start before one of `nodes` has finished: they still find its buffers in
/// use.
void add_programmatic_successors(std::vector<std::uint32_t>& nodes, const Image& image) {
  std::vector<bool> uses(image.nodes.size());
  for (const std::uint32_t node : nodes) {
    uses[node] = true;
  }
  // Ascending, so chains are followed to their end.
  for (const auto& [from, to] : image.programmatic) {
    uses[to] = uses[to] || uses[from];
  }
  nodes.clear();
  for (std::uint32_t node = 0; node < uses.size(); ++node) {
    if (uses[node]) {
      nodes.push_back(node);
    }
  }
}

void add_node(std::vector<std::uint32_t>& nodes, std::uint32_t node) {
  if (nodes.empty() || nodes.back() != node) {
    nodes.push_back(node);
  }
}

}  // namespace

Scratch::Scratch(std::span<const LinkRegion> regions, std::span<const CopyOut> copies,
                 std::span<const Region> own_memory, std::uint32_t first_own)
    : buffer_of_(first_own + own_memory.size(), kNone),
      lender_of_(first_own + own_memory.size(), kNone),
      spent_of_(regions.size(), kNone) {
  times_.reserve(regions.size());
  for (const LinkRegion& region : regions) {
    times_.push_back(region.times);
  }
  for (std::size_t i = 0; i < regions.size(); ++i) {
    if (regions[i].role == RegionRole::kScratch) {
      add_buffer(i, regions[i].used_bytes, regions[i].device);
    } else if (regions[i].role == RegionRole::kFresh) {
      add_lender(i, regions[i].used_bytes, regions[i].device);
    } else if (regions[i].role == RegionRole::kSpent) {
      spent_of_[i] = static_cast<std::uint32_t>(spent_.size());
      spent_.push_back({regions[i].used_bytes, {}, regions[i].device});
    }
  }
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (copies[i].fresh) {
      add_lender(regions.size() + i, copies[i].bytes, regions[copies[i].region].device);
    }
  }
  for (std::size_t i = 0; i < own_memory.size(); ++i) {
    add_buffer(first_own + i, own_memory[i].bytes, 0);
  }
}

void Scratch::add_buffer(std::size_t region, std::size_t bytes, std::uint32_t device) {
  buffer_of_[region] = static_cast<std::uint32_t>(buffers_.size());
  buffers_.push_back({bytes, {}, device});
}

void Scratch::add_lender(std::size_t region, std::size_t bytes, std::uint32_t device) {
  lender_of_[region] = static_cast<std::uint32_t>(lenders_.size());
  lenders_.push_back({bytes, {}, device});
  region_of_lender_.push_back(static_cast<std::uint32_t>(region));
}

void Scratch::find_nodes(std::span<const Relocation> relocations, const Image& image,
                         std::span<const OperatorSpan> operators) {
  std::vector<std::vector<std::uint32_t>> mentions(buffer_of_.size());
  for (const Relocation& relocation : relocations) {  // ascending by node
    add_node(mentions[relocation.region], relocation.node);
  }
  const Operators known(image, operators);
  std::vector<CreationSpan> possible(mentions.size());
  if (known.any()) {
    times_.resize(mentions.size());
    possible = possible_use(image, times_, mentions);
  }
  for (std::size_t region = 0; region < mentions.size(); ++region) {
    std::vector<std::uint32_t>* nodes = nodes_of(region);
    if (nodes == nullptr) {
      continue;
    }
    *nodes = std::move(mentions[region]);
    if (holds(static_cast<std::uint32_t>(region)) && !image.programmatic.empty()) {
      add_programmatic_successors(*nodes, image);
    }
    if (known.any()) {
      known.complete(*nodes, possible[region]);
    }
  }
}

std::vector<std::uint32_t>* Scratch::nodes_of(std::size_t region) {
  if (buffer_of_[region] != kNone) {
    return &buffers_[buffer_of_[region]].nodes;
  }
  if (lender_of_[region] != kNone) {
    return &lenders_[lender_of_[region]].nodes;
  }
  const bool spent = region < spent_of_.size() && spent_of_[region] != kNone;
  return spent ? &spent_[spent_of_[region]].nodes : nullptr;
}

std::vector<std::uint32_t> Scratch::last_nodes() const {
  std::vector<std::uint32_t> found(spent_of_.size());
  for (std::size_t i = 0; i < spent_of_.size(); ++i) {
    if (spent_of_[i] != kNone && !spent_[spent_of_[i]].nodes.empty()) {
      found[i] = spent_[spent_of_[i]].nodes.back();
    }
  }
  return found;
}

void Scratch::move(Relocation& relocation, const Layout& layout, std::uint32_t arena) const {
  const std::uint32_t buffer = buffer_of_[relocation.region];
  const std::uint32_t memory = layout.memory[buffer];
  relocation.addend += static_cast<std::int64_t>(layout.offsets[buffer]);
  relocation.region = memory < lenders_.size()
                          ? region_of_lender_[memory]
                          : arena + memory - static_cast<std::uint32_t>(lenders_.size());
}

}  // namespace pygraph
