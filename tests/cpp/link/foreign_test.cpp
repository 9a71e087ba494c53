// Where addresses that nobody knows lead.
#include <vector>

#include "pygraph/link.h"
#include "support.h"

namespace pygraph {
namespace {

using testing::DeviceMemory;
using testing::kMiB;

class ForeignMemory : public testing::OnBothDrivers {
 protected:
  [[nodiscard]] DeviceMemory cleared(std::size_t bytes) const {
    DeviceMemory memory(driver(), bytes);
    memory.fill(0);
    return memory;
  }
  /// Memory of numbers, with one address in the middle.
  [[nodiscard]] DeviceMemory holding(CUdeviceptr address) const {
    std::vector<CUdeviceptr> words(4096);
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] = i * 0x3f80'0000U + (i << 60U);
    }
    words[words.size() / 2] = address;
    DeviceMemory memory(driver(), words.size() * sizeof(CUdeviceptr));
    memory.write(words);
    return memory;
  }
  [[nodiscard]] bool leads(const std::vector<CUdeviceptr>& foreign,
                           const DeviceMemory& place) const {
    const MemoryRange range{place.address(), place.bytes()};
    return may_lead_to(driver(), bed().stream(), foreign, {&range, 1});
  }
};

TEST_P(ForeignMemory, LeadsNowhereWithoutAnAddressOfThePlace) {
  const DeviceMemory place = cleared(256);
  const DeviceMemory other = cleared(256);
  const DeviceMemory empty = cleared(kMiB);
  const DeviceMemory numbers = holding(7);
  const DeviceMemory elsewhere = holding(other.address());
  EXPECT_FALSE(leads({}, place));
  EXPECT_FALSE(leads({empty.address() + 12, numbers.address(), elsewhere.address()}, place));
}

TEST_P(ForeignMemory, LeadsToAnAddressAnywhereInThePlaceOrAtItsEnd) {
  const DeviceMemory place = cleared(256);
  for (const std::size_t offset : {0, 100, 255, 256}) {
    const DeviceMemory table = holding(place.address() + offset);
    EXPECT_TRUE(leads({table.address()}, place)) << offset;
    // The word points somewhere into the allocation, behind the address that it has.
    EXPECT_TRUE(leads({table.address() + table.bytes() - 8}, place)) << offset;
  }
  const DeviceMemory beside = holding(place.address() + 257);
  EXPECT_FALSE(leads({beside.address()}, place));
}

TEST_P(ForeignMemory, LeadsOnOverOtherMemory) {
  const DeviceMemory place = cleared(256);
  const DeviceMemory last = holding(place.address() + 8);
  const DeviceMemory between = holding(last.address() + 16);
  const DeviceMemory first = holding(between.address());
  const DeviceMemory empty = cleared(64);
  EXPECT_TRUE(leads({empty.address(), first.address()}, place));
}

TEST_P(ForeignMemory, ThatPointsInACircleLeadsNowhere) {
  const DeviceMemory place = cleared(256);
  const DeviceMemory self = cleared(64);
  const DeviceMemory one = cleared(64);
  const DeviceMemory other = holding(one.address());
  self.write(std::vector<CUdeviceptr>{self.address()});
  one.write(std::vector<CUdeviceptr>{other.address()});
  EXPECT_FALSE(leads({self.address(), one.address()}, place));
}

TEST_P(ForeignMemory, MayLeadAnywhereWhereNobodyCanTell) {
  const DeviceMemory place = cleared(256);
  CUdeviceptr freed = 0;
  {
    const DeviceMemory gone = cleared(16 * kMiB);
    freed = gone.address();
  }
  EXPECT_TRUE(leads({freed}, place));
  const DeviceMemory large = cleared(kMostFollowed + 8);
  EXPECT_TRUE(leads({large.address()}, place));
}

TEST_P(ForeignMemory, IsReadToTheLimitOverAll) {
  const DeviceMemory place = cleared(256);
  const DeviceMemory half = cleared(kMostFollowed / 2);
  const DeviceMemory rest = cleared(kMostFollowed / 2);
  const DeviceMemory more = cleared(8);
  EXPECT_FALSE(leads({half.address(), rest.address()}, place));
  EXPECT_FALSE(leads({half.address(), half.address() + 8, rest.address()}, place));
  EXPECT_TRUE(leads({half.address(), rest.address(), more.address()}, place));
}

TEST_P(ForeignMemory, ThatCannotBeReadMayLeadAnywhere) {
  if (!on_twin()) {
    GTEST_SKIP() << "needs a driver that fails";
  }
  const DeviceMemory place = cleared(256);
  const DeviceMemory empty = cleared(64);
  twin::Faults::fail("cuMemcpyDtoHAsync", CUDA_ERROR_UNKNOWN);
  EXPECT_TRUE(leads({empty.address()}, place));
}

PYGRAPH_ON_BOTH_DRIVERS(ForeignMemory);

}  // namespace
}  // namespace pygraph
