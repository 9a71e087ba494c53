// Which nodes of an operator have its memory in use.
#include "link/operators.h"

#include <algorithm>
#include <random>

#include "graphs.h"
#include "support.h"

namespace pygraph {
namespace {

using testing::chain_of;

using Nodes = std::vector<std::uint32_t>;

/// A chain whose nodes were created in its order.
Image created_in_order(std::uint32_t nodes) {
  Image image = chain_of(nodes);
  image.created.resize(nodes);
  for (std::uint32_t node = 0; node < nodes; ++node) {
    image.created[node] = node;
  }
  return image;
}

Nodes completed(const Operators& operators, Nodes nodes, CreationSpan span = {}) {
  operators.complete(nodes, span);
  return nodes;
}

TEST(OperatorsTest, AddTheOtherNodesOfTheSameOperators) {
  const Image image = created_in_order(10);
  const std::vector<OperatorSpan> spans = {{1, 4}, {5, 6}, {7, 10}};
  const Operators operators(image, spans);
  EXPECT_TRUE(operators.any());
  EXPECT_EQ(completed(operators, {2}), (Nodes{1, 2, 3}));
  EXPECT_EQ(completed(operators, {0, 5}), (Nodes{0, 5})) << "one node is no more than itself";
  EXPECT_EQ(completed(operators, {3, 7}), (Nodes{1, 2, 3, 7, 8, 9}));
  EXPECT_EQ(completed(operators, {}), Nodes{});
}

TEST(OperatorsTest, AddThoseAloneThatWereCreatedInTheSpan) {
  const Image image = created_in_order(10);
  const std::vector<OperatorSpan> spans = {{1, 8}};
  const Operators operators(image, spans);
  EXPECT_EQ(completed(operators, {4}, {3, 6}), (Nodes{3, 4, 5}));
  EXPECT_EQ(completed(operators, {2, 4}, {4, 5}), (Nodes{2, 4})) << "what mentions it stays";
}

TEST(OperatorsTest, CreationIsNotTheOrderOfNodes) {
  Image image = created_in_order(4);
  image.created = {0, 2, 1, 3};
  const std::vector<OperatorSpan> spans = {{0, 2}};  // nodes 0 and 2
  EXPECT_EQ(completed(Operators(image, spans), {2}), (Nodes{0, 2}));
  EXPECT_EQ(completed(Operators(image, spans), {2}, {1, 4}), Nodes{2});
}

TEST(PossibleUse, EndsWhereLaterMemoryIsMentionedAndBeginsBehindEarlier) {
  const Image image = created_in_order(8);
  const std::vector<Times> times = {{1, 2}, {3, 4}, {5, Times::kNever}};
  const std::vector<Nodes> mentions = {{1, 2}, {4}, {6}};
  const std::vector<CreationSpan> found = possible_use(image, times, mentions);
  EXPECT_EQ(found[0].begin, 0U);
  EXPECT_EQ(found[0].end, 4U);
  EXPECT_EQ(found[1].begin, 3U);
  EXPECT_EQ(found[1].end, 6U);
  EXPECT_EQ(found[2].begin, 5U);
  EXPECT_EQ(found[2].end, CreationSpan{}.end);
}

TEST(PossibleUse, TheEarliestMentionOfAnythingLaterTellsAndTheLastOfAnythingEarlier) {
  const Image image = created_in_order(8);
  const std::vector<Times> times = {{1, 2}, {3, Times::kNever}, {5, Times::kNever}, {4, 6}, {4, 8},
                                    {9, 10}};
  const std::vector<Nodes> mentions = {{0}, {6}, {4}, {5}, {4}, {7}};
  const std::vector<CreationSpan> found = possible_use(image, times, mentions);
  EXPECT_EQ(found[0].end, 4U) << "by the region that was allocated at 5, not at 3";
  EXPECT_EQ(found[5].begin, 6U) << "by the region that was freed at 6, not at 8";
}

TEST(PossibleUse, MemoryThatWasThereAtTheSameTimeTellsNothing) {
  const Image image = created_in_order(8);
  const std::vector<Times> times = {{1, 4}, {2, 6}, {3, Times::kNever}, {5, Times::kNever}};
  const std::vector<Nodes> mentions = {{1}, {3}, {2}, {}};
  const std::vector<CreationSpan> found = possible_use(image, times, mentions);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(found[i].begin, 0U) << i;
    EXPECT_EQ(found[i].end, CreationSpan{}.end)
        << i << ": region 3 came later, but no node mentions it";
  }
}

TEST(PossibleUse, TimesThatAreNotKnownTellNothing) {
  const Image image = created_in_order(4);
  const std::vector<Times> times = {{1, 2}, {}, {3, 4}};
  const std::vector<CreationSpan> found =
      possible_use(image, times, std::vector<Nodes>{{0}, {1}, {2}});
  EXPECT_EQ(found[0].end, 2U) << "region 2 tells, region 1 does not";
  EXPECT_EQ(found[1].begin, 0U);
  EXPECT_EQ(found[1].end, CreationSpan{}.end);
  Image unordered = image;
  unordered.created.clear();
  EXPECT_EQ(possible_use(unordered, times, std::vector<Nodes>{{0}, {1}, {2}})[0].end,
            CreationSpan{}.end);
}

TEST(PossibleUse, NeverLeavesOutANodeThatWasLaunchedWhileTheMemoryWasThere) {
  std::mt19937 random(11);
  const auto below = [&](std::size_t end) {
    return std::uniform_int_distribution<std::size_t>(0, end - 1)(random);
  };
  int narrowed = 0;
  for (int round = 0; round < 300; ++round) {
    struct Memory {
      Times times;
      std::uint32_t nodes_before = 0;
      std::uint32_t nodes_after = ~0U;
      Nodes mentions;
    };
    std::vector<Memory> all;
    std::uint32_t nodes = 0;
    for (std::uint64_t time = 1; time < 60; ++time) {
      Nodes there;
      for (std::uint32_t i = 0; i < all.size(); ++i) {
        if (all[i].times.freed == Times::kNever) {
          there.push_back(i);
        }
      }
      const std::size_t action = below(4);
      if (action == 0 || there.empty()) {
        all.push_back({{time, Times::kNever}, nodes, ~0U, {}});
      } else if (action == 1) {
        Memory& memory = all[there[below(there.size())]];
        memory.times.freed = time;
        memory.nodes_after = nodes;
      } else {
        for (std::size_t i = 0; i < 2; ++i) {
          Memory& memory = all[there[below(there.size())]];
          if (memory.mentions.empty() || memory.mentions.back() != nodes) {
            memory.mentions.push_back(nodes);
          }
        }
        ++nodes;
      }
    }
    std::vector<Times> times;
    std::vector<Nodes> mentions;
    for (const Memory& memory : all) {
      times.push_back(memory.times);
      mentions.push_back(memory.mentions);
    }
    const std::vector<CreationSpan> found = possible_use(created_in_order(nodes), times, mentions);
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_LE(found[i].begin, all[i].nodes_before) << "round " << round << ", region " << i;
      EXPECT_GE(found[i].end, std::min(all[i].nodes_after, nodes));
      narrowed += found[i].end < nodes ? 1 : 0;
    }
  }
  EXPECT_GT(narrowed, 300);
}

}  // namespace
}  // namespace pygraph
