#include <algorithm>
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
  return in_lanes(dependencies, width, std::vector<std::uint32_t>(nodes, 1000));
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

TEST(Lanes, ANodeOvertakesNoMoreThanItsWindow) {
  const Lanes behind_all = in_lanes({}, 8, std::vector<std::uint32_t>{9, 9, 0, 9, 9});
  EXPECT_EQ(behind_all.edges, (Edges{{0, 2}, {1, 2}}));
  const Lanes one = in_lanes({}, 8, std::vector<std::uint32_t>(5, 1));
  EXPECT_EQ(one.edges, (Edges{{0, 2}, {0, 3}, {1, 3}, {1, 4}, {2, 4}}));
  EXPECT_EQ(in_lanes({}, 8, std::vector<std::uint32_t>(5, 0)).count, 1U);
}

TEST(FindRace, AMissingEdgeIsFoundWhicheverItIs) {
  std::mt19937 random(11);  // NOLINT(cert-msc51-cpp): the same in each run
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<std::vector<Access>> of_node(24);
    for (std::vector<Access>& each : of_node) {
      each.push_back({static_cast<std::uint32_t>(random() % 6), false});
      each.push_back({static_cast<std::uint32_t>(random() % 6), true});
    }
    const Accesses all = accesses(std::move(of_node));
    const Edges edges = true_dependencies(all);
    ASSERT_FALSE(race(all, edges)) << turn;
    for (std::size_t i = 0; i < edges.size(); ++i) {
      Edges fewer = edges;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      ASSERT_TRUE(race(all, fewer)) << turn << ": without edge " << i;
    }
    const Lanes lanes = lanes_of(edges, 24, static_cast<std::uint32_t>(1 + random() % 4));
    ASSERT_FALSE(race(all, lanes.edges)) << turn;
  }
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
