#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "layout/life.h"

namespace pygraph {
namespace {

using Indices = std::vector<std::uint32_t>;

/// The buffers placed so far, to be asked for those of a range of nodes: a binary tree over all
/// buffers by the start of their lives, each tree node with the last end of a life below it.
class PlacedByLife {
 public:
  explicit PlacedByLife(std::span<const Life> lives)
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

  void clear() { std::fill(last_end_.begin(), last_end_.end(), 0); }

  void add(std::uint32_t buffer, std::uint32_t end) {
    for (std::size_t node = leaves_ + rank_[buffer]; node != 0; node /= 2) {
      last_end_[node] = std::max(last_end_[node], end);
    }
  }

  /// Appends the placed buffers that live somewhere in [begin, end), but stops at `limit` of them.
  void find(std::uint32_t begin, std::uint32_t end, std::size_t limit, Indices& found) const {
    const auto last = std::lower_bound(firsts_.begin(), firsts_.end(), end);
    visit(1, 0, leaves_, {begin, static_cast<std::size_t>(last - firsts_.begin()), limit}, found);
  }

 private:
  struct Query {
    std::uint32_t begin;
    std::size_t ranks;
    std::size_t limit;
  };

  void visit(std::size_t node, std::size_t left, std::size_t width, const Query& query,
             Indices& found) const {
    if (last_end_[node] <= query.begin || left >= query.ranks || found.size() >= query.limit) {
      return;
    }
    if (width == 1) {
      found.push_back(by_first_[left]);
      return;
    }
    visit(2 * node, left, width / 2, query, found);
    visit(2 * node + 1, left + width / 2, width / 2, query, found);
  }

  Indices by_first_;
  Indices rank_;
  std::vector<std::uint32_t> firsts_;
  std::size_t leaves_ = 1;
  std::vector<std::uint32_t> last_end_;  ///< 0: nothing placed
};

/// Places buffers one after the other, each at the lowest offset that fits.
class Placement {
 private:
  /// What is looked at most often of a placed buffer, in little memory. Bytes, and nodes.
  struct Spot {
    std::size_t begin;
    std::size_t end;
    std::uint32_t first_node;
    std::uint32_t end_node;
  };

 public:
  Placement(std::span<const Buffer> buffers, std::span<const Life> lives, const NodeOrder& order,
            std::size_t alignment)
      : buffers_(buffers),
        lives_(lives),
        order_(order),
        alignment_(alignment),
        spots_(buffers.size()),
        placed_(lives) {}

  Layout place(const Indices& sequence) {
    layout_ = {};
    layout_.offsets.assign(buffers_.size(), Layout::kNoPlace);
    placed_.clear();
    by_offset_.clear();
    for (const std::uint32_t buffer : sequence) {
      put(buffer, lowest_offset(buffer));
    }
    return std::move(layout_);
  }

  /// Pairs of buffers looked at so far, about.
  [[nodiscard]] std::size_t looks() const noexcept { return looks_; }

 private:
  /// Where few of the placed buffers live at the same time, those are looked up and sorted; where
  /// many do, going through all by offset is cheaper.
  std::size_t lowest_offset(std::uint32_t buffer) {
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
        const Spot& spot = spots_[other];
        if (spot.begin >= offset + bytes) {
          break;  // the hole before it is large enough
        }
        if (spot.end > offset && !may_share(life, spot, other)) {
          offset = spot.end;
        }
      }
      return offset;
    }
    looks_ += neighbours_.size();
    taken_.clear();
    for (const std::uint32_t other : neighbours_) {
      if (!may_share(life, spots_[other], other)) {
        taken_.emplace_back(spots_[other].begin, spots_[other].end);
      }
    }
    std::sort(taken_.begin(), taken_.end());
    for (const auto& [begin, end] : taken_) {
      if (begin >= offset + bytes) {
        break;
      }
      offset = std::max(offset, end);
    }
    return offset;
  }

  /// Whether one is done before the other begins.
  [[nodiscard]] bool may_share(const Life& life, const Spot& spot, std::uint32_t other) const {
    if (spot.first_node >= life.all_after || spot.end_node <= life.all_before) {
      return true;
    }
    if (life.serial() || (spot.first_node < life.end && life.first < spot.end_node)) {
      return false;
    }
    // Two nodes that are at hand refuse most pairs.
    if (life.end <= spot.first_node) {
      return order_.precedes(life.end - 1, spot.first_node) &&
             branches_allow(life, lives_[other], order_);
    }
    return order_.precedes(spot.end_node - 1, life.first) &&
           branches_allow(lives_[other], life, order_);
  }

  void put(std::uint32_t buffer, std::size_t offset) {
    const std::size_t end = round_up(offset + buffers_[buffer].bytes, alignment_);
    spots_[buffer] = {offset, end, lives_[buffer].first, lives_[buffer].end};
    layout_.offsets[buffer] = offset;
    layout_.bytes = std::max(layout_.bytes, end);
    placed_.add(buffer, lives_[buffer].end);
    const auto position = std::upper_bound(
        by_offset_.begin(), by_offset_.end(), offset,
        [&](std::size_t value, std::uint32_t other) { return value < layout_.offsets[other]; });
    by_offset_.insert(position, buffer);
  }

  std::span<const Buffer> buffers_;
  std::span<const Life> lives_;
  const NodeOrder& order_;
  std::size_t alignment_;
  std::size_t looks_ = 0;
  std::vector<Spot> spots_;
  Layout layout_;
  PlacedByLife placed_;
  Indices by_offset_;
  Indices neighbours_;
  std::vector<std::pair<std::size_t, std::size_t>> taken_;
};

/// The buffers that need a place, those with the largest `key` first.
template <typename Key>
Indices descending(std::span<const Buffer> buffers, const Key& key) {
  Indices sequence;
  std::vector<std::size_t> keys;
  for (std::uint32_t i = 0; i < buffers.size(); ++i) {
    keys.push_back(key(i));
    if (!buffers[i].nodes.empty()) {
      sequence.push_back(i);
    }
  }
  std::stable_sort(sequence.begin(), sequence.end(), [&](std::uint32_t left, std::uint32_t right) {
    return keys[left] > keys[right];
  });
  return sequence;
}

/// At up to 10 ns each. With more, the second order is left out: it gains a percent or two.
constexpr std::size_t kManyLooks = 10'000'000;

}  // namespace

Layout lay_out(std::span<const Buffer> buffers, const NodeOrder& order, std::size_t alignment) {
  const std::vector<Life> lives = lives_of(buffers, order);
  Placement placement(buffers, lives, order, alignment);
  const std::size_t lower_bound = live_maximum(buffers, lives, order, alignment);
  Layout layout = placement.place(descending(buffers, [&](auto i) { return buffers[i].bytes; }));
  if (layout.bytes != lower_bound && placement.looks() < kManyLooks) {
    Layout other = placement.place(descending(
        buffers, [&](auto i) { return buffers[i].bytes * (lives[i].end - lives[i].first); }));
    if (other.bytes < layout.bytes) {
      layout = std::move(other);
    }
  }
  layout.lower_bound = lower_bound;
  return layout;
}

}  // namespace pygraph
