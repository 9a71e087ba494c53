#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "pygraph/phantom.h"

namespace pygraph {
namespace {

constexpr std::size_t kResidueModulus = 1024;
constexpr std::size_t kGap = 4096;
// Where the range is asked for. Left to itself the driver takes 0x100'0000'0000, and then any word
// whose upper half is a number from 256 to 511 looks like an address of phantom memory.
constexpr CUdeviceptr kPreferredBase = 0x6a5c'0000'0000;

CUmemAllocationProp device_memory(int device) {
  CUmemAllocationProp property{};
  property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  property.location.id = device;
  return property;
}

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

PhantomSpace::PhantomSpace(const Driver& driver, int device, Options options)
    : driver_(driver), devices_{device} {
  const CUmemAllocationProp property = device_memory(device);
  std::size_t granularity = 0;
  driver.check(driver.api.cuMemGetAllocationGranularity(&granularity, &property,
                                                        CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
               "cuMemGetAllocationGranularity", "phantom memory");
  block_ = round_up(options.block_bytes, granularity);
  reserved_ = round_up(options.reserve_bytes, 2 * block_);
  driver.check(driver.api.cuMemAddressReserve(&base_, reserved_, 0, kPreferredBase, 0),
               "cuMemAddressReserve", "phantom memory");
  const CUresult created = driver.api.cuMemCreate(&physical_, block_, &property, 0);
  if (created != CUDA_SUCCESS) {
    driver.api.cuMemAddressFree(base_, reserved_);
    driver.check(created, "cuMemCreate", fmt::format("phantom block of {} MiB", block_ >> 20));
  }
}

PhantomSpace::~PhantomSpace() {
  if (Driver::in_forked_child()) {
    return;  // the parent's
  }
  for (std::size_t placement = 0; placement < 2; ++placement) {
    if (mapped_[placement] != 0) {
      driver_.api.cuMemUnmap(base_ + placement * (reserved_ / 2), mapped_[placement] * block_);
    }
  }
  driver_.api.cuMemRelease(physical_);
  driver_.api.cuMemAddressFree(base_, reserved_);
}

void PhantomSpace::begin(Placement placement) {
  placement_ = static_cast<std::size_t>(placement);
  if (borrowed_[placement_] == 0) {
    cursors_[placement_] = 0;
  }
  allocations_.clear();
}

CUdeviceptr PhantomSpace::allocate(std::size_t bytes, std::size_t residue) {
  // Placement B leaves one more gap before every allocation, so no two regions are displaced by
  // the same amount between A and B.
  const std::size_t gap = placement_ == 0 ? kGap : 2 * kGap;
  std::size_t& cursor = cursors_[placement_];
  const std::size_t start = round_up(cursor + gap, kResidueModulus) + residue % kResidueModulus;
  const std::size_t half = reserved_ / 2;
  const std::size_t end = start + bytes;
  if (bytes > half || end + kGap > half) {
    throw std::length_error(fmt::format(
        "phantom memory is full: {} bytes asked for, {} of {} bytes of address space in use", bytes,
        cursor, reserved_ / 2));
  }
  map_to(placement_, end + kGap);
  cursor = end;
  const CUdeviceptr address = base_ + placement_ * (reserved_ / 2) + start;
  allocations_.push_back({address, bytes, devices_.front()});
  return address;
}

void PhantomSpace::admit(int device) {
  if (std::find(devices_.begin(), devices_.end(), device) != devices_.end()) {
    return;
  }
  for (std::size_t placement = 0; placement < 2; ++placement) {
    if (mapped_[placement] != 0) {
      driver_.check(give_access(base_ + placement * (reserved_ / 2), mapped_[placement] * block_,
                                {&device, 1}),
                    "cuMemSetAccess", fmt::format("phantom memory, for device {}", device));
    }
  }
  devices_.push_back(device);
}

CUresult PhantomSpace::give_access(CUdeviceptr start, std::size_t bytes,
                                   std::span<const int> devices) {
  std::vector<CUmemAccessDesc> access(devices.size());
  for (std::size_t i = 0; i < devices.size(); ++i) {
    access[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access[i].location.id = devices[i];
    access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  return driver_.api.cuMemSetAccess(start, bytes, access.data(), access.size());
}

void PhantomSpace::map_to(std::size_t placement, std::size_t end) {
  const std::size_t first = mapped_[placement];
  const std::size_t blocks = (end + block_ - 1) / block_;
  if (blocks <= first) {
    return;
  }
  const CUdeviceptr start = base_ + placement * (reserved_ / 2);
  // All or nothing: a block counts as mapped once it may be accessed, not before.
  std::size_t end_mapped = first;
  CUresult code = CUDA_SUCCESS;
  const char* operation = "cuMemMap";
  while (code == CUDA_SUCCESS && end_mapped < blocks) {
    code = driver_.api.cuMemMap(start + end_mapped * block_, block_, 0, physical_, 0);
    end_mapped += code == CUDA_SUCCESS ? 1 : 0;
  }
  if (code == CUDA_SUCCESS) {
    operation = "cuMemSetAccess";
    code = give_access(start + first * block_, (blocks - first) * block_, devices_);
  }
  if (code != CUDA_SUCCESS) {
    if (end_mapped != first) {
      driver_.api.cuMemUnmap(start + first * block_, (end_mapped - first) * block_);
    }
    driver_.check(code, operation, "phantom memory");
  }
  mapped_[placement] = blocks;
}

void PhantomSpace::poison(std::uint8_t value) {
  map_to(0, block_);
  // A capture's random generator fills its phantom state for real, on a stream of its own.
  driver_.check(driver_.api.cuCtxSynchronize(), "cuCtxSynchronize", "phantom block");
  driver_.check(driver_.api.cuMemsetD8(base_, value, block_), "cuMemsetD8", "phantom block");
  driver_.check(driver_.api.cuCtxSynchronize(), "cuCtxSynchronize", "phantom block");
}

bool PhantomSpace::intact(std::uint8_t value) const {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  std::vector<std::uint8_t> host(std::min(block_, kPiece));
  driver_.check(driver_.api.cuCtxSynchronize(), "cuCtxSynchronize", "phantom block");
  for (std::size_t done = 0; done < block_; done += host.size()) {
    const std::size_t count = std::min(host.size(), block_ - done);
    driver_.check(driver_.api.cuMemcpyDtoH(host.data(), base_ + done, count), "cuMemcpyDtoH",
                  "phantom block");
    // All bytes are equal when the first is right and each equals the one before it.
    if (host[0] != value || std::memcmp(host.data(), host.data() + 1, count - 1) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace pygraph
