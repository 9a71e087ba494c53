#include "layout/placer.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace pygraph {

PlacedByLife::PlacedByLife(std::span<const Life> lives)
    : by_first_(lives.size()), rank_(lives.size()) {
  std::iota(by_first_.begin(), by_first_.end(), 0U);
  std::sort(by_first_.begin(), by_first_.end(), [&](std::uint32_t left, std::uint32_t right) {
    return lives[left].first < lives[right].first;
  });
  firsts_.reserve(lives.size());
  for (std::size_t rank = 0; rank < lives.size(); ++rank) {
    rank_[by_first_[rank]] = static_cast<std::uint32_t>(rank);
    firsts_.push_back(lives[by_first_[rank]].first);
  }
  leaves_ = std::bit_ceil(std::max<std::size_t>(lives.size(), 1));
  last_end_.assign(2 * leaves_, 0);
}

void PlacedByLife::clear() { std::fill(last_end_.begin(), last_end_.end(), 0); }

void PlacedByLife::add(std::uint32_t buffer, std::uint32_t end) {
  for (std::size_t node = leaves_ + rank_[buffer]; node != 0 && last_end_[node] < end; node /= 2) {
    last_end_[node] = end;
  }
}

void PlacedByLife::find(std::uint32_t begin, std::uint32_t end, std::size_t limit,
                        Indices& found) const {
  const auto last = std::lower_bound(firsts_.begin(), firsts_.end(), end);
  const std::size_t end_leaf = leaves_ + static_cast<std::size_t>(last - firsts_.begin());
  std::size_t node = 1;
  do {
    if (last_end_[node] > begin) {
      if (node < leaves_) {
        node *= 2;
        continue;
      }
      if (node >= end_leaf || found.size() >= limit) {
        return;
      }
      found.push_back(by_first_[node - leaves_]);
    }
    // The widest subtree that begins where this one ends; the root again, behind the last.
    ++node;
    node >>= std::countr_zero(node);
  } while (node != 1);
}

Placer::Placer(std::span<const Buffer> buffers, std::span<const Life> lives, const NodeOrder& order,
               std::size_t alignment)
    : buffers_(buffers),
      lives_(lives),
      order_(order),
      alignment_(alignment),
      taken_(buffers.size()),
      placed_(lives) {}

Packing Placer::place(const Indices& sequence, std::size_t capacity) {
  Packing packing;
  packing.spots.reserve(sequence.size());
  placed_.clear();
  by_offset_.clear();
  for (const std::uint32_t buffer : sequence) {
    const std::size_t bytes = buffers_[buffer].bytes;
    if (bytes > capacity) {
      continue;
    }
    const std::size_t offset = lowest_offset(buffer);
    if (offset > capacity - bytes) {
      continue;
    }
    put(buffer, offset);
    packing.spots.push_back({buffer, offset});
    packing.bytes = std::max(packing.bytes, taken_[buffer].end);
  }
  return packing;
}

/// Where few of the placed buffers live at the same time, those are looked up and sorted; where
/// many do, going through all by offset is cheaper.
std::size_t Placer::lowest_offset(std::uint32_t buffer) {
  constexpr std::size_t kFew = 16;
  constexpr std::size_t kShare = 24;
  const Life& life = lives_[buffer];
  const std::size_t bytes = buffers_[buffer].bytes;
  const std::size_t limit = kFew + by_offset_.size() / kShare;
  std::size_t offset = 0;
  neighbours_.clear();
  placed_.find(life.all_before, life.all_after, limit, neighbours_);
  if (neighbours_.size() == limit) {
    looks_ += by_offset_.size();
    for (const std::uint32_t other : by_offset_) {
      const Taken& taken = taken_[other];
      if (taken.begin >= offset + bytes) {
        break;  // the hole before it is large enough
      }
      if (taken.end > offset && !may_share(life, taken, other)) {
        offset = taken.end;
      }
    }
    return offset;
  }
  looks_ += neighbours_.size();
  held_.clear();
  for (const std::uint32_t other : neighbours_) {
    if (!may_share(life, taken_[other], other)) {
      held_.emplace_back(taken_[other].begin, taken_[other].end);
    }
  }
  std::sort(held_.begin(), held_.end());
  for (const auto& [begin, end] : held_) {
    if (begin >= offset + bytes) {
      break;
    }
    offset = std::max(offset, end);
  }
  return offset;
}

/// Whether one is done before the other begins.
bool Placer::may_share(const Life& life, const Taken& taken, std::uint32_t other) const {
  if (taken.first_node >= life.all_after || taken.end_node <= life.all_before) {
    return true;
  }
  if (life.serial() || (taken.first_node < life.end && life.first < taken.end_node)) {
    return false;
  }
  // Two nodes that are at hand refuse most pairs.
  if (life.end <= taken.first_node) {
    return order_.precedes(life.end - 1, taken.first_node) &&
           branches_allow(life, lives_[other], order_);
  }
  return order_.precedes(taken.end_node - 1, life.first) &&
         branches_allow(lives_[other], life, order_);
}

void Placer::put(std::uint32_t buffer, std::size_t offset) {
  const std::size_t end = round_up(offset + buffers_[buffer].bytes, alignment_);
  taken_[buffer] = {offset, end, lives_[buffer].first, lives_[buffer].end};
  placed_.add(buffer, lives_[buffer].end);
  const auto position = std::upper_bound(
      by_offset_.begin(), by_offset_.end(), offset,
      [&](std::size_t value, std::uint32_t other) { return value < taken_[other].begin; });
  by_offset_.insert(position, buffer);
}

}  // namespace pygraph
