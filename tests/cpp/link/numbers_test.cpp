// Host numbers from two captures to a program: beside scratch, copies and cuts.
#include <vector>

#include "backward_graph.h"
#include "graph_builder.h"
#include "pygraph/chain.h"
#include "support.h"

namespace pygraph {
namespace {

using testing::Backward;
using testing::BackwardRegions;
using testing::chain_of;
using testing::DeviceMemory;
using testing::holds;
using testing::Pieces;
using testing::Regions;
using testing::Runnable;

constexpr std::uint32_t kFloats = Backward::kFloats;
constexpr std::size_t kBytes = Backward::kBytes;
constexpr std::uint32_t kScale = 16;  // of affine's block, in bytes
constexpr std::uint32_t kShift = 20;
const std::vector<HostNumber> kNumbers = {
    {0.1, 0.3}, {std::int64_t{5}, std::int64_t{9}}, {17.0, 19.0}};

/// The values of kNumbers in the capture that is made now: in A at first, then in B.
class Turn {
 public:
  void next() { ++captures_; }
  [[nodiscard]] float rate() const { return captures_ == 1 ? 0.1F : 0.3F; }
  [[nodiscard]] float step() const { return captures_ == 1 ? 5.0F : 9.0F; }

 private:
  int captures_ = 0;
};

class LinkNumbers : public testing::OnBothDrivers {
 protected:
  [[nodiscard]] DeviceMemory filled(float value) {
    DeviceMemory memory(driver(), kBytes);
    memory.write(std::vector<float>(kFloats, value));
    return memory;
  }
};

TEST_P(LinkNumbers, ComeThroughScratchAndCopies) {
  Regions regions(driver(), 3, kBytes);
  regions.scratch(1);
  LinkedGraph linked = regions.link(
      [&, turn = Turn()](const std::vector<CUdeviceptr>& at) mutable {
        turn.next();
        return bed().capture([&] {
          bed().affine({at[1], at[0], turn.rate(), turn.step(), kFloats});
          bed().affine({at[2], at[1], 2, turn.rate(), kFloats});
        });
      },
      {{1, 0, kBytes}}, {}, {}, kNumbers);
  ASSERT_TRUE(linked.table.sound()) << linked.table.problems[0];
  EXPECT_EQ(linked.numbers, (std::vector<NumberWord>{{0, kScale, 0, NumberEncoding::kFloat32},
                                                     {0, kShift, 1, NumberEncoding::kFloat32},
                                                     {1, kShift, 0, NumberEncoding::kFloat32}}));
  EXPECT_EQ(linked.number_count, 3U);
  EXPECT_EQ(linked.table.noise, 0U);
  Runnable runnable(bed(), std::move(linked));
  const DeviceMemory in = filled(4);
  const DeviceMemory out = filled(0);
  const DeviceMemory copy = filled(0);
  for (const float rate : {0.5F, -2.0F}) {
    runnable.program.set_number(0, double{rate});
    runnable.program.set_number(1, std::int64_t{3});
    runnable.run(bed(), {in.address(), in.address(), out.address(), copy.address()});
    EXPECT_TRUE(holds(out, 2 * (4 * rate + 3) + rate));
    EXPECT_TRUE(holds(copy, 4 * rate + 3));
  }
}

TEST_P(LinkNumbers, ThatAreNotGivenAreNoise) {
  const Regions regions(driver(), 2, kBytes);
  const LinkedGraph linked =
      regions.link([&, turn = Turn()](const std::vector<CUdeviceptr>& at) mutable {
        turn.next();
        return bed().capture([&] { bed().affine({at[1], at[0], turn.rate(), 1, kFloats}); });
      });
  ASSERT_TRUE(linked.table.sound());
  EXPECT_TRUE(linked.numbers.empty());
  EXPECT_EQ(linked.number_count, 0U);
  EXPECT_EQ(linked.table.noise, 1U);
}

TEST_P(LinkNumbers, StandInEveryPartOfAGraphThatIsCut) {
  const BackwardRegions given(driver());
  constexpr std::uint32_t kSteps = Backward::kSteps;
  LinkedGraph linked = given.link(
      [&, turn = Turn()](const std::vector<CUdeviceptr>& at) mutable {
        turn.next();
        return bed().capture([&] {
          for (std::uint32_t i = 0; i < kSteps; ++i) {
            bed().affine(
                {at[Backward::kResults + i], at[Backward::kSaved + i], 2, turn.rate(), kFloats});
            bed().affine({at[Backward::kScratch + i], at[i == 0 ? 0 : Backward::kScratch + i - 1],
                          1, i + 1 == kSteps ? turn.step() : 0, kFloats});
          }
        });
      },
      {}, {.peak_slack = 1}, {}, kNumbers);
  ASSERT_TRUE(linked.table.sound());
  ASSERT_GE(linked.cuts.size(), 2U);
  EXPECT_EQ(linked.numbers.size(), kSteps + 1);
  Pieces pieces(driver(), linked);
  Chain chain = chain_of(driver(), std::move(linked));
  EXPECT_EQ(chain.number_count(), 3U);
  std::vector<DeviceMemory> memory;
  for (std::uint32_t region = 0; region < Backward::kRegions; ++region) {
    memory.push_back(filled(4));
    chain.bind(region, memory.back().address());
  }
  for (const float rate : {0.5F, -2.0F}) {
    chain.set_number(0, double{rate});
    chain.set_number(1, std::int64_t{3});
    for (std::uint32_t part = 0; part < chain.size(); ++part) {
      pieces.take(part, chain);
      chain.launch(part, bed().stream());
      bed().synchronize();
      pieces.give_back(part);
    }
    for (std::uint32_t i = 0; i < kSteps; ++i) {
      EXPECT_TRUE(holds(memory[Backward::kResults + i], 2 * 4 + rate)) << i;
    }
    EXPECT_TRUE(holds(memory[Backward::kEnd], 4 + 3));
  }
}

PYGRAPH_ON_BOTH_DRIVERS(LinkNumbers);

}  // namespace
}  // namespace pygraph
