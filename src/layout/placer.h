// Placing buffers one after the other, each at the lowest offset that fits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "layout/life.h"
#include "pygraph/layout.h"

namespace pygraph {

using Indices = std::vector<std::uint32_t>;

/// The buffers placed so far, to be asked for those of a range of nodes: a binary tree over all
/// buffers by the start of their lives, each tree node with the last end of a life below it.
class PlacedByLife {
 public:
  explicit PlacedByLife(std::span<const Life> lives);

  void clear();
  void add(std::uint32_t buffer, std::uint32_t end);

  /// Appends the placed buffers that live somewhere in [begin, end), but stops at `limit` of them.
  void find(std::uint32_t begin, std::uint32_t end, std::size_t limit, Indices& found) const;

 private:
  Indices by_first_;
  Indices rank_;
  std::vector<std::uint32_t> firsts_;
  std::size_t leaves_ = 1;
  std::vector<std::uint32_t> last_end_;  ///< by tree node, the root at 1; 0: nothing placed
};

/// Where buffers stand in one piece of memory, and how much of it they need.
struct Packing {
  struct Spot {
    std::uint32_t buffer;
    std::size_t offset;
  };
  std::vector<Spot> spots;
  std::size_t bytes = 0;  ///< a multiple of the alignment
};

class Placer {
 public:
  static constexpr std::size_t kEndless = std::numeric_limits<std::size_t>::max();

  /// All of these must outlive it.
  Placer(std::span<const Buffer> buffers, std::span<const Life> lives, const NodeOrder& order,
         std::size_t alignment);

  /// Places the buffers of `sequence` in turn, and leaves out those for which `capacity` bytes have
  /// no hole. All of them must have nodes.
  Packing place(const Indices& sequence, std::size_t capacity = kEndless);

  /// Pairs of buffers looked at so far, about.
  [[nodiscard]] std::size_t looks() const noexcept { return looks_; }

 private:
  /// What is looked at most often of a placed buffer, in little memory. Bytes, and nodes.
  struct Taken {
    std::size_t begin;
    std::size_t end;
    std::uint32_t first_node;
    std::uint32_t end_node;
  };

  std::size_t lowest_offset(std::uint32_t buffer);
  [[nodiscard]] bool may_share(const Life& life, const Taken& taken, std::uint32_t other) const;
  void put(std::uint32_t buffer, std::size_t offset);

  std::span<const Buffer> buffers_;
  std::span<const Life> lives_;
  const NodeOrder& order_;
  std::size_t alignment_;
  std::size_t looks_ = 0;
  std::vector<Taken> taken_;  ///< by buffer
  PlacedByLife placed_;
  Indices by_offset_;
  Indices neighbours_;
  std::vector<std::pair<std::size_t, std::size_t>> held_;
};

}  // namespace pygraph
