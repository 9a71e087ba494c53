#include "pygraph/link.h"

#include "support.h"

namespace pygraph {
namespace {

using testing::AffineBlock;
using testing::DeviceMemory;
using testing::holds;

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

TEST_P(Link, ScratchThatReachesBeyondItsUsedBytesIsNotSqueezed) {
  // Region 1 is mentioned near the end of its segment, but said to use only its first bytes: its
  // place in the arena would be too small.
  PhantomSpace space(driver(), 0, testing::small_phantom());
  const auto capture_at = [&](Placement placement, std::vector<CUdeviceptr>& at) {
    at = place(space, placement);
    return bed().capture([&] { bed().affine({at[1] + kBytes - 8, at[0], 2, 1, 2}); });
  };
  std::vector<CUdeviceptr> in_a;
  std::vector<CUdeviceptr> in_b;
  const GraphHandle a = capture_at(Placement::kA, in_a);
  const GraphHandle b = capture_at(Placement::kB, in_b);
  std::vector<LinkRegion> given = regions(in_a, in_b);
  given[1].used_bytes = 64;
  const LinkedGraph linked = link_in(space, a, b, given);
  EXPECT_FALSE(linked.table.sound());
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
