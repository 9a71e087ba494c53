#include "scratch.h"

#include <algorithm>

namespace pygraph {
namespace {

/// Adds the nodes that may start before one of `nodes` has finished: they still find its buffers in
/// use.
void add_early_successors(std::vector<std::uint32_t>& nodes, const Image& image) {
  std::vector<bool> uses(image.nodes.size());
  for (const std::uint32_t node : nodes) {
    uses[node] = true;
  }
  for (const auto& [from, to] : image.early) {  // ascending, so chains are followed to their end
    uses[to] = uses[to] || uses[from];
  }
  nodes.clear();
  for (std::uint32_t node = 0; node < uses.size(); ++node) {
    if (uses[node]) {
      nodes.push_back(node);
    }
  }
}

/// The nodes of each operator that has several, and which operator a node belongs to.
class Operators {
 public:
  Operators(const Image& image, std::span<const OperatorSpan> spans)
      : operator_of_(image.nodes.size(), kNone) {
    if (image.created.size() != image.nodes.size()) {
      return;
    }
    std::vector<std::uint32_t> by_creation(image.nodes.size());
    for (std::uint32_t node = 0; node < by_creation.size(); ++node) {
      by_creation[image.created[node]] = node;
    }
    for (const OperatorSpan& span : spans) {
      const std::size_t end = std::min<std::size_t>(span.end, by_creation.size());
      if (span.begin + std::size_t{1} >= end) {
        continue;
      }
      std::vector<std::uint32_t>& nodes = nodes_.emplace_back(
          by_creation.begin() + span.begin, by_creation.begin() + static_cast<std::ptrdiff_t>(end));
      std::sort(nodes.begin(), nodes.end());
      for (const std::uint32_t node : nodes) {
        operator_of_[node] = static_cast<std::uint32_t>(nodes_.size() - 1);
      }
    }
  }

  [[nodiscard]] bool any() const noexcept { return !nodes_.empty(); }

  /// Adds the other nodes of the operators that `nodes` (ascending) belong to.
  void complete(std::vector<std::uint32_t>& nodes) const {
    std::vector<std::uint32_t> added;
    std::uint32_t last = kNone;
    for (const std::uint32_t node : nodes) {
      const std::uint32_t found = operator_of_[node];
      if (found != kNone && found != last) {
        added.insert(added.end(), nodes_[found].begin(), nodes_[found].end());
      }
      last = found;
    }
    if (!added.empty()) {
      nodes.insert(nodes.end(), added.begin(), added.end());
      std::sort(nodes.begin(), nodes.end());
      nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    }
  }

 private:
  static constexpr std::uint32_t kNone = ~0U;

  std::vector<std::vector<std::uint32_t>> nodes_;
  std::vector<std::uint32_t> operator_of_;  ///< by node
};

void add_node(std::vector<std::uint32_t>& nodes, std::uint32_t node) {
  if (nodes.empty() || nodes.back() != node) {
    nodes.push_back(node);
  }
}

}  // namespace

Scratch::Scratch(std::span<const LinkRegion> regions, std::span<const std::size_t> room,
                 std::span<const CopyOut> copies, std::span<const Region> own_memory,
                 std::uint32_t first_own)
    : buffer_of_(first_own + own_memory.size(), kNone),
      lender_of_(first_own + own_memory.size(), kNone),
      spent_of_(regions.size(), kNone) {
  for (std::size_t i = 0; i < regions.size(); ++i) {
    if (regions[i].role == RegionRole::kScratch) {
      add_buffer(i, room[i]);
    } else if (regions[i].role == RegionRole::kFresh) {
      add_lender(i, regions[i].used_bytes);
    } else if (regions[i].role == RegionRole::kSpent) {
      spent_of_[i] = static_cast<std::uint32_t>(spent_.size());
      spent_.push_back({regions[i].used_bytes, {}});
    }
  }
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (copies[i].fresh) {
      add_lender(regions.size() + i, copies[i].bytes);
    }
  }
  for (std::size_t i = 0; i < own_memory.size(); ++i) {
    add_buffer(first_own + i, own_memory[i].bytes);
  }
}

void Scratch::add_buffer(std::size_t region, std::size_t bytes) {
  buffer_of_[region] = static_cast<std::uint32_t>(buffers_.size());
  buffers_.push_back({bytes, {}});
}

void Scratch::add_lender(std::size_t region, std::size_t bytes) {
  lender_of_[region] = static_cast<std::uint32_t>(lenders_.size());
  lenders_.push_back({bytes, {}});
  region_of_lender_.push_back(static_cast<std::uint32_t>(region));
}

void Scratch::find_nodes(std::span<const Relocation> relocations, const Image& image,
                         std::span<const OperatorSpan> operators) {
  for (const Relocation& relocation : relocations) {  // ascending by node
    if (holds(relocation.region)) {
      add_node(buffers_[buffer_of_[relocation.region]].nodes, relocation.node);
    } else if (lender_of_[relocation.region] != kNone) {
      add_node(lenders_[lender_of_[relocation.region]].nodes, relocation.node);
    } else if (relocation.region < spent_of_.size() && spent_of_[relocation.region] != kNone) {
      add_node(spent_[spent_of_[relocation.region]].nodes, relocation.node);
    }
  }
  const Operators known(image, operators);
  for (Buffer& buffer : buffers_) {
    if (!image.early.empty()) {
      add_early_successors(buffer.nodes, image);
    }
    if (known.any()) {
      known.complete(buffer.nodes);
    }
  }
  if (known.any()) {
    for (Lender& lender : lenders_) {
      known.complete(lender.nodes);
    }
    for (Buffer& spent : spent_) {
      known.complete(spent.nodes);
    }
  }
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
