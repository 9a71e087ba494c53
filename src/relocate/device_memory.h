// Which numbers are addresses of device memory.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>

#include "pygraph/relocate.h"

namespace pygraph {

/// Answers of an IsDeviceMemory, remembered: kernels of a graph repeat their constants.
class DeviceMemoryTest {
 public:
  explicit DeviceMemoryTest(IsDeviceMemory ask) : ask_(std::move(ask)) {}

  /// Whether a number is as large as an address is.
  static bool possible(std::uint64_t value) {
    constexpr std::uint64_t kLowest = std::uint64_t{64} << 10;
    constexpr std::uint64_t kHighest = std::uint64_t{1} << 57;
    return value >= kLowest && value < kHighest;
  }

  bool operator()(std::uint64_t value) {
    if (!ask_ || !possible(value)) {
      return false;
    }
    const auto [entry, fresh] = known_.try_emplace(value, false);
    if (fresh) {
      entry->second = ask_(value);
    }
    return entry->second;
  }
  [[nodiscard]] bool answers() const { return static_cast<bool>(ask_); }

 private:
  IsDeviceMemory ask_;
  std::unordered_map<std::uint64_t, bool> known_;
};

}  // namespace pygraph
