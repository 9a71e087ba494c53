#include "pygraph/link.h"

#include <algorithm>
#include <numeric>

#include "graph_builder.h"
#include "support.h"

namespace pygraph {
namespace {

using testing::AffineBlock;
using testing::DeviceMemory;
using testing::holds;
using testing::Regions;
using testing::Runnable;

constexpr std::uint32_t kFloats = 200;
constexpr std::size_t kBytes = kFloats * sizeof(float);

/// input -> s0 -> s1 -> s2 -> output, the three in the middle scratch.
class Link : public testing::OnBothDrivers {
 protected:
  static constexpr std::size_t kRegions = 5;

  std::vector<CUdeviceptr> place(PhantomSpace& space, Placement placement) {
    space.begin(placement);
    std::vector<CUdeviceptr> at;
    for (std::size_t i = 0; i < kRegions; ++i) {
      at.push_back(space.allocate(kBytes));
    }
    return at;
  }
  GraphHandle capture(const std::vector<CUdeviceptr>& at, std::size_t nodes = kRegions - 1) {
    return bed().capture([&] {
      for (std::size_t i = 0; i < nodes; ++i) {
        bed().affine({at[i + 1], at[i], 2, 1, kFloats});
      }
    });
  }
  LinkedGraph link_in(const PhantomSpace& space, const GraphHandle& a, const GraphHandle& b,
                      const std::vector<LinkRegion>& regions,
                      const std::vector<CopyOut>& copies = {}) {
    return link(driver(), {.a = a.get(),
                           .b = b.get(),
                           .regions = regions,
                           .copies = copies,
                           .phantom_begin = space.base(),
                           .phantom_end = space.base() + space.reserved_bytes()});
  }
  static std::vector<LinkRegion> regions(const std::vector<CUdeviceptr>& a,
                                         const std::vector<CUdeviceptr>& b) {
    std::vector<LinkRegion> made;
    for (std::size_t i = 0; i < kRegions; ++i) {
      const bool own = i == 0 || i + 1 == kRegions;
      made.push_back({{a[i], b[i], kBytes}, own ? RegionRole::kOwn : RegionRole::kScratch, kBytes});
    }
    return made;
  }
};

TEST_P(Link, ScratchBecomesOneArenaAndTheCapturesStayTheCallers) {
  PhantomSpace space(driver(), 0, testing::small_phantom());
  const std::vector<CUdeviceptr> in_a = place(space, Placement::kA);
  GraphHandle a = capture(in_a);
  const std::vector<CUdeviceptr> in_b = place(space, Placement::kB);
  GraphHandle b = capture(in_b);
  LinkedGraph linked = link_in(space, a, b, regions(in_a, in_b));
  ASSERT_TRUE(linked.table.sound());
  a.reset();
  b.reset();
  EXPECT_EQ(linked.arena, kRegions);
  EXPECT_EQ(linked.region_count(), kRegions + 1);
  EXPECT_EQ(linked.mentions, (std::vector<std::size_t>{1, 2, 2, 2, 1}));
  EXPECT_EQ(linked.layout.bytes, 2 * std::size_t{1024}) << "two of three live at once";
  EXPECT_EQ(linked.layout.offsets.size(), 3U);
  for (const Relocation& relocation : linked.relocations) {
    EXPECT_TRUE(relocation.region == 0 || relocation.region == 4 || relocation.region == 5);
  }

  Program program(driver(), std::move(linked.graph), linked.image, linked.relocations,
                  linked.region_count());
  space.poison(0xFF);
  const DeviceMemory in(driver(), kBytes);
  const DeviceMemory out(driver(), kBytes);
  const DeviceMemory arena(driver(), linked.layout.bytes);
  in.write(std::vector<float>(kFloats, 3));
  program.bind(0, in.address());
  program.bind(4, out.address());
  program.bind(linked.arena, arena.address());
  program.launch(bed().stream());
  bed().synchronize();
  EXPECT_TRUE(holds(out, 16 * 3 + 15));
  EXPECT_TRUE(space.intact(0xFF)) << "nothing was written where the capture was";
}

TEST_P(Link, AProbeThatDiffersIsReportedAndNotUsed) {
  PhantomSpace space(driver(), 0, testing::small_phantom());
  const std::vector<CUdeviceptr> in_a = place(space, Placement::kA);
  const GraphHandle a = capture(in_a);
  const std::vector<CUdeviceptr> in_b = place(space, Placement::kB);
  const GraphHandle b = capture(in_b, 3);
  const LinkedGraph linked = link_in(space, a, b, regions(in_a, in_b));
  EXPECT_FALSE(linked.table.sound());
  EXPECT_TRUE(linked.relocations.empty());
}

TEST_P(Link, APointerBehindTheUsedBytesKeepsItsDistance) {
  // Region 1 has 64 bytes in use; a kernel takes a pointer far behind them, to count back from.
  constexpr std::size_t kBehind = kBytes - 8;
  PhantomSpace space(driver(), 0, testing::small_phantom());
  const auto capture_at = [&](Placement placement, std::vector<CUdeviceptr>& at) {
    at = place(space, placement);
    return bed().capture([&] {
      bed().affine({at[1], at[0], 2, 1, 2});
      bed().affine({at[1] + kBehind, at[0], 2, 1, 2});
    });
  };
  std::vector<CUdeviceptr> in_a;
  std::vector<CUdeviceptr> in_b;
  const GraphHandle a = capture_at(Placement::kA, in_a);
  const GraphHandle b = capture_at(Placement::kB, in_b);
  std::vector<LinkRegion> given = regions(in_a, in_b);
  given[1].used_bytes = 64;
  const LinkedGraph linked = link_in(space, a, b, given);
  ASSERT_TRUE(linked.table.sound());
  EXPECT_LT(linked.layout.bytes, kBytes);
  std::vector<std::int64_t> addends;
  for (const Relocation& relocation : linked.relocations) {
    if (relocation.region == linked.arena) {
      addends.push_back(relocation.addend);
    }
  }
  ASSERT_EQ(addends.size(), 2U);
  EXPECT_EQ(addends[1] - addends[0], static_cast<std::int64_t>(kBehind));
}

/// r0 -> r1 -> r2 -> r1 -> r3: what region 1 holds at the end is not what its first reader saw.
Regions::Make rewriting(const testing::Testbed& bed) {
  return [&bed](const std::vector<CUdeviceptr>& at) {
    return bed.capture([&] {
      bed.affine({at[1], at[0], 2, 0, kFloats});
      bed.affine({at[2], at[1], 1, 1, kFloats});
      bed.affine({at[1], at[2], 10, 0, kFloats});
      bed.affine({at[3], at[2], 1, 5, kFloats});
    });
  };
}

TEST_P(Link, CopiesTakeWhatARegionHoldsAtTheEnd) {
  Regions given(driver(), 4, kBytes);
  given.scratch(1).scratch(2);
  const std::size_t without = given.link(rewriting(bed())).layout.bytes;
  LinkedGraph linked = given.link(rewriting(bed()), {{1, 0, kBytes}, {2, 40, 80}, {0, 0, 0}});
  ASSERT_TRUE(linked.table.sound());
  EXPECT_EQ(linked.first_copy, 4U);
  EXPECT_EQ(linked.arena, 7U);
  EXPECT_EQ(linked.region_count(), 8U);
  EXPECT_EQ(linked.image.count(NodeKind::kMemcpy), 2U) << "a copy of nothing is no node";
  EXPECT_EQ(linked.mentions, (std::vector<std::size_t>{1, 4, 4, 1}));
  EXPECT_GE(linked.layout.bytes, without);
  Runnable runnable(bed(), std::move(linked));
  const DeviceMemory in(driver(), kBytes);
  const DeviceMemory out(driver(), kBytes);
  for (const float start : {3.0F, -1.0F}) {
    const DeviceMemory first(driver(), kBytes);
    const DeviceMemory second(driver(), 80);
    in.write(std::vector<float>(kFloats, start));
    runnable.program.bind(4, first.address());
    runnable.program.bind(5, second.address());
    runnable.run(bed(), {in.address(), 0, 0, out.address()});
    EXPECT_TRUE(holds(first, 10 * (2 * start + 1)));
    EXPECT_TRUE(holds(second, 2 * start + 1));
    EXPECT_TRUE(holds(out, 2 * start + 6));
  }
}

TEST_P(Link, CopiesStartAtTheirOffset) {
  const Regions given(driver(), 2, kBytes);
  Runnable runnable(
      bed(), given.link(
                 [&](const std::vector<CUdeviceptr>& at) {
                   return bed().capture([&] { bed().affine({at[1], at[0], 1, 1, kFloats}); });
                 },
                 {{1, 40, 80}}));
  const DeviceMemory in(driver(), kBytes);
  const DeviceMemory out(driver(), kBytes);
  const DeviceMemory copied(driver(), 80);
  std::vector<float> values(kFloats);
  std::iota(values.begin(), values.end(), 0.0F);
  in.write(values);
  runnable.run(bed(), {in.address(), out.address(), copied.address()});
  std::vector<float> expected(20);
  std::iota(expected.begin(), expected.end(), 11.0F);
  EXPECT_EQ(copied.read<float>(), expected);
}

TEST_P(Link, CopiesRunBehindEveryBranch) {
  Regions given(driver(), 4, kBytes);
  const auto branches = [&](const std::vector<CUdeviceptr>& at) {
    testing::GraphBuilder graph(bed());
    for (std::size_t i = 1; i < 4; ++i) {
      graph.affine({at[i], at[0], 1, static_cast<float>(i), kFloats});
    }
    return graph.take();
  };
  for (const std::size_t copies : {std::size_t{1}, std::size_t{3}}) {
    const std::vector<CopyOut> list(copies, CopyOut{2, 0, kBytes});
    LinkedGraph linked = given.link(branches, list);
    ASSERT_TRUE(linked.table.sound());
    const NodeOrder order(linked.image);
    const auto last = static_cast<std::uint32_t>(linked.image.nodes.size() - 1);
    for (std::uint32_t kernel = 0; kernel < 3; ++kernel) {
      EXPECT_TRUE(order.precedes(kernel, last)) << kernel;
    }
    EXPECT_TRUE(std::is_sorted(linked.image.edges.begin(), linked.image.edges.end()));
    Runnable runnable(bed(), std::move(linked));
    std::vector<DeviceMemory> memory;
    std::vector<CUdeviceptr> at;
    for (std::size_t i = 0; i < 4 + copies; ++i) {
      memory.emplace_back(driver(), kBytes);
      memory.back().write(std::vector<float>(kFloats, 1));
      at.push_back(memory.back().address());
    }
    runnable.run(bed(), at);
    EXPECT_TRUE(holds(memory.back(), 3));
  }
}

TEST_P(Link, ScratchThatIsCopiedLivesToTheEnd) {
  // A chain of scratch packs into two places; copied at the end, the first keeps one for itself.
  Regions given(driver(), 6, kBytes);
  for (std::size_t i = 1; i < 5; ++i) {
    given.scratch(i);
  }
  const auto make = [&](const std::vector<CUdeviceptr>& at) {
    return bed().capture([&] {
      for (std::size_t i = 0; i + 1 < at.size(); ++i) {
        bed().affine({at[i + 1], at[i], 2, 1, kFloats});
      }
    });
  };
  EXPECT_EQ(given.link(make).layout.bytes, 2 * std::size_t{1024});
  LinkedGraph linked = given.link(make, {{1, 0, kBytes}});
  EXPECT_EQ(linked.layout.bytes, 3 * std::size_t{1024});
  Runnable runnable(bed(), std::move(linked));
  const DeviceMemory in(driver(), kBytes);
  const DeviceMemory out(driver(), kBytes);
  const DeviceMemory copied(driver(), kBytes);
  in.write(std::vector<float>(kFloats, 3));
  runnable.run(bed(), {in.address(), 0, 0, 0, 0, out.address(), copied.address()});
  EXPECT_TRUE(holds(copied, 7));
}

TEST_P(Link, CopiesOutsideTheirRegionAreRefused) {
  Regions given(driver(), 4, kBytes);
  const auto refused = [&](const CopyOut& copy) {
    return testing::message_of<std::invalid_argument>(
        [&] { (void)given.link(rewriting(bed()), {copy}); });
  };
  EXPECT_NE(refused({4, 0, 8}).find("region 4"), std::string::npos);
  EXPECT_NE(refused({0, 8, kBytes}).find("copy 0 reads"), std::string::npos);
  EXPECT_NE(refused({0, kBytes + 1, 0}).find("copy 0 reads"), std::string::npos);
  EXPECT_NE(refused({0, 1, ~std::uint64_t{0}}).find("copy 0 reads"), std::string::npos);
}

TEST_P(Link, AddressesOfOtherMemoryAreForeign) {
  // A constant that a library keeps: the same in both captures, in no region.
  const DeviceMemory constant(driver(), kBytes);
  const Regions given(driver(), 2, kBytes);
  const LinkedGraph linked = given.link([&](const std::vector<CUdeviceptr>& at) {
    return bed().capture([&] {
      bed().affine({at[0], constant.address() + 8, 1, 1, 4});
      bed().affine({at[1], constant.address() + 8, 1, 1, 4});
      bed().affine({at[1], at[0], 1, 1, 4});
    });
  });
  ASSERT_TRUE(linked.table.sound());
  EXPECT_EQ(linked.table.foreign, (std::vector<ForeignWord>{{0, 8, constant.address() + 8},
                                                            {1, 8, constant.address() + 8}}));
}

TEST_P(Link, BuffersOfAKernelThatMayStillRunAreNotShared) {
  // r0 -> s1 -> s2 -> s3 -> r4. With a programmatic edge from the second kernel to the third, the
  // third may start while the second still reads s1: s3 must not take its place.
  Regions given(driver(), 5, kBytes);
  given.scratch(1).scratch(2).scratch(3);
  const auto make = [&](bool early) {
    return [&, early](const std::vector<CUdeviceptr>& at) {
      testing::GraphBuilder graph(bed());
      CUgraphNode before = graph.affine({at[1], at[0], 2, 1, kFloats});
      for (std::size_t i = 1; i < 4; ++i) {
        const CUgraphNode node = graph.affine({at[i + 1], at[i], 2, 1, kFloats});
        graph.edge(before, node, early && i == 2 ? testing::programmatic() : CUgraphEdgeData{});
        before = node;
      }
      return graph.take();
    };
  };
  EXPECT_EQ(given.link(make(false)).layout.bytes, 2 * std::size_t{1024});
  const LinkedGraph linked = given.link(make(true));
  EXPECT_EQ(linked.image.programmatic.size(), 1U);
  EXPECT_EQ(linked.layout.bytes, 3 * std::size_t{1024});
}

/// r0 -> s1 -> s2 -> s3 -> s4 -> r5, a chain.
Regions::Make chain_of_five(const testing::Testbed& bed) {
  return [&bed](const std::vector<CUdeviceptr>& at) {
    return bed.capture([&] {
      for (std::size_t i = 0; i < 5; ++i) {
        bed.affine({at[i + 1], at[i], 2, 1, kFloats});
      }
    });
  };
}

TEST_P(Link, MemoryThatAnOperatorFreesBeforeItTakesMoreIsNotInUseAnyMore) {
  Regions given(driver(), 6, kBytes);
  given.scratch(1).scratch(2).scratch(3).scratch(4);
  const auto make = chain_of_five(bed());
  constexpr std::size_t kBuffer = 1024;
  EXPECT_EQ(given.link(make, {}, {}, {{0, 5}}).layout.bytes, 4 * kBuffer);
  given.times(1, {1, 3}).times(2, {2, 5}).times(3, {4, Times::kNever}).times(4, {6, 7});
  EXPECT_EQ(given.link(make, {}, {}, {{0, 5}}).layout.bytes, 2 * kBuffer);
}

TEST_P(Link, MemoryOfAnOperatorIsInUseUntilAllOfItIsDone) {
  Regions given(driver(), 6, kBytes);
  given.scratch(1).scratch(2).scratch(3).scratch(4);
  const auto make = chain_of_five(bed());
  constexpr std::size_t kBuffer = 1024;
  EXPECT_EQ(given.link(make).layout.bytes, 2 * kBuffer);
  // Nodes 1 to 3 are one operator: s1, which node 1 reads, must last until node 3 has written s4.
  EXPECT_EQ(given.link(make, {}, {}, {{1, 4}}).layout.bytes, 4 * kBuffer);
  EXPECT_EQ(given.link(make, {}, {}, {{1, 3}}).layout.bytes, 3 * kBuffer);
  EXPECT_EQ(given.link(make, {}, {}, {{1, 2}, {2, 3}}).layout.bytes, 2 * kBuffer) << "single nodes";
  EXPECT_EQ(given.link(make, {}, {}, {{3, 400}}).layout.bytes, 2 * kBuffer) << "beyond the end";
}

TEST_P(Link, ScratchApartSharesNothing) {
  Regions given(driver(), 6, kBytes);
  given.scratch(1).scratch(2).scratch(3).scratch(4);
  LinkedGraph linked = given.link(chain_of_five(bed()), {}, {.share_scratch = false});
  EXPECT_EQ(linked.layout.bytes, 4 * std::size_t{1024});
  EXPECT_EQ(linked.layout.offsets, (std::vector<std::size_t>{0, 1024, 2048, 3072}));
  Runnable runnable(bed(), std::move(linked));
  const DeviceMemory in(driver(), kBytes);
  const DeviceMemory out(driver(), kBytes);
  in.write(std::vector<float>(kFloats, 1.0F));
  runnable.run(bed(), {in.address(), 0, 0, 0, 0, out.address()});
  EXPECT_TRUE(holds(out, 63.0F));
}

PYGRAPH_ON_BOTH_DRIVERS(Link);

class LinkFaults : public testing::OnTwin {};

TEST_F(LinkFaults, FailuresLeaveNothing) {
  const GraphHandle graph = bed().capture([&] { bed().affine({512, 1024, 1, 0, 1}); });
  const twin::Census before = twin::census();
  for (const char* symbol :
       {"cuGraphClone", "cuGraphGetNodes", "cuGraphGetEdges", "cuFuncGetParamInfo"}) {
    twin::Faults::fail(symbol, CUDA_ERROR_UNKNOWN);
    EXPECT_THROW((void)link(driver(), {.a = graph.get(), .b = graph.get()}), DriverError) << symbol;
    EXPECT_EQ(twin::census(), before) << symbol;
  }
}

}  // namespace
}  // namespace pygraph
