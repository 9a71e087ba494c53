#include <algorithm>
#include <numeric>

#include "pygraph/layout.h"

namespace pygraph {
namespace {

using Bits = std::vector<std::uint64_t>;

void set(std::uint64_t* bits, std::uint32_t index) { bits[index / 64] |= 1ULL << (index % 64); }

/// Every node of `first` precedes every node of `second`.
bool wholly_before(const Buffer& first, const Buffer& second, const NodeOrder& order) {
  // A buffer's nodes ascend in topological order, so disjoint lives need the last node of the one
  // to come before the first of the other; the loops decide what branches leave open.
  if (first.nodes.back() >= second.nodes.front()) {
    return false;
  }
  return std::all_of(first.nodes.begin(), first.nodes.end(), [&](std::uint32_t before) {
    return std::all_of(second.nodes.begin(), second.nodes.end(),
                       [&](std::uint32_t after) { return order.precedes(before, after); });
  });
}

bool may_share(const Buffer& left, const Buffer& right, const NodeOrder& order) {
  return wholly_before(left, right, order) || wholly_before(right, left, order);
}

std::size_t round_up(std::size_t value, std::size_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

/// Whether `buffer` holds something that is needed while `node` runs, in every order of execution
/// that the graph allows.
bool live_at(const Buffer& buffer, std::uint32_t node, const NodeOrder& order) {
  bool before = false;
  bool after = false;
  for (const std::uint32_t user : buffer.nodes) {
    if (user == node) {
      return true;
    }
    before = before || order.precedes(user, node);
    after = after || order.precedes(node, user);
  }
  return before && after;
}

std::size_t live_maximum(std::span<const Buffer> buffers, const NodeOrder& order,
                         std::size_t alignment) {
  std::vector<std::size_t> live(order.size(), 0);
  for (const Buffer& buffer : buffers) {
    if (buffer.nodes.empty()) {
      continue;
    }
    for (std::uint32_t node = buffer.nodes.front(); node <= buffer.nodes.back(); ++node) {
      if (live_at(buffer, node, order)) {
        live[node] += round_up(buffer.bytes, alignment);
      }
    }
  }
  return live.empty() ? 0 : *std::max_element(live.begin(), live.end());
}

}  // namespace

NodeOrder::NodeOrder(const Image& image)
    : size_(image.nodes.size()), words_((size_ + 63) / 64), reach_(size_ * words_, 0) {
  // Edges ascend (image.h), so going through them backwards sees every node's reach complete
  // before it is added to that of its predecessors.
  for (auto edge = image.edges.rbegin(); edge != image.edges.rend(); ++edge) {
    const auto [from, to] = *edge;
    std::uint64_t* before = &reach_[from * words_];
    const std::uint64_t* after = &reach_[to * words_];
    for (std::size_t word = 0; word < words_; ++word) {
      before[word] |= after[word];
    }
    set(before, to);
  }
}

Layout lay_out(std::span<const Buffer> buffers, const NodeOrder& order, std::size_t alignment) {
  Layout layout;
  layout.offsets.assign(buffers.size(), Layout::kNoPlace);
  layout.lower_bound = live_maximum(buffers, order, alignment);

  std::vector<std::uint32_t> by_size(buffers.size());
  std::iota(by_size.begin(), by_size.end(), 0U);
  std::stable_sort(by_size.begin(), by_size.end(), [&](std::uint32_t left, std::uint32_t right) {
    return buffers[left].bytes > buffers[right].bytes;
  });

  std::vector<std::uint32_t> placed;  // by ascending offset
  for (const std::uint32_t candidate : by_size) {
    const Buffer& buffer = buffers[candidate];
    if (buffer.nodes.empty()) {
      continue;
    }
    std::size_t offset = 0;
    for (const std::uint32_t other : placed) {
      if (layout.offsets[other] >= offset + buffer.bytes) {
        break;  // the hole before `other` is large enough
      }
      if (!may_share(buffer, buffers[other], order)) {
        offset =
            std::max(offset, round_up(layout.offsets[other] + buffers[other].bytes, alignment));
      }
    }
    layout.offsets[candidate] = offset;
    layout.bytes = std::max(layout.bytes, round_up(offset + buffer.bytes, alignment));
    const auto position = std::upper_bound(
        placed.begin(), placed.end(), offset,
        [&](std::size_t value, std::uint32_t other) { return value < layout.offsets[other]; });
    placed.insert(position, candidate);
  }
  return layout;
}

}  // namespace pygraph
