#include <algorithm>
#include <map>

#include "pygraph/rethread.h"

namespace pygraph {
namespace {

/// Which nodes come before each, as bits.
class Before {
 public:
  explicit Before(std::size_t nodes) : words_((nodes + 63) / 64), bits_(nodes * words_) {}

  [[nodiscard]] bool has(std::uint32_t node, std::uint32_t before) const {
    return (bits_[node * words_ + before / 64] >> (before % 64) & 1U) != 0;
  }
  /// `before` and all before it.
  void add(std::uint32_t node, std::uint32_t before) {
    for (std::size_t word = 0; word < words_; ++word) {
      bits_[node * words_ + word] |= bits_[before * words_ + word];
    }
    bits_[node * words_ + before / 64] |= 1ULL << (before % 64);
  }

 private:
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

/// Adds those edges to a node that its other ones do not imply. `before`: nodes, in any order.
void add_least(Edges& edges, Before& reach, std::uint32_t node, std::vector<std::uint32_t> before) {
  std::sort(before.rbegin(), before.rend());
  before.erase(std::unique(before.begin(), before.end()), before.end());
  for (const std::uint32_t each : before) {  // what comes last has the most before it
    if (!reach.has(node, each)) {
      reach.add(node, each);
      edges.emplace_back(each, node);
    }
  }
}

bool covers(const ByteSet& later, const ByteSet& earlier) {
  return later.whole() || (!earlier.whole() && later == earlier);
}

bool conflict(const Access& left, const Access& right) {
  return left.region == right.region && (left.writes || right.writes) &&
         overlap(left.bytes, right.bytes);
}

/// What nodes did to a region, but for what a later write has covered.
struct Use {
  std::uint32_t node;
  Access access;
};

/// Uses of each region, by its number.
class Uses {
 public:
  /// The nodes that one with this access must wait for.
  void find(const Access& access, std::vector<std::uint32_t>& before) const {
    const auto uses = of_.find(access.region);
    if (uses == of_.end()) {
      return;
    }
    for (const Use& use : uses->second) {
      if (conflict(use.access, access)) {
        before.push_back(use.node);
      }
    }
  }

  void add(std::uint32_t node, const Access& access) {
    std::vector<Use>& uses = of_[access.region];
    if (access.writes) {  // what it covers is behind it: who waits for it waits for that, too
      std::erase_if(uses, [&](const Use& use) { return covers(access.bytes, use.access.bytes); });
    }
    uses.push_back({node, access});
  }

 private:
  std::map<std::uint32_t, std::vector<Use>> of_;
};

}  // namespace

Edges true_dependencies(const Accesses& accesses) {
  const auto count = static_cast<std::uint32_t>(accesses.of_node.size());
  Edges edges;
  Before reach(count);
  Uses uses;
  std::uint32_t since = 0;  // all nodes below are behind the last barrier
  std::vector<std::vector<std::uint32_t>> together(count);
  for (const auto& [before, after] : accesses.together) {
    together[std::max(before, after)].push_back(std::min(before, after));
  }
  for (std::uint32_t node = 0; node < count; ++node) {
    std::vector<std::uint32_t> before = std::move(together[node]);
    if (accesses.barrier[node]) {
      for (std::uint32_t each = since; each < node; ++each) {
        before.push_back(each);
      }
      since = node;
    } else if (since < node && accesses.barrier[since]) {
      before.push_back(since);
    }
    for (const Access& access : accesses.of_node[node]) {
      uses.find(access, before);
    }
    for (const Access& access : accesses.of_node[node]) {
      uses.add(node, access);
    }
    std::erase(before, node);
    add_least(edges, reach, node, std::move(before));
  }
  std::sort(edges.begin(), edges.end());
  return edges;
}

Lanes in_lanes(const Edges& dependencies, std::size_t width, std::span<const std::uint32_t> windows,
               std::span<const NodeCost> costs, std::span<const std::uint32_t> cuts) {
  const auto count = static_cast<std::uint32_t>(windows.size());
  Lanes found{.edges = {}, .lane = std::vector<std::uint32_t>(count)};
  std::vector<std::vector<std::uint32_t>> before(count);
  for (const auto& [from, to] : dependencies) {
    before[to].push_back(from);
  }
  struct Lane {
    double free = 0;
    std::vector<std::uint32_t> nodes{};
  };
  std::vector<Lane> lanes(std::max<std::size_t>(width, 1));
  std::vector<double> done(count);
  double full_until = 0;
  std::uint32_t begin = 0;  // of what is between two cuts
  Before reach(count);
  for (std::uint32_t node = 0; node < count; ++node) {
    std::vector<std::uint32_t>& waits_for = before[node];
    begin = std::binary_search(cuts.begin(), cuts.end(), node) ? node : begin;
    const std::uint32_t overtaken = std::max(begin, node - std::min(node, windows[node]));
    double ready = costs[node].fills ? full_until : 0;
    for (const Lane& lane : lanes) {  // the last of each that it may not overtake
      const auto after = std::lower_bound(lane.nodes.begin(), lane.nodes.end(), overtaken);
      if (after != lane.nodes.begin()) {
        waits_for.push_back(*std::prev(after));
      }
    }
    for (const std::uint32_t each : waits_for) {
      ready = std::max(ready, done[each]);
    }
    const auto follows = [&](const Lane& lane) {
      return !lane.nodes.empty() &&
             std::find(waits_for.begin(), waits_for.end(), lane.nodes.back()) != waits_for.end();
    };
    std::size_t chosen = 0;
    for (std::size_t i = 1; i < lanes.size(); ++i) {
      const double begins = std::max(lanes[i].free, ready);
      const double best = std::max(lanes[chosen].free, ready);
      if (begins < best || (begins == best && follows(lanes[i]) && !follows(lanes[chosen]))) {
        chosen = i;
      }
    }
    Lane& lane = lanes[chosen];
    if (!lane.nodes.empty()) {
      waits_for.push_back(lane.nodes.back());
    }
    found.count += lane.nodes.empty() ? 1 : 0;
    done[node] = lane.free = std::max(lane.free, ready) + costs[node].us;
    full_until = costs[node].fills ? lane.free : full_until;
    found.us = std::max(found.us, lane.free);
    lane.nodes.push_back(node);
    found.lane[node] = static_cast<std::uint32_t>(chosen);
    add_least(found.edges, reach, node, std::move(waits_for));
  }
  std::sort(found.edges.begin(), found.edges.end());
  return found;
}

std::optional<std::pair<std::uint32_t, std::uint32_t>> find_race(const Accesses& accesses,
                                                                 const NodeOrder& order) {
  const auto count = static_cast<std::uint32_t>(accesses.of_node.size());
  const auto ordered = [&order](std::uint32_t one, std::uint32_t other) {
    return order.precedes(std::min(one, other), std::max(one, other));
  };
  for (const auto& [before, after] : accesses.together) {
    if (!ordered(before, after)) {
      return std::pair{before, after};
    }
  }
  // By region, so that nodes that share none are not compared.
  std::map<std::uint32_t, std::vector<std::pair<std::uint32_t, const Access*>>> by_region;
  for (std::uint32_t node = 0; node < count; ++node) {
    for (const Access& access : accesses.of_node[node]) {
      by_region[access.region].emplace_back(node, &access);
    }
  }
  for (const auto& [region, all] : by_region) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const auto [before, earlier] = all[j];
        const auto [after, later] = all[i];
        if (before != after && !ordered(before, after) && conflict(*earlier, *later)) {
          return std::pair{before, after};
        }
      }
    }
  }
  for (std::uint32_t node = 0; node < count; ++node) {
    for (std::uint32_t each = 0; accesses.barrier[node] && each < count; ++each) {
      if (each != node && !ordered(each, node)) {
        return std::pair{std::min(each, node), std::max(each, node)};
      }
    }
  }
  return std::nullopt;
}

}  // namespace pygraph
