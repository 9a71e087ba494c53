#include "foreign.h"

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "pygraph/link.h"
#include "relocate/device_memory.h"

namespace pygraph {
namespace {

/// The allocation that an address of device memory lies in.
std::optional<MemoryRange> allocation_of(const Driver& driver, CUdeviceptr address) {
  MemoryRange found;
  const auto tells = [&](CUpointer_attribute what, void* answer) {
    return driver.api.cuPointerGetAttribute(answer, what, address) == CUDA_SUCCESS;
  };
  const bool told = tells(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, &found.address) &&
                    tells(CU_POINTER_ATTRIBUTE_RANGE_SIZE, &found.bytes);
  return told ? std::optional(found) : std::nullopt;
}

/// Copies the range to the host, behind what `stream` has been given; nothing if the driver will
/// not. What is behind the last whole word is left out.
std::optional<std::vector<CUdeviceptr>> words_of(const Driver& driver, CUstream stream,
                                                 const MemoryRange& range) {
  std::vector<CUdeviceptr> words(range.bytes / sizeof(CUdeviceptr));
  const CUresult copied = driver.api.cuMemcpyDtoHAsync(words.data(), range.address,
                                                       words.size() * sizeof(CUdeviceptr), stream);
  // Waited for in any case: a copy that is under way must find the words.
  const CUresult ended = driver.api.cuStreamSynchronize(stream);
  if (copied != CUDA_SUCCESS || ended != CUDA_SUCCESS) {
    return std::nullopt;
  }
  return words;
}

/// One past the end belongs to it: kernels have such addresses.
bool in_one(std::span<const MemoryRange> places, CUdeviceptr word) {
  return std::ranges::any_of(places, [word](const MemoryRange& place) {
    return word >= place.address && word - place.address <= place.bytes;
  });
}

}  // namespace

IsDeviceMemory device_memory_test(const Driver& driver) {
  return [&driver](CUdeviceptr address) {
    unsigned int type = 0;
    return driver.api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ==
               CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE;
  };
}

bool may_lead_to(const Driver& driver, CUstream stream, std::span<const CUdeviceptr> foreign,
                 std::span<const MemoryRange> places) {
  DeviceMemoryTest is_device_memory(device_memory_test(driver));
  std::size_t left = kMostFollowed;
  std::set<CUdeviceptr> seen;
  std::vector<CUdeviceptr> todo(foreign.begin(), foreign.end());
  while (!todo.empty()) {
    const std::optional<MemoryRange> found = allocation_of(driver, todo.back());
    todo.pop_back();
    if (!found) {
      return true;
    }
    const MemoryRange here = *found;
    if (!seen.insert(here.address).second) {
      continue;
    }
    if (here.bytes > left) {
      return true;
    }
    left -= here.bytes;
    const auto words = words_of(driver, stream, here);
    if (!words) {
      return true;
    }
    for (const CUdeviceptr word : *words) {
      if (!DeviceMemoryTest::possible(word)) {
        continue;
      }
      if (in_one(places, word)) {
        return true;
      }
      if (!in_one({&here, 1}, word) && is_device_memory(word)) {
        todo.push_back(word);
      }
    }
  }
  return false;
}

}  // namespace pygraph
