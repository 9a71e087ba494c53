#include "scratch.h"

#include <algorithm>

namespace pygraph {
namespace {

constexpr std::size_t kAlignment = 512;  // of lay_out

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

}  // namespace

Scratch::Scratch(std::span<const LinkRegion> regions, std::span<const std::size_t> room,
                 std::span<const Region> own_memory, std::uint32_t first_own)
    : buffer_of_(first_own + own_memory.size(), kNone) {
  for (std::size_t i = 0; i < regions.size(); ++i) {
    if (regions[i].role == RegionRole::kScratch) {
      add(i, room[i]);
    }
  }
  for (std::size_t i = 0; i < own_memory.size(); ++i) {
    add(first_own + i, own_memory[i].bytes);
  }
}

void Scratch::add(std::size_t region, std::size_t bytes) {
  buffer_of_[region] = static_cast<std::uint32_t>(buffers_.size());
  buffers_.push_back({bytes, {}});
}

std::vector<Buffer> Scratch::buffers(std::span<const Relocation> relocations, const Image& image,
                                     std::span<const OperatorSpan> operators) const {
  std::vector<Buffer> made = buffers_;
  for (const Relocation& relocation : relocations) {  // ascending by node
    if (!holds(relocation.region)) {
      continue;
    }
    std::vector<std::uint32_t>& nodes = made[buffer(relocation.region)].nodes;
    if (nodes.empty() || nodes.back() != relocation.node) {
      nodes.push_back(relocation.node);
    }
  }
  const Operators known(image, operators);
  for (Buffer& buffer : made) {
    if (!image.early.empty()) {
      add_early_successors(buffer.nodes, image);
    }
    if (known.any()) {
      known.complete(buffer.nodes);
    }
  }
  return made;
}

void set_apart(std::span<const Buffer> buffers, Layout& layout) {
  layout.bytes = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (!buffers[i].nodes.empty()) {
      layout.offsets[i] = layout.bytes;
      layout.bytes += (buffers[i].bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
  }
}

}  // namespace pygraph
