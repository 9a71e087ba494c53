// Which host numbers explain what differs between two captures.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pygraph/host_number.h"
#include "pygraph/image.h"

namespace pygraph {

/// Eight bytes of a block, or the four behind the last eight, as they are in both captures.
struct ComparedBits {
  std::uint64_t a;
  std::uint64_t b;
  std::uint32_t bytes;
};

class NumberIndex {
 public:
  /// Throws std::invalid_argument for a number whose two values are of different types, or are the
  /// same in an encoding: what does not differ cannot be found.
  explicit NumberIndex(std::span<const HostNumber> numbers);

  [[nodiscard]] bool empty() const noexcept { return candidates_.empty(); }

  struct Explanation {
    std::vector<NumberWord> words;  ///< by offset; of `node` 0
    bool complete = false;          ///< nothing differs besides
    bool ambiguous = false;         ///< `words` contradict each other
  };

  /// What the bits at byte `offset` of a node's block hold; nothing where the node is no kernel. In
  /// array form a number lies in one parameter, and a parameter of 8 bytes is one number if it can
  /// be. Elsewhere an integer of 64 bits and one of 32 bits in front of zeros look the same:
  /// kSmallInteger is both.
  [[nodiscard]] Explanation explain(const Node& node, std::uint32_t offset,
                                    ComparedBits bits) const;

 private:
  struct Candidate {
    ComparedBits bits;
    std::uint32_t number;
    NumberEncoding encoding;
  };

  [[nodiscard]] std::vector<NumberWord> find(std::uint32_t offset, ComparedBits bits) const;

  std::vector<Candidate> candidates_;
};

}  // namespace pygraph
