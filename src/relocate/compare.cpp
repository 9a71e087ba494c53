#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#include "device_memory.h"
#include "number_index.h"
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

  /// The regions before and behind `address` in capture A, where they are near.
  [[nodiscard]] std::array<std::optional<std::uint32_t>, 2> beside(CUdeviceptr address) const {
    constexpr CUdeviceptr kNear = 4096;  // phantom memory leaves as much between neighbours
    const auto after = std::upper_bound(
        order_.begin(), order_.end(), address,
        [&](CUdeviceptr value, std::uint32_t region) { return value < regions_[region].a; });
    std::array<std::optional<std::uint32_t>, 2> found;
    if (after != order_.begin()) {
      const Region& before = regions_[*std::prev(after)];
      if (address - before.a <= before.bytes + kNear) {
        found[0] = *std::prev(after);
      }
    }
    if (after != order_.end() && regions_[*after].a - address <= kNear) {
      found[1] = *after;
    }
    return found;
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

// Only what the driver uses is compared: the unused fields of its structs (host pointers, arrays)
// need not agree.
struct CopyPlace {
  std::size_t x;
  std::size_t pitch;
  std::size_t height;
};

bool same_place(const CopyPlace& a, const CopyPlace& b, bool rows, bool slices) {
  return a.x == b.x && (!rows || a.pitch == b.pitch) && (!slices || a.height == b.height);
}

bool same_extent(const Node& left, const Node& right) {
  const auto a = left.as<CUDA_MEMCPY3D>();
  const auto b = right.as<CUDA_MEMCPY3D>();
  if (a.WidthInBytes != b.WidthInBytes || a.Height != b.Height || a.Depth != b.Depth ||
      a.srcMemoryType != b.srcMemoryType || a.dstMemoryType != b.dstMemoryType ||
      a.srcY != b.srcY || a.srcZ != b.srcZ || a.dstY != b.dstY || a.dstZ != b.dstZ) {
    return false;
  }
  const bool source_slices = a.Depth > 1 || a.srcZ != 0;
  const bool target_slices = a.Depth > 1 || a.dstZ != 0;
  const bool source_rows = a.Height > 1 || a.srcY != 0 || source_slices;
  const bool target_rows = a.Height > 1 || a.dstY != 0 || target_slices;
  return same_place({a.srcXInBytes, a.srcPitch, a.srcHeight},
                    {b.srcXInBytes, b.srcPitch, b.srcHeight}, source_rows, source_slices) &&
         same_place({a.dstXInBytes, a.dstPitch, a.dstHeight},
                    {b.dstXInBytes, b.dstPitch, b.dstHeight}, target_rows, target_slices);
}

bool same_fill(const Node& left, const Node& right) {
  const auto a = left.as<CUDA_MEMSET_NODE_PARAMS>();
  const auto b = right.as<CUDA_MEMSET_NODE_PARAMS>();
  return a.width == b.width && a.height == b.height && (a.height <= 1 || a.pitch == b.pitch) &&
         a.elementSize == b.elementSize && a.value == b.value;
}

/// Whether the word at `offset` of a copy is its source.
bool reads(std::uint32_t offset) { return offset < offsetof(CUDA_MEMCPY3D, dstXInBytes); }

/// What the word at `offset` of a copy addresses, as far as the copy says.
enum class CopyEnd : std::uint8_t { kDevice, kHost, kUnified };

CopyEnd copy_end(const Node& node, std::uint32_t offset) {
  const auto copy = node.as<CUDA_MEMCPY3D>();
  switch (reads(offset) ? copy.srcMemoryType : copy.dstMemoryType) {
    case CU_MEMORYTYPE_HOST:
      return CopyEnd::kHost;
    case CU_MEMORYTYPE_UNIFIED:
      return CopyEnd::kUnified;
    default:
      return CopyEnd::kDevice;
  }
}

std::string text_of(const LaunchShape& shape) {
  return fmt::format("{} x {} x {} blocks of {} x {} x {} threads with {} bytes of shared memory",
                     shape.grid[0], shape.grid[1], shape.grid[2], shape.block[0], shape.block[1],
                     shape.block[2], shape.shared_bytes);
}

std::string difference(const LaunchShape& a, const LaunchShape& b) {
  if (a.function != b.function || a.kernel != b.kernel || a.context != b.context) {
    return "another kernel";
  }
  return fmt::format("another launch shape: {} in capture A, {} in the probe", text_of(a),
                     text_of(b));
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
    return difference(a.shape, b.shape);
  }
  if (a.kind == NodeKind::kMemcpy && !same_extent(a, b)) {
    return "a copy of another extent";
  }
  if (a.kind == NodeKind::kMemset && !same_fill(a, b)) {
    return "a fill of another extent or value";
  }
  const bool event = a.kind == NodeKind::kEventRecord || a.kind == NodeKind::kEventWait;
  if ((event || a.kind == NodeKind::kHost) && a.block != b.block) {
    return event ? "another event" : "another host function, or other data for it";
  }
  return {};
}

/// Goes through the words of one pair of nodes after the other.
class Comparison {
 public:
  Comparison(std::span<const Region> regions, CUdeviceptr phantom_begin, CUdeviceptr phantom_end,
             const IsDeviceMemory& is_device_memory, std::span<const HostNumber> numbers)
      : regions_(regions),
        index_(regions),
        numbers_(numbers),
        phantom_begin_(phantom_begin),
        phantom_end_(phantom_end),
        is_device_memory_(is_device_memory) {}

  void nodes(std::uint32_t node, const Node& left, const Node& right) {
    if (std::string why = difference(left, right); !why.empty()) {
      refuse(node, fmt::format("node {}: the probe has {}", node, why));
      return;
    }
    for (const std::uint32_t offset : left.words) {
      ++table_.words;
      word(node, offset, left, left.word(offset), right.word(offset));
    }
    if (!numbers_.empty()) {
      half_word_at_end(node, left, right);
    }
  }

  LinkTable& table() { return table_; }

 private:
  void refuse(std::uint32_t node, std::string problem) {
    if (table_.problems.empty()) {
      table_.problem_node = node;
    }
    table_.problems.push_back(std::move(problem));
  }

  void word(std::uint32_t node, std::uint32_t offset, const Node& left, std::uint64_t in_a,
            std::uint64_t in_b) {
    const std::optional<std::uint32_t> region = index_.find(in_a);
    if (region.has_value()) {
      const auto addend = static_cast<std::int64_t>(in_a - regions_[*region].a);
      if (in_b == regions_[*region].b + static_cast<std::uint64_t>(addend)) {
        table_.relocations.push_back({node, offset, *region, addend});
        return;
      }
    }
    if (const std::optional<std::uint32_t> near = neighbour(in_a, in_b); near.has_value()) {
      const auto addend = static_cast<std::int64_t>(in_a - regions_[*near].a);
      table_.relocations.push_back({node, offset, *near, addend});
      return;
    }
    if (in_a != in_b && numbers_explain(node, offset, left, {in_a, in_b, sizeof in_a})) {
      return;
    }
    if (left.kind == NodeKind::kMemcpy && unexplained_host_end(left, offset, in_a)) {
      refuse(node, fmt::format("node {} copies {} host memory at {:#x} that no region explains: it "
                               "may be gone when the graph runs",
                               node, reads(offset) ? "from" : "to", in_a));
    } else if (in_a != in_b && phantom(in_a) && !may_be_padding(left, offset)) {
      refuse(node, fmt::format("node {} offset {}: the phantom address {:#x} became {:#x} in the "
                               "probe, which no region explains",
                               node, offset, in_a, in_b));
    } else if (in_a != in_b) {
      ++table_.noise;
      table_.strays += phantom(in_a) ? 1 : 0;
      table_.noise_words.push_back({node, offset, in_a, in_b, certain(left, offset, in_a, in_b)});
    } else if (region.has_value()) {
      ++table_.coincidences;
    } else if (!phantom(in_a) && is_device_memory_(in_a)) {
      table_.foreign.push_back({node, offset, in_a});
    }
  }

  /// Packed parameters may end in half a word, which holds no address.
  void half_word_at_end(std::uint32_t node, const Node& left, const Node& right) {
    const std::size_t whole = left.block.size() / sizeof(std::uint64_t) * sizeof(std::uint64_t);
    std::uint32_t in_a = 0;
    std::uint32_t in_b = 0;
    if (left.block.size() - whole < sizeof in_a) {
      return;
    }
    std::memcpy(&in_a, left.block.data() + whole, sizeof in_a);
    std::memcpy(&in_b, right.block.data() + whole, sizeof in_b);
    numbers_explain(node, static_cast<std::uint32_t>(whole), left, {in_a, in_b, sizeof in_a});
  }

  /// Notes the host numbers among these bits, and says whether nothing differs besides.
  bool numbers_explain(std::uint32_t node, std::uint32_t offset, const Node& left,
                       ComparedBits bits) {
    if (numbers_.empty()) {
      return false;
    }
    NumberIndex::Explanation found = numbers_.explain(left, offset, bits);
    if (found.ambiguous) {
      std::string names;
      for (const NumberWord& word : found.words) {
        names += fmt::format("{}{} ({} bytes at {})", names.empty() ? "" : ", ", word.number,
                             bytes_of(word.encoding), word.offset);
      }
      refuse(node, fmt::format("node {} offset {}: {:#x} became {:#x} in the probe, which host "
                               "numbers explain in more than one way: {}",
                               node, offset, bits.a, bits.b, names));
    }
    for (NumberWord& word : found.words) {
      word.node = node;
    }
    std::move(found.words.begin(), found.words.end(), std::back_inserter(table_.numbers));
    return found.complete;
  }

  /// The region a little beside which `in_a` lies, when the word moved along with it: kernels
  /// receive pointers from which they go on or back by an index (a convolution's padding).
  [[nodiscard]] std::optional<std::uint32_t> neighbour(std::uint64_t in_a,
                                                       std::uint64_t in_b) const {
    if (in_a == in_b || !phantom(in_a)) {
      return std::nullopt;
    }
    for (const std::optional<std::uint32_t> region : index_.beside(in_a)) {
      if (region.has_value() && in_b - in_a == regions_[*region].b - regions_[*region].a) {
        return region;
      }
    }
    return std::nullopt;
  }

  /// Whether the word at `offset` may hold bytes that mean nothing: it lies in a struct passed by
  /// value. A parameter of 8 bytes is a pointer or a number and has no padding.
  static bool may_be_padding(const Node& node, std::uint32_t offset) {
    if (node.form != ParameterForm::kArray) {
      return false;
    }
    const auto after = std::upper_bound(
        node.parameters.begin(), node.parameters.end(), offset,
        [](std::uint32_t value, const ParameterSlot& slot) { return value < slot.offset; });
    return after == node.parameters.begin() || std::prev(after)->offset != offset ||
           std::prev(after)->size != sizeof(std::uint64_t);
  }

  /// See NoiseWord.
  bool certain(const Node& node, std::uint32_t offset, std::uint64_t in_a, std::uint64_t in_b) {
    if (node.form == ParameterForm::kPacked) {
      return is_device_memory_(in_a) && is_device_memory_(in_b);
    }
    if (node.form != ParameterForm::kArray) {
      return true;
    }
    for (std::uint32_t i = 0; i < sizeof in_a; ++i) {
      const bool differs = ((in_a ^ in_b) >> (8 * i) & 0xffU) != 0;
      if (differs && std::any_of(node.parameters.begin(), node.parameters.end(),
                                 [byte = offset + i](const ParameterSlot& slot) {
                                   return slot.size > 1 && slot.size <= sizeof in_a &&
                                          slot.offset <= byte && byte < slot.offset + slot.size;
                                 })) {
        return true;
      }
    }
    return false;
  }

  bool unexplained_host_end(const Node& node, std::uint32_t offset, std::uint64_t address) {
    const CopyEnd end = copy_end(node, offset);
    return end == CopyEnd::kHost || (end == CopyEnd::kUnified && !phantom(address) &&
                                     is_device_memory_.answers() && !is_device_memory_(address));
  }

  [[nodiscard]] bool phantom(std::uint64_t address) const {
    return address >= phantom_begin_ && address < phantom_end_;
  }

  std::span<const Region> regions_;
  RegionIndex index_;
  NumberIndex numbers_;
  CUdeviceptr phantom_begin_;
  CUdeviceptr phantom_end_;
  DeviceMemoryTest is_device_memory_;
  LinkTable table_;
};

}  // namespace

LinkTable relocate(const Image& a, const Image& b, std::span<const Region> regions,
                   CUdeviceptr phantom_begin, CUdeviceptr phantom_end,
                   const IsDeviceMemory& is_device_memory, std::span<const HostNumber> numbers) {
  Comparison comparison(regions, phantom_begin, phantom_end, is_device_memory, numbers);
  LinkTable& table = comparison.table();
  if (a.nodes.size() != b.nodes.size()) {
    table.problems.push_back(
        fmt::format("capture A has {} nodes, its probe {}", a.nodes.size(), b.nodes.size()));
    return std::move(table);
  }
  if (a.edges != b.edges || a.programmatic != b.programmatic) {
    table.problems.emplace_back("capture A and its probe have different edges");
    return std::move(table);
  }
  for (std::uint32_t node = 0; node < a.nodes.size(); ++node) {
    comparison.nodes(node, a.nodes[node], b.nodes[node]);
  }
  return std::move(table);
}

}  // namespace pygraph
