// Which memory each buffer goes to; where in it, placer.h finds out.
#include <algorithm>
#include <utility>

#include "layout/placer.h"

namespace pygraph {
namespace {

/// At up to 10 ns each. With more, the second order is left out: it gains a percent or two.
constexpr std::size_t kManyLooks = 10'000'000;
/// Smaller shares of the arena are not lent memory: they would hardly make it smaller.
constexpr std::size_t kShareWorthALoan = 32;
/// What the arena must become smaller by, as a share of arena and lenders together, so that more of
/// the graph is patched when an output moves.
constexpr std::size_t kShareWorthLending = 64;
/// Of the arena in one piece: the size from which all pieces are.
constexpr std::size_t kSharePerPiece = 8;

class Plan {
 public:
  Plan(std::span<const Buffer> buffers, const NodeOrder& order, const LayoutOptions& options)
      : buffers_(buffers),
        order_(order),
        options_(options),
        lives_(lives_of(buffers, order)),
        placer_(buffers, lives_, order, options.alignment) {
    layout_.offsets.assign(buffers.size(), Layout::kNoPlace);
    layout_.memory.assign(buffers.size(), Layout::kNoMemory);
  }

  Layout all() {
    std::uint32_t devices = 1;
    for (const Buffer& buffer : buffers_) {
      devices = std::max(devices, buffer.device + 1);
    }
    for (; device_ < devices; ++device_) {
      Indices own;
      for (std::uint32_t i = 0; i < buffers_.size(); ++i) {
        if (!buffers_[i].nodes.empty() && buffers_[i].device == device_) {
          own.push_back(i);
        }
      }
      if (device_ != 0 && own.empty()) {
        continue;
      }
      if (options_.share) {
        share(std::move(own));
      } else {
        keep_apart(own);
      }
    }
    return std::move(layout_);
  }

 private:
  void share(Indices rest) {
    Arena arena = pack(rest);
    if (!options_.lenders.empty()) {
      borrow(rest, arena);
    }
    layout_.lower_bound += arena.lower_bound;
    if (options_.in_pieces) {
      add_pieces(rest, arena.packing.bytes);
    } else {
      add_piece(arena.packing);
    }
  }

  void keep_apart(const Indices& chosen) {
    Packing arena;
    for (const std::uint32_t buffer : chosen) {
      arena.spots.push_back({buffer, arena.bytes});
      arena.bytes += round_up(buffers_[buffer].bytes, options_.alignment);
    }
    layout_.lower_bound += lower_bound(chosen);
    add_piece(arena);
  }

  struct Arena {
    Packing packing;
    std::size_t lower_bound;
  };

  /// Those with the largest `key` first.
  template <typename Key>
  static Indices descending(const Indices& chosen, const Key& key) {
    std::vector<std::pair<std::size_t, std::uint32_t>> keyed;
    keyed.reserve(chosen.size());
    for (const std::uint32_t index : chosen) {
      keyed.emplace_back(key(index), index);
    }
    std::stable_sort(keyed.begin(), keyed.end(),
                     [](const auto& left, const auto& right) { return left.first > right.first; });
    Indices sequence;
    sequence.reserve(keyed.size());
    for (const auto& [value, index] : keyed) {
      sequence.push_back(index);
    }
    return sequence;
  }

  [[nodiscard]] Indices by_size(const Indices& chosen) const {
    return descending(chosen, [&](std::uint32_t i) { return buffers_[i].bytes; });
  }

  [[nodiscard]] std::size_t lower_bound(const Indices& chosen) const {
    return live_maximum(buffers_, lives_, chosen, order_, options_.alignment);
  }

  /// The better of two orders.
  Arena pack(const Indices& chosen) {
    const std::size_t bound = lower_bound(chosen);
    Packing packing = placer_.place(by_size(chosen));
    if (packing.bytes != bound && placer_.looks() < kManyLooks) {
      Packing other = placer_.place(descending(chosen, [&](std::uint32_t i) {
        return buffers_[i].bytes * (lives_[i].end - lives_[i].first);
      }));
      if (other.bytes < packing.bytes) {
        packing = std::move(other);
      }
    }
    return {std::move(packing), bound};
  }

  /// Lets lenders take what they can of `rest`, whose arena is `arena`, if that is worth it: then
  /// both are of what is left.
  void borrow(Indices& rest, Arena& arena) {
    const std::size_t before = arena.packing.bytes;
    const std::size_t least =
        std::max({options_.smallest_loan, before / kShareWorthALoan, std::size_t{1}});
    Indices lenders;
    for (std::uint32_t i = 0; i < options_.lenders.size(); ++i) {
      if (options_.lenders[i].device == device_) {
        lenders.push_back(i);
      }
    }
    std::size_t lent = 0;
    std::vector<std::pair<std::uint32_t, Packing>> loans;
    Indices left = by_size(rest);
    for (const std::uint32_t lender :
         descending(lenders, [&](std::uint32_t i) { return options_.lenders[i].bytes; })) {
      lent += options_.lenders[lender].bytes;
      loans.emplace_back(lender, place_in(options_.lenders[lender], left, least));
      remove(left, loans.back().second);
    }
    if (left.size() == rest.size()) {
      return;
    }
    std::sort(left.begin(), left.end());
    Arena smaller = pack(left);
    const std::size_t worth =
        std::max(options_.smallest_loan, (before + lent) / kShareWorthLending);
    if (smaller.packing.bytes + worth > before) {
      return;
    }
    for (const auto& [lender, packing] : loans) {
      put(packing, lender);
      layout_.lent += packing.spots.size();
    }
    rest = std::move(left);
    arena = std::move(smaller);
  }

  /// Those of `candidates` with at least `least` bytes that are done before the lender's first node
  /// starts.
  Packing place_in(const Lender& lender, const Indices& candidates, std::size_t least) {
    const Buffer itself{lender.bytes, lender.nodes, lender.device};
    const Life life = lives_of({&itself, 1}, order_).front();
    Indices done;
    std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(done),
                 [&](std::uint32_t i) {
                   return buffers_[i].bytes >= least && branches_allow(lives_[i], life, order_);
                 });
    return placer_.place(done, lender.bytes);
  }

  static void remove(Indices& from, const Packing& placed) {
    Indices gone;
    gone.reserve(placed.spots.size());
    for (const Packing::Spot& spot : placed.spots) {
      gone.push_back(spot.buffer);
    }
    std::sort(gone.begin(), gone.end());
    std::erase_if(from, [&](std::uint32_t buffer) {
      return std::binary_search(gone.begin(), gone.end(), buffer);
    });
  }

  void put(const Packing& packing, std::uint32_t memory) {
    for (const Packing::Spot& spot : packing.spots) {
      layout_.offsets[spot.buffer] = spot.offset;
      layout_.memory[spot.buffer] = memory;
    }
  }

  void add_piece(const Packing& packing) {
    put(packing, static_cast<std::uint32_t>(options_.lenders.size() + layout_.pieces.size()));
    layout_.pieces.push_back(packing.bytes);
    layout_.devices.push_back(device_);
    layout_.bytes += packing.bytes;
  }

  /// One piece after the other, each as large as the largest buffer that has no place yet.
  void add_pieces(const Indices& chosen, std::size_t in_one_piece) {
    Indices left = by_size(chosen);
    const std::size_t least = in_one_piece / kSharePerPiece;
    do {
      const std::size_t largest = left.empty() ? 0 : buffers_[left.front()].bytes;
      const std::size_t capacity = round_up(std::max(largest, least), options_.alignment);
      const Packing piece = placer_.place(left, capacity);
      add_piece(piece);
      remove(left, piece);
    } while (!left.empty());
  }

  std::span<const Buffer> buffers_;
  const NodeOrder& order_;
  const LayoutOptions& options_;
  std::vector<Life> lives_;
  Placer placer_;
  std::uint32_t device_ = 0;  ///< whose memory is being laid out
  Layout layout_;
};

}  // namespace

Layout lay_out(std::span<const Buffer> buffers, const NodeOrder& order,
               const LayoutOptions& options) {
  return Plan(buffers, order, options).all();
}

}  // namespace pygraph
