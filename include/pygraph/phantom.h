// Phantom memory: addresses of our own, backed by one small physical block mapped again and again.
//
// A capture never runs, so the memory it addresses need not exist. Every address handed out here
// passes the driver's pointer checks (it is mapped), costs no memory, and is unmistakable when it
// turns up inside a node's parameters. The range has two placements, A and B: a capture goes into
// A, its probe into B, so that every region is displaced between the two, each by its own amount.
//
// The block is also the canary of the proof: filled with a poison byte, a relocation that was
// missed reads poison, and a stray write changes it.
//
// Of a graph that works on several devices, all addresses are of one space, backed on the graph's
// own device: what is captured for another one is told by its allocation, not by where the block
// is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pygraph/driver.h"

namespace pygraph {

enum class Placement : std::uint8_t { kA = 0, kB = 1 };

/// One piece of phantom memory that was handed out; addresses and sizes in bytes. `device`: whose
/// memory it stands for.
struct PhantomAllocation {
  CUdeviceptr address;
  std::size_t bytes;
  int device;
};

/// Not thread-safe: one capture at a time uses it. Calls that map, fill or read need a current
/// context of `device`; the driver must outlive the space. When the space is destroyed, no graph
/// that still holds its addresses may be launched again, and nothing that was may be running.
class PhantomSpace {
 public:
  struct Options {
    /// Address space for both placements, in bytes; rounded up to two blocks.
    std::size_t reserve_bytes = std::size_t{1} << 40;
    /// Physical memory in all, in bytes; rounded up to the driver's granularity. It is held for
    /// good, and a smaller block is mapped more often: some 20 us each time (H200, cuMemMap and
    /// cuMemSetAccess), with this one 2.5 ms for each GiB that is handed out.
    std::size_t block_bytes = std::size_t{8} << 20;
  };

  /// Reserves the range and creates the block; maps nothing yet. Throws DriverError.
  PhantomSpace(const Driver& driver, int device, Options options);
  PhantomSpace(const Driver& driver, int device) : PhantomSpace(driver, device, Options{}) {}
  ~PhantomSpace();
  PhantomSpace(const PhantomSpace&) = delete;
  PhantomSpace& operator=(const PhantomSpace&) = delete;

  /// From now on captures address the space from `device`, too, which the driver must let (CUDA
  /// driver API, cuDeviceCanAccessPeer). Throws DriverError.
  void admit(int device);

  /// Starts a capture in `placement`: keeps the mappings, forgets allocations(), and hands the same
  /// addresses out again unless some of them are still borrowed. Before the first call the
  /// placement is A.
  void begin(Placement placement);

  /// An allocation whose user gives it back one day (torch's allocator, which keeps books by
  /// address and must not be given an address twice), for memory of `device`. Throws as allocate()
  /// does.
  CUdeviceptr borrow(std::size_t bytes, int device) {
    const CUdeviceptr address = allocate(bytes);
    allocations_.back().device = device;
    ++borrowed_[placement_];
    return address;
  }
  /// `address` must have been borrowed, and not been given back since.
  void give_back(CUdeviceptr address) noexcept { --borrowed_[(address - base_) / (reserved_ / 2)]; }

  /// Hands out `bytes` whose address is `residue` modulo 1024 (512: exactly as aligned as torch's
  /// allocator guarantees, no more). A gap that no region covers separates neighbours, so that a
  /// pointer to the end of one is not the start of the next. Throws DriverError when mapping
  /// fails, std::length_error when the placement is full.
  CUdeviceptr allocate(std::size_t bytes, std::size_t residue = 512);

  /// Writes `value` over the whole physical block. Synchronous. Throws DriverError, also for errors
  /// of work before it.
  void poison(std::uint8_t value);

  /// Whether every byte of the physical block still is `value`; poison() must have been called.
  /// Waits for the context, copies the block to the host. Throws DriverError.
  [[nodiscard]] bool intact(std::uint8_t value) const;

  /// Whether `address` lies in either placement, handed out or not.
  [[nodiscard]] bool contains(CUdeviceptr address) const noexcept {
    return address >= base_ && address - base_ < reserved_;
  }
  /// Start and size in bytes of both placements together: link() asks for these bounds.
  [[nodiscard]] CUdeviceptr base() const noexcept { return base_; }
  [[nodiscard]] std::size_t reserved_bytes() const noexcept { return reserved_; }
  [[nodiscard]] std::size_t physical_bytes() const noexcept { return block_; }
  /// How often the block is mapped.
  [[nodiscard]] std::size_t mappings() const noexcept { return mapped_[0] + mapped_[1]; }
  /// Allocations that were borrowed and not given back, in both placements.
  [[nodiscard]] std::size_t borrowed() const noexcept { return borrowed_[0] + borrowed_[1]; }
  /// What the current capture was given, in order.
  [[nodiscard]] const std::vector<PhantomAllocation>& allocations() const noexcept {
    return allocations_;
  }

 private:
  void map_to(std::size_t placement, std::size_t end);
  CUresult give_access(CUdeviceptr start, std::size_t bytes, std::span<const int> devices);

  const Driver& driver_;
  std::vector<int> devices_;  ///< that address it; its own first
  CUdeviceptr base_ = 0;
  std::size_t reserved_ = 0;
  std::size_t block_ = 0;
  CUmemGenericAllocationHandle physical_ = 0;
  std::size_t mapped_[2] = {0, 0};  ///< blocks mapped from the start of each placement
  std::size_t placement_ = 0;
  std::size_t cursors_[2] = {0, 0};   ///< bytes used from the start of each placement
  std::size_t borrowed_[2] = {0, 0};  ///< allocations of each placement not given back
  std::vector<PhantomAllocation> allocations_;
};

}  // namespace pygraph
