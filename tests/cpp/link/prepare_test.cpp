// Memory that two captured graphs allocate themselves, as regions.
#include "link/prepare.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pygraph {
namespace {

using Allocations = std::vector<GraphAllocation>;

std::vector<Region> cells(const Allocations& a, const Allocations& b, bool sound = true) {
  std::vector<std::string> problems;
  std::vector<Region> made = own_memory(a, b, problems);
  EXPECT_EQ(problems.empty(), sound) << (problems.empty() ? "no problem" : problems[0]);
  return made;
}

TEST(OwnMemory, SharedBytesMoveAsAWhole) {
  const std::vector<Region> made =
      cells({{0x1000, 256, "0"}, {0x1080, 512, "1"}, {0x9000, 64, "2"}},
            {{0x5000, 256, "0"}, {0x5080, 512, "1"}, {0x4000, 64, "2"}});
  ASSERT_EQ(made.size(), 2U);
  EXPECT_EQ(made[0].a, 0x1000U);
  EXPECT_EQ(made[0].b, 0x5000U);
  EXPECT_EQ(made[0].bytes, 0x280U);
  EXPECT_EQ(made[1].a, 0x9000U);
}

TEST(OwnMemory, AJoinMayReachFurtherCells) {
  // The third covers both others.
  const std::vector<Region> made =
      cells({{0x1000, 64, "0"}, {0x1100, 64, "1"}, {0x1000, 512, "2"}},
            {{0x5000, 64, "0"}, {0x5100, 64, "1"}, {0x5000, 512, "2"}});
  ASSERT_EQ(made.size(), 1U);
  EXPECT_EQ(made[0].bytes, 512U);
}

TEST(OwnMemory, SharingInOneCaptureOnlyIsAProblem) {
  cells({{0x1000, 64, "0"}, {0x1000, 64, "1"}}, {{0x5000, 64, "0"}, {0x6000, 64, "1"}}, false);
  cells({{0x1000, 64, "0"}, {0x2000, 64, "1"}}, {{0x5000, 64, "0"}, {0x5020, 64, "1"}}, false);
}

TEST(OwnMemory, DifferentAllocationsAreAProblem) {
  cells({{0x1000, 64, "0"}}, {}, false);
  cells({{0x1000, 64, "0"}}, {{0x5000, 65, "0"}}, false);
  cells({{0x1000, 64, "0"}}, {{0x1000, 64, "0"}}, false);
}

}  // namespace
}  // namespace pygraph
