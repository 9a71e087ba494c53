// Virtual memory management: a physical block is an anonymous file, a mapping is that file mapped
// shared over a reserved address range. One block mapped at many addresses therefore is one piece
// of memory, as phantom memory needs it (CUDA driver API, "Virtual Memory Management").
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "twin/entry.h"
#include "twin/state.h"

namespace pygraph::twin {
namespace {

constexpr std::size_t kGranularity = std::size_t{2} << 20;

bool granular(std::size_t value) { return value % kGranularity == 0; }

/// Address space without memory, aligned to the granularity; 0 when there is none.
CUdeviceptr reserve(std::size_t bytes, CUdeviceptr preferred) {
  const std::size_t wide = bytes + kGranularity;
  void* start = mmap(host_pointer(preferred), wide, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) {
    return 0;
  }
  const auto first = reinterpret_cast<CUdeviceptr>(start);
  const CUdeviceptr aligned = (first + kGranularity - 1) / kGranularity * kGranularity;
  if (aligned != first) {
    munmap(start, aligned - first);
  }
  if (const std::size_t rest = first + wide - (aligned + bytes); rest != 0) {
    munmap(host_pointer(aligned + bytes), rest);
  }
  return aligned;
}

/// Whether [address, address + bytes) lies in one reservation.
bool reserved(CUdeviceptr address, std::size_t bytes) {
  const auto& reservations = state().reservations;
  auto after = reservations.upper_bound(address);
  if (after == reservations.begin()) {
    return false;
  }
  const auto& [start, size] = *std::prev(after);
  return address - start <= size && bytes <= size - (address - start);
}

bool any_mapping_in(CUdeviceptr address, std::size_t bytes) {
  const auto& mappings = state().mappings;
  const auto next = mappings.lower_bound(address);
  if (next != mappings.end() && next->first < address + bytes) {
    return true;
  }
  return next != mappings.begin() &&
         std::prev(next)->first + std::prev(next)->second.bytes > address;
}

/// Whether [address, address + bytes) is made up of whole mappings.
bool whole_mappings(CUdeviceptr address, std::size_t bytes) {
  const auto& mappings = state().mappings;
  const CUdeviceptr end = address + bytes;
  for (auto entry = mappings.find(address); address != end; ++entry) {
    if (entry == mappings.end() || entry->first != address || entry->second.bytes > end - address) {
      return false;
    }
    address += entry->second.bytes;
  }
  return bytes != 0;
}

void forget_if_unused(CUmemGenericAllocationHandle handle) {
  State& now = state();
  const Physical& block = now.physical.at(handle);
  if (block.released && block.mappings == 0) {
    close(block.file);
    now.allocated_bytes -= block.bytes;
    now.physical.erase(handle);
  }
}

}  // namespace

namespace entry {

CUresult cuMemGetAllocationGranularity(std::size_t* granularity,
                                       const CUmemAllocationProp* property,
                                       CUmemAllocationGranularity_flags) {
  if (granularity == nullptr || property == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment,
                             CUdeviceptr preferred, unsigned long long flags) {
  if (address == nullptr || bytes == 0 || !granular(bytes) || flags != 0 ||
      alignment > kGranularity) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock;
  const CUdeviceptr start = reserve(bytes, preferred);
  if (start == 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  state().reservations.emplace(start, bytes);
  *address = start;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
  const Lock lock;
  const std::size_t* size = find(state().reservations, address);
  if (size == nullptr || *size != bytes || any_mapping_in(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  munmap(host_pointer(address), bytes);
  state().reservations.erase(address);
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                     const CUmemAllocationProp* property, unsigned long long flags) {
  if (handle == nullptr || property == nullptr || bytes == 0 || !granular(bytes) || flags != 0 ||
      property->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      property->location.type != CU_MEM_LOCATION_TYPE_DEVICE || property->location.id != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock;
  const int file = memfd_create("pygraph-twin", MFD_CLOEXEC);
  if (file < 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    close(file);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  State& now = state();
  now.next_handle += 16;
  *handle = now.next_handle;
  now.physical.emplace(*handle, Physical{file, bytes, 0, false});
  now.allocated_bytes += bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const Lock lock;
  Physical* block = find(state().physical, handle);
  if (block == nullptr || block->released) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  block->released = true;  // lives on while it is mapped
  forget_if_unused(handle);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const Lock lock;
  State& now = state();
  Physical* block = find(now.physical, handle);
  if (block == nullptr || block->released || bytes != block->bytes || offset != 0 || flags != 0 ||
      !granular(address) || !reserved(address, bytes) || any_mapping_in(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // No access before cuMemSetAccess, as on the driver.
  if (mmap(host_pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, block->file, 0) ==
      MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ++block->mappings;
  now.mappings.emplace(address, Mapping{bytes, handle, false});
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
  (void)drain();  // work that was launched may still use the memory; its failure is not ours
  const Lock lock;
  if (!whole_mappings(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (mmap(host_pointer(address), bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    return CUDA_ERROR_MAP_FAILED;
  }
  State& now = state();
  auto entry = now.mappings.find(address);
  while (entry != now.mappings.end() && entry->first < address + bytes) {
    const CUmemGenericAllocationHandle handle = entry->second.physical;
    entry = now.mappings.erase(entry);
    --now.physical.at(handle).mappings;
    forget_if_unused(handle);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access,
                        std::size_t count) {
  const Lock lock;
  const auto known = [](const CUmemAccessDesc& each) {
    return each.location.type == CU_MEM_LOCATION_TYPE_DEVICE && is_device(each.location.id);
  };
  if (access == nullptr || count == 0 || !std::all_of(access, access + count, known) ||
      !whole_mappings(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool on = std::any_of(access, access + count, [](const CUmemAccessDesc& each) {
    return each.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  });
  if (mprotect(host_pointer(address), bytes, on ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto& mappings = state().mappings;
  for (auto entry = mappings.find(address);
       entry != mappings.end() && entry->first < address + bytes; ++entry) {
    entry->second.accessible = on;
  }
  return CUDA_SUCCESS;
}

}  // namespace entry
}  // namespace pygraph::twin
