#include <algorithm>
#include <array>
#include <bitset>
#include <random>

#include "graphs.h"
#include "pygraph/rethread.h"
#include "support.h"

namespace pygraph {
namespace {

using testing::chain_of;

Accesses accesses(std::vector<std::vector<Access>> of_node) {
  const std::size_t count = of_node.size();
  return {.of_node = std::move(of_node), .barrier = std::vector<bool>(count), .together = {}};
}

std::optional<testing::Edge> race(const Accesses& all, const Edges& edges) {
  return find_race(all, NodeOrder(testing::graph_of(all.of_node.size(), edges)));
}

const Access kReads0{0, false};
const Access kWrites0{0, true};
const Access kReads1{1, false};
const Access kWrites1{1, true};
const Access kWrites2{2, true};

TEST(TrueDependencies, ReadersOfOneWriteAreIndependent) {
  const Accesses all = accesses({{kWrites0}, {kReads0, kWrites1}, {kReads0, kWrites2}});
  const Edges edges = true_dependencies(all);
  EXPECT_EQ(edges, (Edges{{0, 1}, {0, 2}}));
  EXPECT_FALSE(race(all, edges));
}

TEST(TrueDependencies, AWriteWaitsForAllWhoRead) {
  const Accesses all = accesses({{kWrites0}, {kReads0}, {kReads0}, {kWrites0}});
  EXPECT_EQ(true_dependencies(all), (Edges{{0, 1}, {0, 2}, {1, 3}, {2, 3}}));
}

TEST(TrueDependencies, WhatOthersImplyIsNoEdge) {
  const Accesses all = accesses({{kWrites0}, {kReads0, kWrites1}, {kReads0, kReads1}});
  EXPECT_EQ(true_dependencies(all), (Edges{{0, 1}, {1, 2}}));
}

TEST(TrueDependencies, PartsOfOneRegionAreIndependent) {
  const auto part = [](std::uint64_t offset) {
    return ByteSet{.offset = offset, .item_bytes = 4, .dimensions = {{16, 4}}};
  };
  const Accesses all = accesses({{{0, true, part(0)}}, {{0, true, part(64)}}, {kReads0}});
  EXPECT_EQ(true_dependencies(all), (Edges{{0, 2}, {1, 2}}));
}

TEST(TrueDependencies, AllWaitForABarrierAndItForAll) {
  Accesses all = accesses({{kWrites0}, {kWrites1}, {}, {kWrites2}, {}});
  all.barrier[2] = true;
  const Edges edges = true_dependencies(all);
  EXPECT_EQ(edges, (Edges{{0, 2}, {1, 2}, {2, 3}, {2, 4}}));
  EXPECT_FALSE(race(all, edges));
  EXPECT_TRUE(race(all, {{0, 2}, {1, 2}, {2, 3}}));
}

TEST(TrueDependencies, NodesOfOneOperatorStayInOrder) {
  Accesses all = accesses({{kWrites0}, {kWrites1}});
  all.together.emplace_back(0, 1);
  EXPECT_EQ(true_dependencies(all), (Edges{{0, 1}}));
  EXPECT_TRUE(race(all, {}));
}

Lanes lanes_of(const Edges& dependencies, std::size_t nodes, std::uint32_t width) {
  return in_lanes(dependencies, width, std::vector<std::uint32_t>(nodes, 1000),
                  std::vector<NodeCost>(nodes));
}

TEST(Lanes, OneLaneIsAChain) {
  const Lanes lanes = lanes_of({{0, 2}}, 4, 1);
  EXPECT_EQ(lanes.edges, (Edges{{0, 1}, {1, 2}, {2, 3}}));
  EXPECT_EQ(lanes.count, 1U);
}

TEST(Lanes, ANodeGoesWhereItBeginsFirst) {
  // A fork into two branches of two, and their join.
  const Edges fork = {{0, 1}, {0, 3}, {1, 2}, {2, 5}, {3, 4}, {4, 5}};
  const Lanes lanes = lanes_of(fork, 6, 2);
  EXPECT_EQ(lanes.edges, fork);
  EXPECT_EQ(lanes.count, 2U);
  EXPECT_EQ(lanes.lane[1], lanes.lane[2]);
  EXPECT_EQ(lanes.lane[3], lanes.lane[4]);
  EXPECT_NE(lanes.lane[1], lanes.lane[3]);
}

TEST(Lanes, ThereAreNoMoreThanAsked) {
  const Lanes lanes = lanes_of({}, 16, 4);
  EXPECT_EQ(lanes.count, 4U);
  EXPECT_EQ(lanes.edges.size(), 12U);
}

TEST(Lanes, ANodeGoesWhereItBeginsFirstByWhatNodesTake) {
  const std::vector<NodeCost> costs = {{.us = 10}, {.us = 1}, {.us = 1}, {.us = 1}};
  const Lanes lanes = in_lanes({}, 2, std::vector<std::uint32_t>(4, 1000), costs);
  EXPECT_EQ(lanes.lane, (std::vector<std::uint32_t>{0, 1, 1, 1}));
  EXPECT_EQ(lanes.us, 10);
}

TEST(Lanes, NodesThatFillTheDeviceRunOneAfterTheOther) {
  const std::vector<NodeCost> costs = {{5, true}, {5, true}, {5, true}, {5, false}};
  const Lanes lanes = in_lanes({}, 4, std::vector<std::uint32_t>(4, 1000), costs);
  EXPECT_EQ(lanes.us, 15);
  EXPECT_EQ(lanes.lane[1], lanes.lane[0]);  // it would begin no sooner elsewhere
  EXPECT_EQ(lanes.lane[2], lanes.lane[0]);
  EXPECT_NE(lanes.lane[3], lanes.lane[0]);
}

TEST(Lanes, ANodeOvertakesNoMoreThanItsWindow) {
  const Lanes behind_all =
      in_lanes({}, 8, std::vector<std::uint32_t>{9, 9, 0, 9, 9}, std::vector<NodeCost>(5));
  EXPECT_EQ(behind_all.edges, (Edges{{0, 2}, {1, 2}}));
  const Lanes one = in_lanes({}, 8, std::vector<std::uint32_t>(5, 1), std::vector<NodeCost>(5));
  EXPECT_EQ(one.edges, (Edges{{0, 2}, {0, 3}, {1, 3}, {1, 4}, {2, 4}}));
  EXPECT_EQ(in_lanes({}, 8, std::vector<std::uint32_t>(5, 0), std::vector<NodeCost>(5)).count, 1U);
}

TEST(Lanes, WhatACutBeginsRunsBehindAllInFrontOfIt) {
  const std::vector<std::uint32_t> cuts = {2, 3};
  const std::vector<std::uint32_t> windows(5, 1000);
  const Lanes lanes = in_lanes({}, 2, windows, std::vector<NodeCost>(5), cuts);
  EXPECT_EQ(lanes.edges, (Edges{{0, 2}, {1, 2}, {2, 3}, {2, 4}}));
  EXPECT_EQ(lanes.us, 3);
}

// Nodes drawn at random. A region is a matrix of 8 x 16 floats, so what an access touches is as
// many bits, and what needs an order is found without overlap().
constexpr std::uint64_t kRows = 8;
constexpr std::uint64_t kColumns = 16;
constexpr std::uint32_t kNodes = 24;
using Floats = std::bitset<kRows * kColumns>;

Floats floats_of(const ByteSet& bytes) {
  Floats found;
  if (bytes.whole()) {
    return found.set();
  }
  const ByteSet::Dimension rows = bytes.dimensions.at(0);
  const ByteSet::Dimension columns = bytes.dimensions.at(1);
  for (std::uint64_t row = 0; row < rows.size; ++row) {
    for (std::uint64_t column = 0; column < columns.size; ++column) {
      found.set((bytes.offset + row * rows.stride + column * columns.stride) / 4);
    }
  }
  return found;
}

/// All of the matrix, or a block of it of two columns or more. (Of single columns overlap() cannot
/// tell whether they are the same one.)
ByteSet drawn_bytes(std::mt19937& random) {
  if (random() % 4 == 0) {
    return {};
  }
  const std::uint64_t row = random() % kRows;
  const std::uint64_t column = random() % (kColumns - 1);
  const std::uint64_t height = 1 + random() % (kRows - row);
  const std::uint64_t width = 2 + random() % (kColumns - column - 1);
  return {.offset = 4 * (row * kColumns + column),
          .item_bytes = 4,
          .dimensions = {{height, 4 * kColumns}, {width, 4}}};
}

Accesses drawn_accesses(std::mt19937& random) {
  constexpr std::array<std::uint32_t, 8> kRegions = {0, 1, 2, 3, 4, 5, kUnknownMemory, kOrder};
  Accesses all = accesses(std::vector<std::vector<Access>>(kNodes));
  for (std::uint32_t node = 0; node < kNodes; ++node) {
    for (std::size_t count = random() % 4; count > 0; --count) {
      const std::uint32_t region = kRegions[random() % kRegions.size()];
      const bool writes = random() % 3 == 0;
      all.of_node[node].push_back({region, writes, drawn_bytes(random)});
    }
    all.barrier[node] = random() % 20 == 0;
    if (node >= 4 && random() % 8 == 0) {
      all.together.emplace_back(node - 1 - random() % 4, node);
    }
  }
  return all;
}

/// Why two nodes need an order; kNothing: they do not.
enum Reason : std::size_t { kNothing, kTouch, kTogether, kBarrier, kApart, kReasons };

/// kApart: they touch a region and one writes, but no float of it is touched by both.
Reason reason(const Accesses& all, std::uint32_t before, std::uint32_t after) {
  if (all.barrier[before] || all.barrier[after]) {
    return kBarrier;
  }
  for (const auto& pair : all.together) {
    if (pair == std::pair{before, after}) {
      return kTogether;
    }
  }
  Reason found = kNothing;
  for (const Access& one : all.of_node[before]) {
    for (const Access& other : all.of_node[after]) {
      if (one.region == other.region && (one.writes || other.writes)) {
        if ((floats_of(one.bytes) & floats_of(other.bytes)).any()) {
          return kTouch;
        }
        found = kApart;
      }
    }
  }
  return found;
}

bool need_an_order(Reason why) { return why != kNothing && why != kApart; }

/// Whether there are two nodes that need an order and have none.
bool has_race(const Accesses& all, const NodeOrder& order) {
  for (std::uint32_t after = 0; after < kNodes; ++after) {
    for (std::uint32_t before = 0; before < after; ++before) {
      if (!order.precedes(before, after) && need_an_order(reason(all, before, after))) {
        return true;
      }
    }
  }
  return false;
}

NodeOrder order_of(const Edges& edges) { return NodeOrder(testing::graph_of(kNodes, edges)); }

TEST(FindRace, AMissingEdgeIsFoundWhicheverItIs) {
  std::mt19937 random(11);  // NOLINT(cert-msc51-cpp): the same in each run
  std::array<int, kReasons> edges_because{};
  for (int turn = 0; turn < 300; ++turn) {
    const Accesses all = drawn_accesses(random);
    const Edges edges = true_dependencies(all);
    const NodeOrder whole = order_of(edges);
    ASSERT_FALSE(has_race(all, whole)) << turn;
    ASSERT_FALSE(find_race(all, whole)) << turn;
    for (std::size_t i = 0; i < edges.size(); ++i) {
      const auto [from, to] = edges[i];
      ++edges_because[reason(all, from, to)];
      Edges fewer = edges;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      const NodeOrder order = order_of(fewer);
      const auto found = find_race(all, order);
      if (!found) {
        FAIL() << turn << ": without edge " << i;
      }
      const auto [before, after] = *found;
      EXPECT_TRUE(before < after && need_an_order(reason(all, before, after)));
      EXPECT_FALSE(order.precedes(before, after));
      // The two are ordered by this edge, or by what is in front of it and behind it.
      EXPECT_TRUE(before == from || whole.precedes(before, from)) << turn << ": edge " << i;
      EXPECT_TRUE(after == to || whole.precedes(to, after)) << turn << ": edge " << i;
    }
  }
  for (const Reason why : {kTouch, kTogether, kBarrier}) {
    EXPECT_GT(edges_because[why], 100) << "edges that are there for reason " << why;
  }
  EXPECT_EQ(edges_because[kNothing] + edges_because[kApart], 0) << "edges without a reason";
}

TEST(FindRace, IsThereIfAndOnlyIfTwoNodesNeedAnOrderThatTheyDoNotHave) {
  std::mt19937 random(13);  // NOLINT(cert-msc51-cpp): the same in each run
  std::array<int, 2> times{};
  int apart = 0;
  for (int turn = 0; turn < 1000; ++turn) {
    const Accesses all = drawn_accesses(random);
    const Edges needed = true_dependencies(all);
    // As they are, or in lanes, whose order is more than what is needed; some edges are missing.
    const auto width = static_cast<std::uint32_t>(random() % 5);
    Edges edges = width == 0 ? needed : lanes_of(needed, kNodes, width).edges;
    ASSERT_FALSE(find_race(all, order_of(edges))) << turn;
    const std::uint64_t one_in = 2ULL << random() % 6;
    std::erase_if(edges, [&](const auto&) { return random() % one_in == 0; });
    const NodeOrder order = order_of(edges);
    const bool expected = has_race(all, order);
    ++times[expected ? 1 : 0];
    ASSERT_EQ(find_race(all, order).has_value(), expected) << turn;
    for (std::uint32_t node = 1; node < kNodes; ++node) {
      apart += !order.precedes(node - 1, node) && reason(all, node - 1, node) == kApart ? 1 : 0;
    }
  }
  EXPECT_GT(std::min(times[0], times[1]), 100) << "both are drawn often";
  EXPECT_GT(apart, 100) << "so are nodes that only their byte sets keep apart";
}

struct Made {
  Image image;
  std::vector<Relocation> relocations;
};

Made mentioning(const std::vector<std::vector<std::uint32_t>>& regions) {
  Made made{chain_of(static_cast<std::uint32_t>(regions.size())), {}};
  for (std::uint32_t node = 0; node < regions.size(); ++node) {
    made.image.created.push_back(node);
    for (const std::uint32_t region : regions[node]) {
      made.relocations.push_back({node, 0, region, 0});
    }
  }
  return made;
}

const std::vector<Region> kPlaces = {{0x1000, 0x9000, 256}, {0x2000, 0xa000, 256}};

TEST(AccessesOf, WhatNobodyKnowsReadsAndWritesAllItMentions) {
  const Made made = mentioning({{0, 1}, {1, 1, 2}});
  const Accesses found = accesses_of(made.image, made.relocations, {}, kPlaces, {});
  ASSERT_EQ(found.of_node[0].size(), 2U);
  EXPECT_TRUE(found.of_node[0][0].writes && found.of_node[0][1].writes);
  EXPECT_TRUE(found.of_node[0][0].bytes.whole());
  EXPECT_EQ(found.of_node[1].size(), 2U) << "each region once; the third is a copy's";
}

TEST(AccessesOf, AnOperatorsTouchesAreCountedFromTheirRegions) {
  const Made made = mentioning({{0, 1}});
  const KnownNodes known{0, 1, {{0x1000, {}, false}, {0x2040, {0, 4, {{8, 4}}}, true}}};
  const Accesses found = accesses_of(made.image, made.relocations, {}, kPlaces, {{known}});
  ASSERT_EQ(found.of_node[0].size(), 2U);
  EXPECT_FALSE(found.of_node[0][0].writes);
  EXPECT_EQ(found.of_node[0][1].region, 1U);
  EXPECT_EQ(found.of_node[0][1].bytes.offset, 0x40U);
}

TEST(AccessesOf, AnOperatorsOwnMemoryIsReadAndWrittenByAllItsNodes) {
  const Made made = mentioning({{0}, {1}});
  const KnownNodes known{0, 2, {{0x1000, {}, false}}};
  const Accesses found = accesses_of(made.image, made.relocations, {}, kPlaces, {{known}});
  for (const std::vector<Access>& each : found.of_node) {
    ASSERT_EQ(each.size(), 2U);
    EXPECT_FALSE(each[0].writes);
    EXPECT_TRUE(each[1].region == 1 && each[1].writes);
  }
  EXPECT_EQ(found.together.size(), 1U);
}

TEST(AccessesOf, MemoryThatNobodyKnowsIsOneRegion) {
  const Made made = mentioning({{0}, {1}});
  const std::vector<ForeignWord> foreign = {{0, 8, 0xf000}, {1, 8, 0xff000}};
  const Accesses found = accesses_of(made.image, made.relocations, foreign, kPlaces, {});
  EXPECT_EQ(true_dependencies(found), (Edges{{0, 1}}));
}

TEST(AccessesOf, WhatNoWordTellsIsABarrier) {
  Made made = mentioning({{0}, {}, {1}});
  made.image.nodes[1].kind = NodeKind::kEventRecord;
  const Accesses found = accesses_of(made.image, made.relocations, {}, kPlaces, {});
  EXPECT_EQ(true_dependencies(found), (Edges{{0, 1}, {1, 2}}));
}

}  // namespace
}  // namespace pygraph
