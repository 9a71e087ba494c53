// Ordinary device memory: host memory that the twin allocated. What is fresh is filled with 0xFF,
// a NaN in every floating-point format, so that reading it before writing it shows.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "pygraph/twin.h"
#include "twin/entry.h"
#include "twin/state.h"

namespace pygraph::twin {
namespace {

constexpr std::size_t kAlignment = 512;  // what cudaMalloc gives in practice
constexpr int kFreshByte = 0xFF;

std::size_t total_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// The entry of an address-keyed map with the greatest key that is not above `address`.
template <typename Map>
auto entry_below(Map& map, CUdeviceptr address) {
  auto after = map.upper_bound(address);
  return after == map.begin() ? map.end() : std::prev(after);
}

struct Range {
  CUdeviceptr start = 0;
  std::size_t bytes = 0;
};

/// The allocation or mapping that holds `address`; no bytes when there is none.
Range range_of(CUdeviceptr address) {
  State& now = state();
  const auto allocation = entry_below(now.allocations, address);
  if (allocation != now.allocations.end() && address - allocation->first < allocation->second) {
    return {allocation->first, allocation->second};
  }
  const auto mapping = entry_below(now.mappings, address);
  if (mapping != now.mappings.end() && mapping->second.accessible &&
      address - mapping->first < mapping->second.bytes) {
    return {mapping->first, mapping->second.bytes};
  }
  return {};
}

/// Bytes from the first to the last that one side of a 3D copy touches.
std::size_t extent(const CUDA_MEMCPY3D& copy, std::size_t pitch, std::size_t height) {
  return ((copy.Depth - 1) * height + copy.Height - 1) * pitch + copy.WidthInBytes;
}

bool is_device(CUmemorytype type) {
  return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}

/// Waits for the queue, then runs `copy` with the state's lock held: what all synchronous calls on
/// memory have in common.
template <typename Copy>
CUresult synchronous(CUdeviceptr device, std::size_t bytes, const void* host, Copy copy) {
  {
    const Lock lock;
    if (const CUresult code = refuse_unsafe_call(); code != CUDA_SUCCESS) {
      return code;
    }
    if (bytes != 0 && (host == nullptr || !accessible(device, bytes))) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  const CUresult earlier = drain();
  const Lock lock;
  if (bytes != 0 && accessible(device, bytes)) {
    copy();
  }
  return earlier;
}

}  // namespace

void pageable_memory_access(bool on) {
  const Lock lock;
  state().pageable_access = on;
}

CUresult allocate(CUdeviceptr* address, std::size_t bytes) {
  State& now = state();
  if (bytes > total_memory() - std::min(total_memory(), now.allocated_bytes)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (memory == nullptr) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  std::memset(memory, kFreshByte, bytes);
  *address = reinterpret_cast<CUdeviceptr>(memory);
  now.allocations.emplace(*address, bytes);
  now.allocated_bytes += bytes;
  return CUDA_SUCCESS;
}

void release(CUdeviceptr address) {
  const auto allocation = state().allocations.find(address);
  state().allocated_bytes -= allocation->second;
  state().allocations.erase(allocation);
  std::free(host_pointer(address));
}

bool accessible(CUdeviceptr address, std::size_t bytes) {
  const auto reservation = entry_below(state().reservations, address);
  const bool reserved = reservation != state().reservations.end() &&
                        address - reservation->first < reservation->second;
  if (state().pageable_access && !reserved && address != 0) {
    return true;
  }
  // A range may span neighbouring mappings, as on the driver.
  while (true) {
    const Range range = range_of(address);
    if (range.bytes == 0) {
      return false;
    }
    const std::size_t here = range.start + range.bytes - address;
    if (bytes <= here) {
      return true;
    }
    address += here;
    bytes -= here;
  }
}

bool in_graph_memory(CUdeviceptr address) {
  const auto allocation = entry_below(state().allocations, address);
  return allocation != state().allocations.end() &&
         address - allocation->first < allocation->second &&
         state().graph_memory.contains(allocation->first);
}

CUresult check_copy(const CUDA_MEMCPY3D& copy) {
  if (copy.srcMemoryType == CU_MEMORYTYPE_ARRAY || copy.dstMemoryType == CU_MEMORYTYPE_ARRAY) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (copy.WidthInBytes == 0 || copy.Height == 0 || copy.Depth == 0) {
    return CUDA_SUCCESS;
  }
  struct End {
    CUmemorytype type;
    const void* host;
    CUdeviceptr device;
    std::size_t x, y, z, pitch, height;
  };
  const auto valid = [&copy](const End& end) {
    if (!is_device(end.type)) {  // device memory is no host memory, though the twin could read it
      return end.host != nullptr && range_of(reinterpret_cast<CUdeviceptr>(end.host)).bytes == 0;
    }
    return accessible(end.device + (end.z * end.height + end.y) * end.pitch + end.x,
                      extent(copy, end.pitch, end.height));
  };
  const bool both = valid({copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcXInBytes,
                           copy.srcY, copy.srcZ, copy.srcPitch, copy.srcHeight}) &&
                    valid({copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstXInBytes,
                           copy.dstY, copy.dstZ, copy.dstPitch, copy.dstHeight});
  return both ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult check_fill(const CUDA_MEMSET_NODE_PARAMS& fill) {
  if (fill.elementSize != 1 && fill.elementSize != 2 && fill.elementSize != 4) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (fill.width == 0 || fill.height == 0) {
    return CUDA_SUCCESS;
  }
  if (fill.dst % fill.elementSize != 0 || (fill.height > 1 && fill.pitch % fill.elementSize != 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::size_t bytes = (fill.height - 1) * fill.pitch + fill.width * fill.elementSize;
  return accessible(fill.dst, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

namespace entry {

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
  if (address == nullptr || bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock;
  if (const CUresult code = refuse_unsafe_call(); code != CUDA_SUCCESS) {
    return code;
  }
  return allocate(address, bytes);
}

CUresult cuMemFree(CUdeviceptr address) {
  if (address == 0) {
    return CUDA_SUCCESS;
  }
  {
    const Lock lock;
    if (const CUresult code = refuse_unsafe_call(); code != CUDA_SUCCESS) {
      return code;
    }
    if (find(state().allocations, address) == nullptr || state().graph_memory.contains(address)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  const CUresult earlier = drain();
  const Lock lock;
  if (find(state().allocations, address) == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;  // another thread freed it meanwhile
  }
  release(address);
  return earlier;
}

CUresult cuMemAllocHost(void** pointer, std::size_t bytes) {
  if (pointer == nullptr || bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock;
  if (const CUresult code = refuse_unsafe_call(); code != CUDA_SUCCESS) {
    return code;
  }
  auto memory = std::make_unique<std::byte[]>(bytes);  // NOLINT
  *pointer = memory.get();
  state().host_memory.emplace(*pointer, std::move(memory));
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void* pointer) {
  const Lock lock;
  if (const CUresult code = refuse_unsafe_call(); code != CUDA_SUCCESS) {
    return code;
  }
  return state().host_memory.erase(pointer) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetInfo(std::size_t* free_bytes, std::size_t* total) {
  if (free_bytes == nullptr || total == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock;
  *total = total_memory();
  *free_bytes = *total - std::min(*total, state().allocated_bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t bytes) {
  return synchronous(to, bytes, from, [=] { std::memcpy(host_pointer(to), from, bytes); });
}

CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t bytes) {
  return synchronous(from, bytes, to, [=] { std::memcpy(to, host_pointer(from), bytes); });
}

CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, std::size_t bytes) {
  return synchronous(to, bytes, &value, [=] { std::memset(host_pointer(to), value, bytes); });
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  if (data == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock;
  const Range range = range_of(address);
  if (range.bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: {
      const unsigned int type = CU_MEMORYTYPE_DEVICE;
      std::memcpy(data, &type, sizeof type);
      return CUDA_SUCCESS;
    }
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      std::memcpy(data, &address, sizeof address);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: {
      const int ordinal = 0;
      std::memcpy(data, &ordinal, sizeof ordinal);
      return CUDA_SUCCESS;
    }
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      std::memcpy(data, &range.start, sizeof range.start);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      std::memcpy(data, &range.bytes, sizeof range.bytes);
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace entry
}  // namespace pygraph::twin
