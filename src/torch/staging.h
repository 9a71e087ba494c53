// Values that cross between the host and the device in a call.
//
// A compiled graph may take tensors that the caller has on the host (a Python number among them is
// one without dimensions), and return some there. In the graph they stand on the device: such an
// argument is a device cell, memory of the call's own that the call fills in front of the launch,
// and such a result is copied behind it.
//
// The host's half of each copy is a staging slot, pinned memory of ours. The caller may write or
// free what it gave as soon as the call returns, so its bytes are copied into the slot by the call,
// and the device takes them from there in its own time. A slot is written again only when the event
// behind its last copy has passed. Copies from pageable memory would be as safe, but the driver may
// wait for the stream before it makes one (CUDA driver API, "API synchronization behavior").
//
// What the caller has pinned itself, and is worth it, is taken from where it is: to write it once
// more takes longer than the device takes to read it. Then the call waits for the device to have
// read it, behind its launch (settle()).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pygraph/driver.h"
#include "pygraph/handles.h"

namespace pygraph::torch_bridge {

/// Of one device. Guarded by the GIL, which fetch() lets go of while it waits.
class Staging {
 public:
  /// Bytes of a slot. What is larger is brought in pieces of this size, so that the device takes
  /// one while the host writes the next.
  static constexpr std::size_t kSlotBytes = std::size_t{1} << 20U;
  /// Slots of a device; when all are in use, a call waits for the oldest.
  static constexpr std::size_t kMostSlots = 8;
  /// Bytes from which on a piece in pinned memory is taken from there: a wait costs about as much
  /// as to write so many (5 us at 12 GB/s, seen on an H100's host).
  static constexpr std::uint64_t kWorthWaiting = std::uint64_t{1} << 16U;
  /// What pieces in a block are aligned to: as much as a relocated address ever has to be.
  static constexpr std::uint64_t kAlignment = 256;

  explicit Staging(const Driver& driver) noexcept : driver_(&driver) {}
  ~Staging() { release(); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Memory on the host, and where it is to stand in a block on the device or stands there.
  struct Piece {
    void* host;
    CUdeviceptr device;
    std::uint64_t bytes;
  };

  /// Copies pieces to the device, in the order of the stream. They stand in one block, ascending,
  /// less than kAlignment apart. The host's memory is the caller's again behind settle(). Throws
  /// DriverError; MemoryShort where there is no pinned memory.
  void bring(std::span<const Piece> pieces, CUstream stream);

  /// Waits until the device has read what bring() has left where it was; nothing else.
  void settle() noexcept;

  /// Copies pieces to the host, behind what is on the stream, and waits once for all of them.
  /// Throws DriverError.
  void fetch(std::span<const Piece> pieces, CUstream stream);

  /// Gives all pinned memory back, once the device is done with it; none while results are fetched.
  void release() noexcept;

  [[nodiscard]] std::size_t slots() const noexcept { return slots_.size(); }

 private:
  struct Slot {
    char* memory;
    EventHandle passed;  ///< behind the last copy
    CUstream stream;     ///< of the copies
    std::size_t used;
    std::uint32_t readers;  ///< fetch()es that have not taken their bytes yet
  };

  [[nodiscard]] bool is_worth_waiting(const Piece& piece) const noexcept;
  void bring_directly(const Piece& piece, CUstream stream);
  Slot& slot_with(std::size_t bytes, CUstream stream);
  Slot& new_slot();
  bool idle(const Slot& slot) const;
  void bring_piecewise(const Piece& piece, CUstream stream);
  void fetch_directly(std::span<const Piece> pieces, CUstream stream) const;
  void copy_to_host(void* to, const Piece& piece, CUstream stream) const;

  const Driver* driver_;
  std::vector<Slot> slots_;
  std::size_t current_ = 0;
  EventHandle read_;  ///< behind the last copy from the caller's own memory
  bool unsettled_ = false;
};

/// That of a device, made at its first use and kept. `index` is torch's; the twin has one.
Staging& staging_of(const Driver& driver, bool twin, int index);
/// Releases all of them.
void release_staging() noexcept;

}  // namespace pygraph::torch_bridge
