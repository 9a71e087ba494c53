#include "pygraph/phantom.h"

#include <set>

#include "support.h"

namespace pygraph {
namespace {

using testing::kMiB;
using testing::message_of;
using testing::small_phantom;

class Phantom : public testing::OnBothDrivers {
 protected:
  void SetUp() override {
    OnBothDrivers::SetUp();
    if (!IsSkipped()) {
      space_.emplace(driver(), 0, small_phantom());
    }
  }
  void TearDown() override {
    space_.reset();
    OnBothDrivers::TearDown();
  }
  PhantomSpace& space() { return *space_; }

 private:
  std::optional<PhantomSpace> space_;
};

TEST_P(Phantom, OneBlockAtManyAddresses) {
  const std::size_t bytes = space().physical_bytes();
  const CUdeviceptr first = space().allocate(4 * bytes);
  const std::vector<std::uint8_t> written = {1, 2, 3, 4};
  driver().check(driver().api.cuMemcpyHtoD(first, written.data(), written.size()), "cuMemcpyHtoD");
  for (const std::size_t blocks : {std::size_t{1}, std::size_t{3}}) {
    std::vector<std::uint8_t> read(written.size());
    driver().check(driver().api.cuMemcpyDtoH(read.data(), first + blocks * bytes, read.size()),
                   "cuMemcpyDtoH");
    EXPECT_EQ(read, written) << blocks << " blocks further on";
  }
  EXPECT_GE(space().mappings(), 4U);
}

TEST_P(Phantom, AddressesPassTheDriversPointerChecks) {
  const CUdeviceptr address = space().allocate(100 * kMiB);
  for (const CUdeviceptr probe : {address, address + 100 * kMiB - 1}) {
    unsigned int type = 0;
    driver().check(
        driver().api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, probe),
        "cuPointerGetAttribute");
    EXPECT_EQ(type, static_cast<unsigned int>(CU_MEMORYTYPE_DEVICE));
  }
}

TEST_P(Phantom, EveryRegionIsDisplacedByAnAmountOfItsOwn) {
  const std::size_t sizes[] = {1, 512, 4096, 5000, 0, kMiB, 7, 7};
  std::vector<CUdeviceptr> in_a;
  for (const std::size_t size : sizes) {
    in_a.push_back(space().allocate(size));
  }
  space().begin(Placement::kB);
  std::set<CUdeviceptr> displacements;
  for (std::size_t i = 0; i < std::size(sizes); ++i) {
    displacements.insert(space().allocate(sizes[i]) - in_a[i]);
  }
  EXPECT_EQ(displacements.size(), std::size(sizes));
  EXPECT_EQ(displacements.count(0), 0U);
}

TEST_P(Phantom, NeighboursAreApartAndAlignedAsAsked) {
  CUdeviceptr end = 0;
  for (const std::size_t residue : {512, 512, 0, 256, 16}) {
    const CUdeviceptr address = space().allocate(1000, residue);
    EXPECT_EQ(address % 1024, residue);
    EXPECT_GT(address, end) << "one past a neighbour is nobody's start";
    EXPECT_TRUE(space().contains(address));
    EXPECT_TRUE(space().contains(address + 1000));
    end = address + 1000;
  }
  EXPECT_EQ(space().allocations().size(), 5U);
  EXPECT_EQ(space().allocations().back().bytes, 1000U);
  EXPECT_FALSE(space().contains(space().base() - 1));
  EXPECT_FALSE(space().contains(space().base() + space().reserved_bytes()));
}

TEST_P(Phantom, LaterCapturesReuseMappings) {
  for (int i = 0; i < 3; ++i) {
    space().allocate(5 * kMiB);
  }
  const std::size_t mappings = space().mappings();
  const CUdeviceptr first = space().allocations().front().address;
  for (int capture = 0; capture < 4; ++capture) {
    space().begin(Placement::kA);
    EXPECT_TRUE(space().allocations().empty());
    EXPECT_EQ(space().allocate(5 * kMiB), first);
    space().allocate(5 * kMiB);
  }
  EXPECT_EQ(space().mappings(), mappings);
}

TEST_P(Phantom, PoisonFillsEverythingAndStrayWritesShow) {
  const CUdeviceptr address = space().allocate(3 * kMiB);
  space().poison(0xFF);
  EXPECT_TRUE(space().intact(0xFF));
  EXPECT_FALSE(space().intact(0xFE));
  std::uint32_t word = 0;
  driver().check(driver().api.cuMemcpyDtoH(&word, address + 2 * kMiB, sizeof word), "cuMemcpyDtoH");
  EXPECT_EQ(word, 0xFFFF'FFFF);
  driver().check(driver().api.cuMemsetD8(address + 3 * kMiB - 1, 0xFE, 1), "cuMemsetD8");
  EXPECT_FALSE(space().intact(0xFF)) << "one stray byte";
  space().poison(0x5A);
  EXPECT_TRUE(space().intact(0x5A));
}

TEST_P(Phantom, PoisonWaitsForWritesThatAreOnTheirWay) {
  const CUdeviceptr address = space().allocate(kMiB);
  space().poison(0x5A);
  const std::size_t bytes = (on_twin() ? 1 : 512) * kMiB;
  CUdeviceptr large = 0;
  driver().check(driver().api.cuMemAlloc(&large, bytes), "cuMemAlloc");
  CUstream stream = nullptr;
  driver().check(driver().api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  for (int fill = 0; fill < (on_twin() ? 1 : 100); ++fill) {  // so that the last one is late
    driver().check(driver().api.cuMemsetD8Async(large, 1, bytes, stream), "cuMemsetD8Async");
  }
  driver().check(driver().api.cuMemsetD8Async(address, 1, 8, stream), "cuMemsetD8Async");
  space().poison(0x5A);
  EXPECT_TRUE(space().intact(0x5A));
  driver().check(driver().api.cuStreamDestroy(stream), "cuStreamDestroy");
  driver().check(driver().api.cuMemFree(large), "cuMemFree");
}

TEST_P(Phantom, PoisonWorksBeforeAnythingWasHandedOut) {
  space().begin(Placement::kB);
  space().poison(0x11);
  EXPECT_TRUE(space().intact(0x11));
}

TEST_P(Phantom, FullPlacementSaysSoAndStaysUsable) {
  const std::string text = message_of<std::length_error>([&] { space().allocate(2048 * kMiB); });
  EXPECT_NE(text.find("phantom memory is full"), std::string::npos) << text;
  EXPECT_TRUE(space().allocations().empty());
  EXPECT_NO_THROW(space().allocate(kMiB));
}

TEST_P(Phantom, SizesThatOverflowAreRefused) {
  EXPECT_THROW(space().allocate(~std::size_t{0} - 4096), std::length_error);
  EXPECT_THROW(space().allocate(~std::size_t{0}), std::length_error);
}

PYGRAPH_ON_BOTH_DRIVERS(Phantom);

class PhantomFaults : public testing::OnTwin {};

TEST_F(PhantomFaults, FailedConstructionLeavesNothing) {
  for (const char* symbol :
       {"cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemCreate"}) {
    const twin::Census before = twin::census();
    twin::Faults::fail(symbol, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_THROW(PhantomSpace(driver(), 0, small_phantom()), DriverError) << symbol;
    EXPECT_EQ(twin::census(), before) << symbol;
  }
}

TEST_F(PhantomFaults, FailedMappingLeavesTheSpaceUsable) {
  for (const char* symbol : {"cuMemMap", "cuMemSetAccess"}) {
    PhantomSpace space(driver(), 0, small_phantom());
    twin::Faults::fail(symbol, CUDA_ERROR_OUT_OF_MEMORY, symbol[5] == 'M' ? 3 : 1);
    EXPECT_THROW(space.allocate(8 * kMiB), DriverError) << symbol;
    const CUdeviceptr address = space.allocate(8 * kMiB);
    EXPECT_EQ(driver().api.cuMemsetD8(address, 1, 8 * kMiB), CUDA_SUCCESS)
        << symbol << ": memory that was handed out is accessible";
  }
}

TEST_F(PhantomFaults, CostsOneBlock) {
  const twin::Census before = twin::census();
  PhantomSpace space(driver(), 0, small_phantom());
  space.allocate(400 * kMiB);
  EXPECT_EQ(twin::census().allocated_bytes - before.allocated_bytes, space.physical_bytes());
}

}  // namespace
}  // namespace pygraph
