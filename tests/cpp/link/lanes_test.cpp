// Nodes that run side by side, as far as memory allows.
#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "graph_builder.h"
#include "pygraph/twin.h"
#include "support.h"

namespace pygraph {
namespace {

using testing::DeviceMemory;
using testing::Regions;
using testing::Runnable;

constexpr std::uint32_t kFloats = 256;
constexpr std::size_t kBytes = kFloats * sizeof(float);

/// One node: out = scale * in + 1.
struct Step {
  std::size_t in;
  std::size_t out;
  float scale;
};

class LinkedLanes : public testing::OnBothDrivers {
 protected:
  void TearDown() override {
    twin::Faults::any_order(0);
    OnBothDrivers::TearDown();
  }

  Regions::Make chain(const std::vector<Step>& steps) {
    return [this, &steps](const std::vector<CUdeviceptr>& at) {
      return bed().capture([&] {
        for (const Step& step : steps) {
          bed().affine({at[step.out], at[step.in], step.scale, 1, kFloats});
        }
      });
    };
  }

  /// In lanes, or as captured where it gets none.
  LinkedGraph spread_over(const Regions& given, const Regions::Make& make, std::size_t lanes,
                          double memory = 1.05, const std::vector<CopyOut>& copies = {}) {
    LinkedGraph linked = given.link(make, copies, {.independence = true});
    std::optional<LinkedGraph> wide = spread(driver(), linked, {.lanes = lanes, .memory = memory});
    return wide ? std::move(*wide) : std::move(linked);
  }

  /// What each of the first regions holds in the end.
  std::vector<std::vector<float>> run(LinkedGraph linked, std::size_t own) {
    Runnable runnable(bed(), std::move(linked));
    return run(runnable, own);
  }

  std::vector<std::vector<float>> run(Runnable& runnable, std::size_t own) {
    std::vector<std::unique_ptr<DeviceMemory>> memory;
    std::vector<CUdeviceptr> at;
    for (std::size_t i = 0; i < own; ++i) {
      memory.push_back(std::make_unique<DeviceMemory>(driver(), kBytes));
      memory.back()->write(std::vector<float>(kFloats, static_cast<float>(i + 1)));
      at.push_back(memory.back()->address());
    }
    runnable.run(bed(), at);
    std::vector<std::vector<float>> found;
    found.reserve(own);
    for (const auto& each : memory) {
      found.push_back(each->read<float>());
    }
    return found;
  }
};

/// Two regions of the caller's, and two branches through two pieces of scratch each.
const std::vector<Step> kFork = {{0, 2, 2}, {2, 3, 2}, {0, 4, 3}, {4, 5, 3}, {3, 1, 2}, {5, 0, 2}};

struct Forked : Regions {
  explicit Forked(const Driver& driver) : Regions(driver, 6, kBytes) {
    scratch(2).scratch(3).scratch(4).scratch(5);
    for (const Step& step : kFork) {
      next_node({step.in}, step.out);
    }
  }
};

TEST_P(LinkedLanes, BranchesRunSideBySide) {
  const Forked given(driver());
  LinkedGraph linked = spread_over(given, chain(kFork), 4);
  ASSERT_TRUE(linked.table.sound());
  EXPECT_EQ(linked.lanes, 2U);
  EXPECT_EQ(linked.image.edges, (Edges{{0, 1}, {0, 5}, {1, 4}, {2, 3}, {3, 5}}));
  const auto serial = run(given.link(chain(kFork)), 2);
  EXPECT_EQ(run(std::move(linked), 2), serial);
}

TEST_P(LinkedLanes, OneLaneIsTheOrderOfTheCapture) {
  const LinkedGraph linked = Forked(driver()).link(chain(kFork));
  EXPECT_EQ(linked.lanes, 1U);
  EXPECT_EQ(linked.image.edges.size(), kFork.size() - 1);
}

TEST_P(LinkedLanes, WhatNobodyKnowsIsOrderedByAllThatItMentions) {
  Regions given(driver(), 6, kBytes);
  given.scratch(2).scratch(3).scratch(4).scratch(5);
  LinkedGraph linked = spread_over(given, chain(kFork), 4);
  // Nodes 0 and 2 both may write region 0.
  EXPECT_TRUE(std::find(linked.image.edges.begin(), linked.image.edges.end(),
                        std::pair<std::uint32_t, std::uint32_t>{0, 2}) != linked.image.edges.end());
}

TEST_P(LinkedLanes, MemoryBoundsTheirNumber) {
  // Eight branches of their own scratch, which in a chain share one place.
  constexpr std::size_t kLarge = std::size_t{1} << 20;
  std::vector<Step> steps;
  Regions given(driver(), 17, kLarge);
  for (std::size_t branch = 0; branch < 8; ++branch) {
    given.scratch(9 + branch);
    steps.push_back({0, 9 + branch, 2});
    steps.push_back({9 + branch, 1 + branch, 2});
    given.next_node({0}, 9 + branch).next_node({9 + branch}, 1 + branch);
  }
  const auto lanes = [&](double memory) { return spread_over(given, chain(steps), 8, memory); };
  EXPECT_EQ(lanes(8).lanes, 8U);
  EXPECT_EQ(lanes(8).layout.bytes, 8 * kLarge);
  EXPECT_EQ(lanes(4).lanes, 4U);
  EXPECT_EQ(lanes(4).layout.bytes, 4 * kLarge);
  EXPECT_EQ(lanes(1).lanes, 2U) << "2 MiB cost nothing";
  EXPECT_EQ(given.link(chain(steps)).layout.bytes, kLarge);
}

TEST_P(LinkedLanes, AnyOrderThatTheEdgesAllowComputesTheSame) {
  std::mt19937 random(3);  // NOLINT(cert-msc51-cpp): the same in each run
  constexpr std::size_t kOwn = 4;
  for (int turn = 0; turn < 12; ++turn) {
    std::vector<Step> steps;
    Regions given(driver(), 16, kBytes);
    for (std::size_t region = kOwn; region < 16; ++region) {
      given.scratch(region);
    }
    std::vector<std::size_t> filled = {0, 1, 2, 3};
    for (int node = 0; node < 40; ++node) {
      const std::size_t in = filled[random() % filled.size()];
      const std::size_t out = random() % 16;
      steps.push_back({in, out, static_cast<float>(1 + random() % 3) / 2});
      given.next_node({in}, out);
      filled.push_back(out);
    }
    twin::Faults::any_order(0);
    const auto serial = run(given.link(chain(steps)), kOwn);
    for (const std::size_t lanes : {2U, 4U, 64U}) {
      LinkedGraph linked = spread_over(given, chain(steps), lanes);
      EXPECT_GT(linked.lanes, 1U);
      EXPECT_LE(linked.lanes, lanes);
      twin::Faults::any_order(static_cast<std::uint64_t>(turn) * 1000 + lanes);
      EXPECT_EQ(run(std::move(linked), kOwn), serial) << turn << ", " << lanes << " lanes";
      twin::Faults::any_order(0);
    }
  }
}

TEST_P(LinkedLanes, AnotherOrderShowsADependenceThatWasNotDeclared) {
  if (!on_twin()) {
    GTEST_SKIP() << "only the twin draws orders";
  }
  // 0 -> s2 -> 1, and 1 -> 0 behind it; but who writes 1 is said to read it.
  const std::vector<Step> steps = {{0, 2, 2}, {2, 1, 3}, {1, 0, 2}};
  Regions given(driver(), 3, kBytes);
  given.scratch(2).next_node({0}, 2).next_node({2, 1}, 2).next_node({1}, 0);
  const auto serial = run(given.link(chain(steps)), 2);
  int wrong = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    twin::Faults::any_order(seed);
    wrong += run(spread_over(given, chain(steps), 4), 2) == serial ? 0 : 1;
    twin::Faults::any_order(0);
  }
  EXPECT_GT(wrong, 0);
}

/// Steps whose results are all read before they are overwritten, or are there in the end. So if one
/// runs in front of another that it depends on, some region holds something else in the end.
std::vector<Step> telling_steps(std::mt19937& random, std::size_t regions, std::size_t count) {
  std::vector<bool> was_read(regions, true);
  std::vector<Step> steps;
  while (steps.size() < count) {
    const std::size_t in = random() % regions;
    const std::size_t out = random() % regions;
    if (in != out && was_read[out]) {
      was_read[in] = true;
      was_read[out] = false;
      steps.push_back({in, out, static_cast<float>(512 + random() % 512) / 512});
    }
  }
  return steps;
}

Accesses accesses_of(const std::vector<Step>& steps) {
  Accesses found{.barrier = std::vector<bool>(steps.size())};
  for (const Step& step : steps) {
    found.of_node.push_back({{static_cast<std::uint32_t>(step.in), false},
                             {static_cast<std::uint32_t>(step.out), true}});
  }
  return found;
}

void remove_edge(const Driver& driver, LinkedGraph& linked, const Edges::value_type& edge) {
  const CUgraphNode from = linked.image.nodes[edge.first].handle;
  const CUgraphNode to = linked.image.nodes[edge.second].handle;
  driver.check(driver.api.cuGraphRemoveDependencies(linked.graph.get(), &from, &to, nullptr, 1),
               "cuGraphRemoveDependencies");
  std::erase(linked.image.edges, edge);
}

TEST_P(LinkedLanes, AnotherOrderShowsWhicheverEdgeIsMissing) {
  if (!on_twin()) {
    GTEST_SKIP() << "only the twin draws orders";
  }
  std::mt19937 random(5);  // NOLINT(cert-msc51-cpp): the same in each run
  constexpr std::size_t kRegions = 12;
  constexpr int kOrders = 200;
  int races = 0;
  int shown = 0;
  for (int turn = 0; turn < 6; ++turn) {
    const std::vector<Step> steps = telling_steps(random, kRegions, 24);
    Regions given(driver(), kRegions, kBytes);  // no scratch, so that none share memory
    for (const Step& step : steps) {
      given.next_node({step.in}, step.out);
    }
    const auto linked = [&] { return spread_over(given, chain(steps), 64); };
    const auto serial = run(given.link(chain(steps)), kRegions);
    const Edges edges = linked().image.edges;
    for (std::size_t i = 0; i < edges.size(); ++i) {
      LinkedGraph lacking = linked();
      remove_edge(driver(), lacking, edges[i]);
      const bool race = find_race(accesses_of(steps), NodeOrder(lacking.image)).has_value();
      Runnable runnable(bed(), std::move(lacking));
      twin::Faults::any_order(1);
      int right = 0;
      while (right < kOrders && run(runnable, kRegions) == serial) {
        ++right;
      }
      twin::Faults::any_order(0);
      races += race ? 1 : 0;
      shown += race && right < kOrders ? 1 : 0;
      // What only keeps a lane in a row is no dependence.
      EXPECT_TRUE(race || right == kOrders) << turn << ": without edge " << i;
    }
  }
  EXPECT_GT(races, 100);
  // Seldom a node that may run early stays behind one that has many in front of it.
  EXPECT_GT(shown * 100, races * 95) << shown << " of " << races;
}

TEST_P(LinkedLanes, KernelsWhoseBlocksWaitForEachOtherRunAlone) {
  const Forked given(driver());
  const auto make = [this](const std::vector<CUdeviceptr>& at) {
    testing::GraphBuilder graph(bed());
    testing::Nodes last;
    for (std::size_t i = 0; i < kFork.size(); ++i) {
      const Step& step = kFork[i];
      last = {graph.affine({at[step.out], at[step.in], step.scale, 1, kFloats}, last)};
      CUkernelNodeAttrValue value{};
      value.cooperative = i == 2 ? 1 : 0;
      driver().check(driver().api.cuGraphKernelNodeSetAttribute(
                         last.front(), CU_KERNEL_NODE_ATTRIBUTE_COOPERATIVE, &value),
                     "cuGraphKernelNodeSetAttribute");
    }
    return graph.take();
  };
  const LinkedGraph linked = spread_over(given, make, 4);
  const NodeOrder order(linked.image);
  for (const std::uint32_t before : {0U, 1U}) {
    EXPECT_TRUE(order.precedes(before, 2));
  }
  for (const std::uint32_t after : {3U, 4U, 5U}) {
    EXPECT_TRUE(order.precedes(2, after));
  }
  EXPECT_FALSE(order.precedes(3, 4));
}

TEST_P(LinkedLanes, CopiesRunBehindWhatTheyCopy) {
  const Forked given(driver());
  const LinkedGraph linked = spread_over(given, chain(kFork), 4, 1.05, {{3, 0, kBytes, true}});
  ASSERT_TRUE(linked.table.sound());
  const auto copy = static_cast<std::uint32_t>(kFork.size());
  EXPECT_TRUE(NodeOrder(linked.image).precedes(1, copy));
  EXPECT_FALSE(NodeOrder(linked.image).precedes(3, copy)) << "which has nothing to do with it";
}

PYGRAPH_ON_BOTH_DRIVERS(LinkedLanes);

}  // namespace
}  // namespace pygraph
