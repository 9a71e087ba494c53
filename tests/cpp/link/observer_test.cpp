// Looking on while a graph runs: what its nodes write, and what they take.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph_builder.h"
#include "support.h"

namespace pygraph {
namespace {

using testing::DeviceMemory;
using testing::differing;
using testing::message_of;
using testing::Regions;
using testing::Runnable;

constexpr std::uint32_t kFloats = 256;
constexpr std::size_t kBytes = kFloats * sizeof(float);
constexpr std::size_t kOwn = 2;

struct Step {
  std::size_t in;
  std::size_t out;
};

/// From region 0 through scratch to region 1, which is written twice.
const std::vector<Step> kSteps = {{0, 2}, {2, 3}, {3, 1}, {2, 4}, {4, 1}};

class Observed : public testing::OnBothDrivers {
 protected:
  Regions::Make chain(const std::vector<Step>& steps) {
    return [this, steps](const std::vector<CUdeviceptr>& at) {
      return bed().capture([&] {
        for (const Step& step : steps) {
          bed().affine({at[step.out], at[step.in], 2, 1, kFloats});
        }
      });
    };
  }

  /// Linked, with `said` in place of what each node is said to write; nodes behind are unknown.
  LinkedGraph linked(const std::vector<std::size_t>& said) {
    Regions given(driver(), 5, kBytes);
    given.scratch(2).scratch(3).scratch(4);
    for (std::size_t i = 0; i < said.size(); ++i) {
      given.next_node({kSteps[i].in, kSteps[i].out}, said[i]);
    }
    return given.link(chain(kSteps), {}, {.independence = true});
  }

  void run(LinkedGraph graph) {
    Runnable runnable(bed(), std::move(graph));
    std::vector<std::unique_ptr<DeviceMemory>> memory;
    std::vector<CUdeviceptr> at;
    for (std::size_t i = 0; i < kOwn; ++i) {
      memory.push_back(std::make_unique<DeviceMemory>(driver(), kBytes));
      memory.back()->write(std::vector<float>(kFloats, static_cast<float>(i + 3)));
      at.push_back(memory.back()->address());
    }
    runnable.run(bed(), at);
    result_ = memory.back()->read<float>();
  }

  /// The pairs of copies that differ, by their first and last nodes.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> changed(const LinkedGraph& linked) {
    return changed(linked, Observer(linked));
  }
  std::vector<std::pair<std::uint32_t, std::uint32_t>> changed(const LinkedGraph& linked,
                                                               const Observer& observer) {
    DeviceMemory memory(driver(), std::max<std::size_t>(observer.bytes(), 1));
    run(observer.observed(driver(), linked, memory.address()));
    std::vector<std::pair<std::uint32_t, std::uint32_t>> found;
    for (const Observer::Pair& pair : differing(observer, memory.read<std::byte>())) {
      found.emplace_back(pair.first_node, pair.last_node);
    }
    return found;
  }

  [[nodiscard]] const std::vector<float>& result() const { return result_; }

 private:
  std::vector<float> result_;
};

TEST_P(Observed, NodesThatWriteWhatTheyAreSaidToChangeNothingElse) {
  const LinkedGraph graph = linked({2, 3, 1, 4, 1});
  EXPECT_TRUE(changed(graph).empty());
  const std::vector<float> seen = result();
  run(clone_of(driver(), graph));
  EXPECT_EQ(result(), seen);  // it computes what it would
}

TEST_P(Observed, ANodeThatWritesScratchAndIsSaidToReadItIsFound) {
  // Node 1 writes region 3, and is said to write region 1: nobody writes 3 then.
  const auto found = changed(linked({2, 1, 1, 4, 1}));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_LE(found[0].first, 1U);
  EXPECT_GE(found[0].second, 1U);
}

TEST_P(Observed, ANodeThatWritesBetweenTwoWritersIsFound) {
  // Nodes 2 and 4 write region 1, node 2 is said to write region 3 instead.
  const auto found = changed(linked({2, 3, 3, 4, 1}));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_LE(found[0].first, 2U);
  EXPECT_GE(found[0].second, 2U);
}

TEST_P(Observed, SeveralLookAtAllRegionsBetweenThem) {
  const LinkedGraph graph = linked({2, 1, 3, 4, 1});  // two lies
  const Observer all(graph);
  ASSERT_FALSE(all.next());
  for (const std::uint64_t most : {std::uint64_t{0}, all.bytes() / 2, all.bytes() - 1}) {
    std::size_t pairs = 0;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> found;
    std::optional<std::uint32_t> first = 0;
    while (first) {
      const Observer observer(graph, *first, most);
      EXPECT_TRUE(most == 0 || observer.bytes() <= most);
      pairs += observer.pairs().size();
      const auto changed_there = changed(graph, observer);
      found.insert(found.end(), changed_there.begin(), changed_there.end());
      EXPECT_TRUE(!observer.next() || *observer.next() > *first);
      first = observer.next();
    }
    EXPECT_EQ(pairs, all.pairs().size());
    EXPECT_EQ(found, changed(graph, all));
  }
  EXPECT_EQ(changed(graph, all).size(), 2U);
}

TEST_P(Observed, OfWhatNobodyKnowsNothingIsSaid) { EXPECT_TRUE(changed(linked({})).empty()); }

TEST_P(Observed, MemoryThatNoNodeMentionsHasNoPlaceAndIsNotLookedAt) {
  Regions given(driver(), 4, kBytes);
  given.scratch(2).fresh(3);
  given.next_node({0, 2, 3}, 1);  // an operator that returns more than its node writes
  given.next_node({0}, 3);
  const LinkedGraph graph = given.link(chain({{0, 1}, {1, 0}}), {}, {.independence = true});
  const Observer observer(graph);
  for (const Observer::Pair& pair : observer.pairs()) {
    EXPECT_LT(pair.after, observer.bytes());
  }
  DeviceMemory memory(driver(), observer.bytes());
  run(observer.observed(driver(), graph, memory.address()));
}

TEST_P(Observed, MemoryThatNoNodeMentionsOrdersNothing) {
  Regions given(driver(), 5, kBytes);
  given.scratch(2).scratch(3);
  given.next_node({0}, 2).next_node({0}, 3);  // besides what their words tell
  const LinkedGraph graph = given.link(chain({{0, 1}, {0, 4}}), {}, {.independence = true});
  const std::optional<LinkedGraph> wide = spread(driver(), graph, {.lanes = 2});
  ASSERT_TRUE(wide);
  EXPECT_TRUE(wide->image.edges.empty());
}

/// Region 3 has the place of region 2, which the fourth operator is given and no node addresses any
/// more: of a tensor like another only the shape is looked at.
TEST_P(Observed, MemoryThatAnOperatorIsGivenBehindItsUseIsAnothersByThen) {
  const std::vector<Step> steps = {{0, 2}, {2, 2}, {2, 1}, {0, 3}, {3, 1}};
  Regions given(driver(), 4, kBytes);
  given.scratch(2).scratch(3);
  given.next_node({0}, 2).next_node({2}, 2).next_node({2}, 1);
  given.next_node({0, 2}, 3).next_node({3}, 1);
  const LinkedGraph graph = given.link(chain(steps), {}, {.independence = true});
  ASSERT_EQ(graph.layout.offsets[0], graph.layout.offsets[1]);
  EXPECT_TRUE(changed(graph).empty());
  const std::optional<LinkedGraph> wide = spread(driver(), graph, {.lanes = 2});
  ASSERT_TRUE(wide);
  EXPECT_EQ(wide->image.edges, (Edges{{0, 1}, {1, 2}, {2, 4}, {3, 4}}));
}

TEST_P(Observed, MemoryThatOnlySomeNodesOfAnOperatorAddressIsLookedAt) {
  const std::vector<Step> steps = {{0, 2}, {0, 1}, {0, 3}, {3, 1}};
  Regions given(driver(), 4, kBytes);
  given.scratch(2).scratch(3);
  given.next_node({0}, 1, 2).next_node({0}, 3).next_node({3}, 1);
  const LinkedGraph graph = given.link(chain(steps), {}, {.independence = true});
  EXPECT_TRUE(changed(graph).empty());
  // Region 1 behind node 1, in front of node 3 and behind it; 3 behind node 2 and in the end; and
  // 2, which the second node of the operator does not address, behind the first.
  EXPECT_EQ(Observer(graph).bytes(), 6 * kBytes);
}

TEST_P(Observed, WhatIsKnownOfNothingIsRefused) {
  Regions given(driver(), 5, kBytes);
  const LinkedGraph graph = given.link(chain(kSteps));
  EXPECT_NE(message_of<std::invalid_argument>([&] {
              const Observer observer(graph);
            }).find("not known what the nodes"),
            std::string::npos);
}

TEST_P(Observed, AStopwatchHasATimeForEachNodeOfAChain) {
  const LinkedGraph graph = linked({2, 3, 1, 4, 1});
  Stopwatch stopwatch(driver(), graph);
  run(stopwatch.take());
  if (on_twin()) {
    GTEST_SKIP() << "the twin's events have no times";
  }
  const std::vector<double> found = stopwatch.read();
  EXPECT_EQ(found.size(), kSteps.size());
  EXPECT_TRUE(std::all_of(found.begin(), found.end(), [](double us) { return us >= 0; }));
}

TEST_P(Observed, AStopwatchHasNoneForNodesSideBySide) {
  const LinkedGraph graph = linked({2, 3, 1, 4, 1});
  std::optional<LinkedGraph> wide = spread(driver(), graph, {.lanes = 2});
  ASSERT_TRUE(wide);
  EXPECT_TRUE(Stopwatch(driver(), *wide).read().empty());
}

TEST_P(Observed, LanesAreGivenOutByWhatNodesTake) {
  Regions given(driver(), 6, kBytes);
  const std::vector<Step> apart = {{0, 1}, {0, 2}, {0, 3}, {0, 4}};
  for (const Step& step : apart) {
    given.next_node({step.in}, step.out);
  }
  const LinkedGraph graph = given.link(chain(apart), {}, {.independence = true});
  const std::vector<double> us = {9, 1, 1, 1};
  const std::optional<LinkedGraph> wide = spread(driver(), graph, {.lanes = 2, .node_us = us});
  ASSERT_TRUE(wide);
  EXPECT_EQ(wide->image.edges, (Edges{{1, 2}, {2, 3}}));
  EXPECT_EQ(wide->predicted_us, 9);
}

PYGRAPH_ON_BOTH_DRIVERS(Observed);

}  // namespace
}  // namespace pygraph
