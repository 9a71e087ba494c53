#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "pygraph/relocate.h"

namespace pygraph {
namespace {

/// Regions sorted by their address in capture A, for finding the one that holds a word.
class RegionIndex {
 public:
  explicit RegionIndex(std::span<const Region> regions)
      : regions_(regions), order_(regions.size()) {
    std::iota(order_.begin(), order_.end(), 0U);
    refuse_overlap([](const Region& region) { return region.b; }, "B");
    refuse_overlap([](const Region& region) { return region.a; }, "A");  // leaves order_ by A
  }

  /// The region that holds `address` in capture A. The address one past a region's end belongs to
  /// it too, unless another region starts there: kernels receive end pointers.
  [[nodiscard]] std::optional<std::uint32_t> find(CUdeviceptr address) const {
    auto after = std::upper_bound(
        order_.begin(), order_.end(), address,
        [&](CUdeviceptr value, std::uint32_t region) { return value < regions_[region].a; });
    if (after == order_.begin()) {
      return std::nullopt;
    }
    const std::uint32_t region = *std::prev(after);
    if (address - regions_[region].a > regions_[region].bytes) {
      return std::nullopt;
    }
    return region;
  }

 private:
  template <typename Place>
  void refuse_overlap(Place place, const char* capture) {
    std::sort(order_.begin(), order_.end(), [&](std::uint32_t left, std::uint32_t right) {
      return place(regions_[left]) < place(regions_[right]);
    });
    for (std::size_t i = 1; i < order_.size(); ++i) {
      const Region& before = regions_[order_[i - 1]];
      if (place(before) + before.bytes > place(regions_[order_[i]])) {
        throw std::invalid_argument(
            fmt::format("regions {} and {} overlap in capture {}: {:#x} + {} bytes reaches {:#x}",
                        order_[i - 1], order_[i], capture, place(before), before.bytes,
                        place(regions_[order_[i]])));
      }
    }
  }

  std::span<const Region> regions_;
  std::vector<std::uint32_t> order_;
};

template <typename Struct>
Struct as(const Node& node) {
  Struct params;
  std::memcpy(&params, node.block.data(), sizeof params);
  return params;
}

// Only what the driver uses is compared: the unused fields of its structs (host pointers, arrays)
// need not agree.
bool same_extent(const Node& left, const Node& right) {
  const auto a = as<CUDA_MEMCPY3D>(left);
  const auto b = as<CUDA_MEMCPY3D>(right);
  return a.WidthInBytes == b.WidthInBytes && a.Height == b.Height && a.Depth == b.Depth &&
         a.srcXInBytes == b.srcXInBytes && a.dstXInBytes == b.dstXInBytes &&
         a.srcMemoryType == b.srcMemoryType && a.dstMemoryType == b.dstMemoryType;
}

bool same_fill(const Node& left, const Node& right) {
  const auto a = as<CUDA_MEMSET_NODE_PARAMS>(left);
  const auto b = as<CUDA_MEMSET_NODE_PARAMS>(right);
  return a.width == b.width && a.height == b.height && a.elementSize == b.elementSize &&
         a.value == b.value;
}

/// Why the two nodes do not do the same work; empty when they do.
std::string difference(const Node& a, const Node& b) {
  if (a.kind != b.kind || a.form != b.form) {
    return "another type of node";
  }
  if (a.block.size() != b.block.size()) {
    return fmt::format("a parameter block of {} against {} bytes", a.block.size(), b.block.size());
  }
  if (!(a.shape == b.shape)) {
    return "another kernel or launch shape";
  }
  if (a.kind == NodeKind::kMemcpy && !same_extent(a, b)) {
    return "a copy of another extent";
  }
  if (a.kind == NodeKind::kMemset && !same_fill(a, b)) {
    return "a fill of another extent or value";
  }
  return {};
}

}  // namespace

LinkTable relocate(const Image& a, const Image& b, std::span<const Region> regions,
                   CUdeviceptr phantom_begin, CUdeviceptr phantom_end) {
  LinkTable table;
  const RegionIndex index(regions);
  if (a.nodes.size() != b.nodes.size()) {
    table.problems.push_back(
        fmt::format("capture A has {} nodes, its probe {}", a.nodes.size(), b.nodes.size()));
    return table;
  }
  if (a.edges != b.edges) {
    table.problems.emplace_back("capture A and its probe have different edges");
    return table;
  }
  for (std::uint32_t node = 0; node < a.nodes.size(); ++node) {
    const Node& left = a.nodes[node];
    const Node& right = b.nodes[node];
    if (std::string why = difference(left, right); !why.empty()) {
      table.problems.push_back(fmt::format("node {}: the probe has {}", node, why));
      continue;
    }
    for (const std::uint32_t offset : left.words) {
      const std::uint64_t in_a = left.word(offset);
      const std::uint64_t in_b = right.word(offset);
      ++table.words;
      const std::optional<std::uint32_t> region = index.find(in_a);
      if (region.has_value()) {
        const auto addend = static_cast<std::int64_t>(in_a - regions[*region].a);
        if (in_b == regions[*region].b + static_cast<std::uint64_t>(addend)) {
          table.relocations.push_back({node, offset, *region, addend});
          continue;
        }
      }
      if (in_a == in_b) {
        table.coincidences += region.has_value() ? 1 : 0;
      } else if (in_a >= phantom_begin && in_a < phantom_end) {
        table.problems.push_back(
            fmt::format("node {} offset {}: the phantom address {:#x} became {:#x} in the probe, "
                        "which no region explains",
                        node, offset, in_a, in_b));
      } else {
        ++table.noise;
      }
    }
  }
  return table;
}

}  // namespace pygraph
