// Graphs that are cut: taken apart and run part by part, memory changing hands in between.
#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "backward_graph.h"
#include "graph_builder.h"
#include "pygraph/chain.h"
#include "pygraph/twin.h"
#include "support.h"

namespace pygraph {
namespace {

using testing::Backward;
using testing::BackwardRegions;
using testing::chain_of;
using testing::DeviceMemory;
using testing::differing;
using testing::holds;
using testing::Nodes;
using testing::Pieces;
using testing::Regions;
using testing::Runnable;

constexpr std::uint32_t kFloats = Backward::kFloats;
constexpr std::size_t kBytes = Backward::kBytes;
constexpr std::uint32_t kSteps = Backward::kSteps;
constexpr LinkOptions kCut{.peak_slack = 1};

class Parts : public testing::OnBothDrivers {
 protected:
  void TearDown() override {
    twin::Faults::any_order(0);
    OnBothDrivers::TearDown();
  }
  [[nodiscard]] DeviceMemory filled(float value) {
    DeviceMemory memory(driver(), kBytes);
    memory.write(std::vector<float>(kFloats, value));
    return memory;
  }
  /// Runs it part by part, and expects what a small backward computes.
  void expect_memory_handed_on(LinkedGraph linked) {
    ASSERT_TRUE(linked.table.sound());
    ASSERT_GE(linked.cuts.size(), 2U);
    ASSERT_EQ(linked.spans.size(), linked.pieces().size());
    const std::vector<PartSpan> parts = linked.parts_of_regions();
    ASSERT_EQ(parts.size(), linked.region_count());
    const auto part_count = static_cast<std::uint32_t>(linked.cuts.size() + 1);
    Pieces pieces(driver(), linked);
    Chain chain = chain_of(driver(), std::move(linked));
    ASSERT_EQ(chain.size(), part_count);

    for (const float start : {3.0F, -1.0F}) {
      const DeviceMemory gradient = filled(start);
      std::vector<DeviceMemory> memory;
      std::vector<std::size_t> free;
      std::vector<std::size_t> of_region(Backward::kRegions);
      chain.bind(0, gradient.address());
      for (std::uint32_t i = 0; i < kSteps; ++i) {
        const std::uint32_t region = Backward::kSaved + i;
        of_region[region] = memory.size();
        memory.push_back(filled(start + 10 * static_cast<float>(i)));
        chain.bind(region, memory.back().address());
      }
      std::size_t reused = 0;
      for (std::uint32_t part = 0; part < part_count; ++part) {
        pieces.take(part, chain);
        for (std::uint32_t region = Backward::kResults; region < Backward::kRegions; ++region) {
          const bool output = region < Backward::kScratch || region == Backward::kEnd;
          if (!output || parts[region].first != part) {
            continue;
          }
          if (free.empty()) {
            free.push_back(memory.size());
            memory.push_back(filled(0));
          } else {
            ++reused;
          }
          of_region[region] = free.back();
          free.pop_back();
          chain.bind(region, memory[of_region[region]].address());
        }
        chain.launch(part, bed().stream());
        bed().synchronize();
        pieces.give_back(part);
        for (std::uint32_t i = 0; i < kSteps; ++i) {
          if (parts[Backward::kSaved + i].last == part) {
            const std::size_t place = of_region[Backward::kSaved + i];
            memory[place].fill(0xFF);
            free.push_back(place);
          }
        }
      }
      EXPECT_GT(reused, 0U);
      for (std::uint32_t i = 0; i < kSteps; ++i) {
        const float saved = start + 10 * static_cast<float>(i);
        EXPECT_TRUE(
            holds(memory[of_region[Backward::kResults + i]], 2 * saved + static_cast<float>(i)))
            << i;
      }
      EXPECT_TRUE(holds(memory[of_region[Backward::kEnd]], Backward::end(start)));
    }
  }

  /// Cut, and it is known what its nodes do.
  LinkedGraph known_backward() {
    BackwardRegions given(driver());
    for (std::uint32_t i = 0; i < kSteps; ++i) {
      const std::uint32_t scratch = Backward::kScratch + i;
      given.next_node({Backward::kSaved + i}, Backward::kResults + i);
      given.next_node({i == 0 ? 0 : scratch - 1}, scratch);
    }
    return given.link(Backward::capture(bed()), {}, {.peak_slack = 1, .independence = true});
  }

  /// The nodes that a graph has, as the driver counts them.
  [[nodiscard]] std::set<CUgraphNode> nodes_of(CUgraph graph) {
    std::size_t count = 64;
    std::vector<CUgraphNode> found(count);
    driver().check(driver().api.cuGraphGetNodes(graph, found.data(), &count), "cuGraphGetNodes");
    return {found.begin(), found.begin() + static_cast<std::ptrdiff_t>(count)};
  }
};

TEST_P(Parts, MemoryOfSpentInputsServesLaterOutputs) {
  expect_memory_handed_on(BackwardRegions(driver()).link(Backward::capture(bed()), {}, kCut));
}

TEST_P(Parts, NodesOfOnePartRunSideBySide) {
  const LinkedGraph linked = known_backward();
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    twin::Faults::any_order(seed);
    std::optional<LinkedGraph> wide = spread(driver(), linked, {.lanes = 2});
    ASSERT_TRUE(wide);
    EXPECT_EQ(wide->lanes, 2U);
    EXPECT_EQ(wide->cuts, linked.cuts);
    EXPECT_EQ(wide->spans, linked.spans);
    for (const std::uint32_t cut : linked.cuts) {
      EXPECT_TRUE(NodeOrder(wide->image).precedes(cut - 1, cut));
    }
    expect_memory_handed_on(std::move(*wide));
    twin::Faults::any_order(0);
  }
}

TEST_P(Parts, WhoLooksOnSeesAllPartsAsOne) {
  const LinkedGraph linked = known_backward();
  const Observer observer(linked);
  DeviceMemory copies(driver(), observer.bytes());
  std::vector<LinkedGraph> made;
  made.push_back(observer.observed(driver(), linked, copies.address()));
  Stopwatch stopwatch(driver(), linked);
  made.push_back(stopwatch.take());
  if (!on_twin()) {
    made.push_back(delayed(driver(), linked, 1));
  }
  for (LinkedGraph& each : made) {
    ASSERT_TRUE(each.cuts.empty());
    EXPECT_EQ(each.spans, std::vector<PartSpan>(linked.pieces().size()));
    std::vector<DeviceMemory> memory;
    std::vector<CUdeviceptr> at;
    for (std::uint32_t region = 0; region < Backward::kRegions; ++region) {
      memory.push_back(filled(static_cast<float>(region)));
      at.push_back(memory.back().address());
    }
    Runnable runnable(bed(), std::move(each));
    runnable.run(bed(), at);
    for (std::uint32_t i = 0; i < kSteps; ++i) {
      const auto saved = static_cast<float>(Backward::kSaved + i);
      EXPECT_TRUE(holds(memory[Backward::kResults + i], 2 * saved + static_cast<float>(i))) << i;
    }
    EXPECT_TRUE(holds(memory[Backward::kEnd], Backward::end(0)));
  }
  EXPECT_FALSE(observer.pairs().empty());
  EXPECT_TRUE(differing(observer, copies.read<std::byte>()).empty());
}

TEST_P(Parts, EachHasItsOwnNodesAndTheirRelocations) {
  const BackwardRegions given(driver());
  LinkedGraph linked = given.link(Backward::capture(bed()), {}, kCut);
  const std::vector<std::uint32_t> cuts = linked.cuts;
  const std::vector<PartSpan> spans = linked.parts_of_regions();
  const std::size_t relocations = linked.relocations.size();
  const std::size_t regions = linked.region_count();
  const std::vector<LinkedPart> parts = take_apart(driver(), std::move(linked));
  ASSERT_EQ(parts.size(), cuts.size() + 1);
  std::size_t nodes = 0;
  std::size_t words = 0;
  std::vector<PartSpan> found(regions, PartSpan{99, 0});
  for (std::uint32_t part = 0; part < parts.size(); ++part) {
    std::set<CUgraphNode> handles;
    for (const Node& node : parts[part].image.nodes) {
      handles.insert(node.handle);
    }
    EXPECT_EQ(nodes_of(parts[part].graph.get()), handles) << part;
    nodes += handles.size();
    if (part < cuts.size()) {
      EXPECT_EQ(nodes, cuts[part]);
    }
    words += parts[part].relocations.size();
    for (const Relocation& relocation : parts[part].relocations) {
      ASSERT_LT(relocation.node, parts[part].image.nodes.size());
      PartSpan& span = found[relocation.region];
      span = {std::min(span.first, part), std::max(span.last, part)};
    }
  }
  EXPECT_EQ(nodes, Backward::kNodes);
  EXPECT_EQ(words, relocations);
  for (std::size_t region = 0; region < regions; ++region) {
    const PartSpan nowhere{0, 0};
    EXPECT_EQ(spans[region], found[region].first == 99 ? nowhere : found[region]) << region;
  }
}

TEST_P(Parts, ABindingHoldsForThePartsToCome) {
  // The first node and the last read region 0.
  const BackwardRegions given(driver());
  LinkedGraph linked = given.link(
      [this](const std::vector<CUdeviceptr>& at) {
        return bed().capture([&] {
          bed().affine({at[Backward::kScratch], at[0], 1, 0, kFloats});
          for (std::uint32_t i = 0; i < kSteps; ++i) {
            bed().affine({at[Backward::kResults + i], at[Backward::kSaved + i], 1, 0, kFloats});
          }
          bed().affine({at[Backward::kResults], at[Backward::kScratch], 1, 0, kFloats});
          bed().affine({at[Backward::kEnd], at[0], 1, 0, kFloats});
        });
      },
      {}, kCut);
  ASSERT_GE(linked.cuts.size(), 1U);
  const auto last = static_cast<std::uint32_t>(linked.cuts.size());
  ASSERT_EQ(linked.parts_of_regions()[0], (PartSpan{0, last}));
  Pieces pieces(driver(), linked);
  Chain chain = chain_of(driver(), std::move(linked));
  std::vector<DeviceMemory> memory;
  for (std::uint32_t region = 0; region < Backward::kRegions; ++region) {
    memory.push_back(filled(5));
    chain.bind(region, memory.back().address());
  }
  for (std::uint32_t part = 0; part <= last; ++part) {
    pieces.take(part, chain);
  }
  const DeviceMemory other = filled(7);
  const auto run = [&](bool rebind) {
    for (std::uint32_t part = 0; part <= last; ++part) {
      chain.launch(part, bed().stream());
      if (rebind && part == 0) {
        chain.bind(0, other.address());
        EXPECT_EQ(chain.bound(0), other.address());
      }
    }
    bed().synchronize();
  };
  EXPECT_EQ(chain.bound(0), memory[0].address());
  run(true);
  EXPECT_TRUE(holds(memory[Backward::kResults], 5)) << "launched before";
  EXPECT_TRUE(holds(memory[Backward::kEnd], 7));
  const std::uint64_t updates = chain.updates();
  run(false);
  EXPECT_TRUE(holds(memory[Backward::kResults], 7));
  EXPECT_TRUE(holds(memory[Backward::kEnd], 7));
  EXPECT_EQ(chain.updates(), updates + 1) << "the first node of the first part";
  run(false);
  EXPECT_EQ(chain.updates(), updates + 1);
}

TEST_P(Parts, BranchesThatAreCutStayRight) {
  // From region 0 into two branches side by side, each a chain through its own scratch, and in each
  // step a result from an activation: a0 b0 a1 b1 … by creation, joined by the last node.
  const BackwardRegions given(driver());
  const auto make = [this](const std::vector<CUdeviceptr>& at) {
    testing::GraphBuilder graph(bed());
    const CUgraphNode fork = graph.affine({at[Backward::kScratch], at[0], 1, 1, kFloats});
    CUgraphNode ends[] = {fork, fork};
    for (std::uint32_t i = 0; i < kSteps; ++i) {
      CUgraphNode& end = ends[i % 2];
      end = graph.affine({at[Backward::kResults + i], at[Backward::kSaved + i], 3, 1, kFloats},
                         Nodes{end});
    }
    CUgraphNode branch = graph.affine(
        {at[Backward::kScratch + 1], at[Backward::kScratch], 2, 0, kFloats}, Nodes{ends[0]});
    branch = graph.affine({at[Backward::kScratch + 2], at[Backward::kScratch + 1], 2, 0, kFloats},
                          Nodes{branch});
    graph.affine({at[Backward::kEnd], at[Backward::kScratch + 2], 1, 1, kFloats},
                 Nodes{branch, ends[1]});
    return graph.take();
  };
  LinkedGraph linked = given.link(make, {}, kCut);
  ASSERT_TRUE(linked.table.sound());
  ASSERT_GE(linked.cuts.size(), 1U);
  const auto part_count = static_cast<std::uint32_t>(linked.cuts.size() + 1);
  Pieces pieces(driver(), linked);
  Chain chain = chain_of(driver(), std::move(linked));
  for (const float start : {2.0F, -4.0F}) {
    std::vector<DeviceMemory> memory;
    for (std::uint32_t region = 0; region < Backward::kRegions; ++region) {
      memory.push_back(filled(start));
      chain.bind(region, memory.back().address());
    }
    for (std::uint32_t part = 0; part < part_count; ++part) {
      pieces.take(part, chain);
      chain.launch(part, bed().stream());
      bed().synchronize();
      pieces.give_back(part);
    }
    for (std::uint32_t i = 0; i < kSteps; ++i) {
      EXPECT_TRUE(holds(memory[Backward::kResults + i], 3 * start + 1)) << i;
    }
    EXPECT_TRUE(holds(memory[Backward::kEnd], 4 * (start + 1) + 1));
  }
}

TEST_P(Parts, CopiesAtTheEndAreInTheLastPart) {
  const BackwardRegions given(driver());
  const std::uint32_t source = Backward::kScratch + 1;
  LinkedGraph linked =
      given.link(Backward::capture(bed()), {{source, 0, kBytes, true}, {0, 0, kBytes}}, kCut);
  ASSERT_GE(linked.cuts.size(), 1U);
  const auto last = static_cast<std::uint32_t>(linked.cuts.size());
  EXPECT_LE(linked.cuts.back(), Backward::kNodes);
  const std::vector<PartSpan> parts = linked.parts_of_regions();
  const std::uint32_t destination = linked.first_copy;
  EXPECT_EQ(parts[destination], (PartSpan{last, last}));
  EXPECT_EQ(parts[destination + 1], (PartSpan{last, last}));
  Pieces pieces(driver(), linked);
  Chain chain = chain_of(driver(), std::move(linked));
  std::vector<DeviceMemory> memory;
  for (std::uint32_t region = 0; region < destination + 2; ++region) {
    memory.push_back(filled(5));
    chain.bind(region, memory.back().address());
  }
  for (std::uint32_t part = 0; part <= last; ++part) {
    pieces.take(part, chain);
    EXPECT_TRUE(holds(memory[destination], 5)) << "before part " << part;
    chain.launch(part, bed().stream());
    bed().synchronize();
    pieces.give_back(part);
  }
  EXPECT_TRUE(holds(memory[destination], 2 * (2 * 5) + 1));
  EXPECT_TRUE(holds(memory[destination + 1], 5));
  EXPECT_TRUE(holds(memory[Backward::kEnd], Backward::end(5)));
}

TEST_P(Parts, AGraphThatIsNotCutStaysWhatItIs) {
  const BackwardRegions given(driver());
  const auto uncut = [&](const LinkOptions& options) {
    LinkedGraph linked = given.link(Backward::capture(bed()), {}, options);
    EXPECT_TRUE(linked.cuts.empty());
    EXPECT_EQ(linked.spans, std::vector<PartSpan>(linked.pieces().size(), PartSpan{0, 0}));
    for (const PartSpan& span : linked.parts_of_regions()) {
      EXPECT_EQ(span, (PartSpan{0, 0}));
    }
    return linked;
  };
  (void)uncut({.share_scratch = false, .peak_slack = 1});
  (void)uncut({.peak_slack = 2 * kSteps * kBytes});
  LinkedGraph linked = uncut({});
  const CUgraph graph = linked.graph.get();
  std::vector<CUgraphNode> handles;
  for (const Node& node : linked.image.nodes) {
    handles.push_back(node.handle);
  }
  const std::vector<LinkedPart> parts = take_apart(driver(), std::move(linked));
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].graph.get(), graph);
  ASSERT_EQ(parts[0].image.nodes.size(), handles.size());
  for (std::size_t i = 0; i < handles.size(); ++i) {
    EXPECT_EQ(parts[0].image.nodes[i].handle, handles[i]);
  }
  EXPECT_EQ(parts[0].relocations.size(), 4 * std::size_t{kSteps});
}

TEST_P(Parts, WhatIsBornLateIsReasonEnoughToCut) {
  // Nothing is given up, but the scratch of the first nodes is gone before the outputs are there.
  Regions given(driver(), 4, kBytes);
  given.scratch(1).fresh(2).fresh(3);
  const auto make = [this](const std::vector<CUdeviceptr>& at) {
    return bed().capture([&] {
      bed().affine({at[1], at[0], 2, 0, kFloats});
      bed().affine({at[0], at[1], 2, 0, kFloats});
      bed().affine({at[2], at[0], 2, 0, kFloats});
      bed().affine({at[3], at[2], 2, 0, kFloats});
    });
  };
  EXPECT_EQ(given.link(make, {}, kCut).cuts.size(), 1U);
  EXPECT_TRUE(given.link(make, {}, {.smallest_loan = 1, .peak_slack = 1}).cuts.empty())
      << "where it stands in an output it takes no memory";
}

TEST_P(Parts, ASpentRegionIsInUseUntilItsOperatorIsDone) {
  // The node that mentions activation 1 may have put its address into a table that a later node of
  // its operator reads.
  const BackwardRegions given(driver());
  constexpr std::uint32_t kRegion = Backward::kSaved + 1;
  constexpr std::uint32_t kReader = 2;
  for (const bool known : {false, true}) {
    const std::vector<OperatorSpan> operators(known ? 1 : 0, OperatorSpan{kReader, kReader + 3});
    LinkedGraph linked = given.link(Backward::capture(bed()), {}, kCut, operators);
    EXPECT_EQ(linked.last_nodes.at(kRegion), known ? kReader + 2 : kReader);
    EXPECT_EQ(linked.last_nodes.at(Backward::kSaved), 0U);
    EXPECT_EQ(linked.last_nodes.at(Backward::kResults + 1), 0U) << "not spent";
    linked.cuts = {kReader + 1, kReader + 4};
    EXPECT_EQ(linked.parts_of_regions()[kRegion], (PartSpan{0, known ? 1U : 0U}));
  }
}

PYGRAPH_ON_BOTH_DRIVERS(Parts);

TEST(ChainTest, NeedsAProgram) { EXPECT_THROW(Chain({}), std::invalid_argument); }

class PartsFaults : public testing::OnTwin {};

TEST_F(PartsFaults, ADriverThatRefusesLeavesNothing) {
  const BackwardRegions given(driver());
  const twin::Census before = twin::census();
  for (const char* symbol : {"cuGraphClone", "cuGraphNodeFindInClone", "cuGraphDestroyNode"}) {
    std::size_t parts = 0;
    int refused = 0;
    for (int nth = 1; parts == 0; ++nth) {
      LinkedGraph linked = given.link(Backward::capture(bed()), {}, kCut);
      twin::Faults::fail(symbol, CUDA_ERROR_UNKNOWN, nth);
      try {
        parts = take_apart(driver(), std::move(linked)).size();
      } catch (const DriverError& error) {
        ++refused;
        EXPECT_NE(std::string(error.what()).find(symbol), std::string::npos) << error.what();
      }
      twin::Faults::reset();
      linked.graph.reset();
      EXPECT_EQ(twin::census(), before) << symbol << ", call " << nth;
    }
    ASSERT_GE(parts, 2U);
    const std::size_t nodes = Backward::kNodes;
    const std::string name = symbol;
    EXPECT_EQ(static_cast<std::size_t>(refused), name == "cuGraphClone" ? parts
                                                 : name == "cuGraphDestroyNode"
                                                     ? (parts - 1) * nodes
                                                     : parts * nodes);
  }
}

}  // namespace
}  // namespace pygraph
