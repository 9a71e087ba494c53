#include <algorithm>

#include "pygraph/layout.h"

namespace pygraph {
namespace {

/// A number per chain costs as much as so many bits.
constexpr std::size_t kBitsPerNumber = 32;

}  // namespace

NodeOrder::NodeOrder(const Image& image) : size_(image.nodes.size()) {
  const std::vector<std::vector<std::uint32_t>> chains = cut_into_chains(image);
  if (chains.size() * kBitsPerNumber <= size_ || chains.size() == 1) {
    reach_by_chain(image, chains);
  } else {
    reach_by_bit(image);
  }
  // All of 0 .. first - 1 are followed by everything from `node` on.
  before_.resize(size_);
  std::uint32_t first = 0;
  for (std::uint32_t node = 0; node < size_; ++node) {
    while (after_[first] <= node) {
      ++first;
    }
    before_[node] = first;
  }
}

std::vector<std::vector<std::uint32_t>> NodeOrder::cut_into_chains(const Image& image) {
  std::vector<std::vector<std::uint32_t>> chains;
  places_.assign(size_, {kNever, 0});
  const auto append = [&](std::uint32_t chain, std::uint32_t node) {
    places_[node] = {chain, static_cast<std::uint32_t>(chains[chain].size())};
    chains[chain].push_back(node);
  };
  // Edges ascend (image.h), so a node is on its chain before its own edges are looked at.
  auto edge = image.edges.begin();
  for (std::uint32_t node = 0; node < size_; ++node) {
    if (places_[node].chain == kNever) {
      chains.emplace_back();
      append(static_cast<std::uint32_t>(chains.size() - 1), node);
    }
    bool continued = false;
    for (; edge != image.edges.end() && edge->first == node; ++edge) {
      if (!continued && places_[edge->second].chain == kNever) {
        append(places_[node].chain, edge->second);
        continued = true;
      }
    }
  }
  return chains;
}

// Going through the edges backwards, every node's reach is complete before it is added to that of
// its predecessors. The same in both forms.

void NodeOrder::reach_by_chain(const Image& image,
                               const std::vector<std::vector<std::uint32_t>>& chains) {
  chains_ = chains.size();
  first_after_.assign(size_ * chains_, kNever);
  for (auto edge = image.edges.rbegin(); edge != image.edges.rend(); ++edge) {
    std::uint32_t* before = &first_after_[edge->first * chains_];
    const std::uint32_t* after = &first_after_[edge->second * chains_];
    for (std::size_t chain = 0; chain < chains_; ++chain) {
      before[chain] = std::min(before[chain], after[chain]);
    }
    const Place place = places_[edge->second];
    before[place.chain] = std::min(before[place.chain], place.position);
  }
  after_.assign(size_, 0);
  for (std::size_t node = 0; node < size_; ++node) {
    for (std::size_t chain = 0; chain < chains_; ++chain) {
      const std::vector<std::uint32_t>& members = chains[chain];
      const std::size_t others =
          std::min<std::size_t>(first_after_[node * chains_ + chain], members.size());
      if (others != 0) {
        after_[node] = std::max(after_[node], members[others - 1] + 1);
      }
    }
  }
}

void NodeOrder::reach_by_bit(const Image& image) {
  words_ = (size_ + 63) / 64;
  bits_.assign(size_ * words_, 0);
  for (auto edge = image.edges.rbegin(); edge != image.edges.rend(); ++edge) {
    std::uint64_t* before = &bits_[edge->first * words_];
    const std::uint64_t* after = &bits_[edge->second * words_];
    for (std::size_t word = 0; word < words_; ++word) {
      before[word] |= after[word];
    }
    before[edge->second / 64] |= 1ULL << (edge->second % 64);
  }
  after_.resize(size_);
  for (std::uint32_t node = 0; node < size_; ++node) {
    auto last = static_cast<std::uint32_t>(size_);
    while (precedes(node, last - 1)) {  // ends at `node` itself
      --last;
    }
    after_[node] = last;
  }
}

}  // namespace pygraph
