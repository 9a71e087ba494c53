#include <thread>

#include "support.h"

namespace pygraph {
namespace {

using testing::DeviceMemory;
using testing::kMiB;

class TwinMemory : public testing::OnTwin {
 protected:
  const DriverApi& api() { return driver().api; }

  static CUmemAllocationProp on_device() {
    CUmemAllocationProp property{};
    property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return property;
  }
};

TEST_F(TwinMemory, FreshMemoryIsNotANumber) {
  const DeviceMemory memory(driver(), 64);
  for (const float value : memory.read<float>()) {
    EXPECT_NE(value, value);
  }
}

TEST_F(TwinMemory, CopiesStayInsideTheirAllocation) {
  const DeviceMemory memory(driver(), 64);
  std::vector<char> host(128);
  EXPECT_EQ(api().cuMemcpyHtoD(memory.address(), host.data(), 65), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuMemcpyDtoH(host.data(), memory.address() + 1, 64), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuMemcpyDtoH(host.data(), memory.address() + 1, 63), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemsetD8(memory.address() - 1, 0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuMemsetD8(reinterpret_cast<CUdeviceptr>(host.data()), 0, 1),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(TwinMemory, FreeAndUseAfterwards) {
  CUdeviceptr address = 0;
  EXPECT_EQ(api().cuMemAlloc(&address, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(api().cuMemAlloc(&address, 100), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemFree(address + 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuMemFree(address), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemFree(address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuMemFree(0), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemsetD8(address, 0, 1), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(TwinMemory, OfTheHost) {
  void* host = nullptr;
  EXPECT_EQ(api().cuMemAllocHost(nullptr, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuMemAllocHost(&host, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(api().cuMemAllocHost(&host, 64), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemFreeHost(host), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(TwinMemory, AStreamIsDoneWhenItsWorkHasRun) {
  const DeviceMemory memory(driver(), 64);
  EXPECT_EQ(api().cuStreamQuery(bed().stream()), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemsetD8Async(memory.address(), 1, 64, bed().stream()), CUDA_SUCCESS);
  EXPECT_EQ(api().cuStreamQuery(bed().stream()), CUDA_ERROR_NOT_READY);
  bed().synchronize();
  EXPECT_EQ(api().cuStreamQuery(bed().stream()), CUDA_SUCCESS);
}

TEST_F(TwinMemory, MoreThanTheMachineHasIsOutOfMemory) {
  std::size_t free_bytes = 0;
  std::size_t total = 0;
  ASSERT_EQ(api().cuMemGetInfo(&free_bytes, &total), CUDA_SUCCESS);
  CUdeviceptr address = 0;
  EXPECT_EQ(api().cuMemAlloc(&address, free_bytes + 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(api().cuMemAlloc(&address, ~std::size_t{0}), CUDA_ERROR_OUT_OF_MEMORY);
  const DeviceMemory memory(driver(), kMiB);
  std::size_t less = 0;
  ASSERT_EQ(api().cuMemGetInfo(&less, &total), CUDA_SUCCESS);
  EXPECT_EQ(free_bytes - less, kMiB);
}

TEST_F(TwinMemory, PointerAttributes) {
  const DeviceMemory memory(driver(), 64);
  CUdeviceptr start = 0;
  std::size_t size = 0;
  EXPECT_EQ(api().cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                        memory.address() + 63),
            CUDA_SUCCESS);
  EXPECT_EQ(start, memory.address());
  EXPECT_EQ(
      api().cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, memory.address() + 1),
      CUDA_SUCCESS);
  EXPECT_EQ(size, 64U);
  EXPECT_EQ(
      api().cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, memory.address() + 64),
      CUDA_ERROR_INVALID_VALUE);
}

TEST_F(TwinMemory, MappingsFollowTheDriversRules) {
  CUmemAllocationProp property = on_device();
  CUdeviceptr base = 0;
  CUmemGenericAllocationHandle block = 0;
  EXPECT_EQ(api().cuMemAddressReserve(&base, 12345, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(api().cuMemAddressReserve(&base, 8 * kMiB, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(base % (2 * kMiB), 0U);
  ASSERT_EQ(api().cuMemCreate(&block, 2 * kMiB, &property, 0), CUDA_SUCCESS);

  EXPECT_EQ(api().cuMemMap(base + kMiB, 2 * kMiB, 0, block, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuMemMap(base + 8 * kMiB, 2 * kMiB, 0, block, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(api().cuMemMap(base, 2 * kMiB, 0, block, 0), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemMap(base, 2 * kMiB, 0, block, 0), CUDA_ERROR_INVALID_VALUE) << "taken";
  ASSERT_EQ(api().cuMemMap(base + 2 * kMiB, 2 * kMiB, 0, block, 0), CUDA_SUCCESS);

  EXPECT_EQ(api().cuMemsetD8(base, 1, 1), CUDA_ERROR_INVALID_VALUE) << "no access yet";
  CUmemAccessDesc access{};
  access.location = property.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  EXPECT_EQ(api().cuMemSetAccess(base, 8 * kMiB, &access, 1), CUDA_ERROR_INVALID_VALUE) << "a hole";
  ASSERT_EQ(api().cuMemSetAccess(base, 4 * kMiB, &access, 1), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemsetD8(base + kMiB, 1, 3 * kMiB), CUDA_SUCCESS) << "across two mappings";
  EXPECT_EQ(api().cuMemsetD8(base + 3 * kMiB, 1, kMiB + 1), CUDA_ERROR_INVALID_VALUE);

  EXPECT_EQ(api().cuMemAddressFree(base, 8 * kMiB), CUDA_ERROR_INVALID_VALUE) << "still mapped";
  ASSERT_EQ(api().cuMemRelease(block), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemRelease(block), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(api().cuMemsetD8(base, 2, 1), CUDA_SUCCESS) << "lives while it is mapped";
  EXPECT_EQ(api().cuMemUnmap(base, 3 * kMiB), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(api().cuMemUnmap(base, 4 * kMiB), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemAddressFree(base, 4 * kMiB), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(api().cuMemAddressFree(base, 8 * kMiB), CUDA_SUCCESS);
}

TEST_F(TwinMemory, WorkOnMemoryThatIsGoneIsAnIllegalAccessAndNotACrash) {
  CUdeviceptr address = 0;
  ASSERT_EQ(api().cuMemAlloc(&address, 64), CUDA_SUCCESS);
  const GraphHandle graph = bed().capture(
      [&] { driver().check(api().cuMemsetD8Async(address, 1, 64, bed().stream()), "fill"); });
  CUgraphExec exec = nullptr;
  ASSERT_EQ(api().cuGraphInstantiate(&exec, graph.get(), 0), CUDA_SUCCESS);
  const ExecHandle owner(driver(), exec);
  ASSERT_EQ(api().cuMemFree(address), CUDA_SUCCESS);
  ASSERT_EQ(api().cuGraphLaunch(exec, bed().stream()), CUDA_SUCCESS);
  EXPECT_EQ(api().cuStreamSynchronize(bed().stream()), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(api().cuStreamSynchronize(bed().stream()), CUDA_SUCCESS) << "told once";
}

TEST_F(TwinMemory, ThreadsShareTheTwin) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::vector<int> wrong(kThreads, 0);
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&wrong, thread] {
      const testing::Testbed bed(testing::Testbed::Kind::kTwin);
      const auto value = static_cast<float>(thread);
      for (int i = 0; i < 20; ++i) {
        const DeviceMemory memory(bed.driver(), 128);
        memory.write(std::vector<float>(32, value));
        GraphHandle graph = bed.capture(
            [&] { bed.affine({memory.address() + 64, memory.address(), 2, value, 16}); });
        CUgraphExec exec = nullptr;
        bed.driver().api.cuGraphInstantiate(&exec, graph.get(), 0);
        const ExecHandle owner(bed.driver(), exec);
        bed.driver().api.cuGraphLaunch(exec, bed.stream());
        bed.synchronize();
        wrong[static_cast<std::size_t>(thread)] += memory.read<float>().back() == 3 * value ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, std::vector<int>(kThreads, 0));
}

}  // namespace
}  // namespace pygraph
