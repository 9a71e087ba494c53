// Owner of one piece of device memory, for tests, benchmarks and the demonstration.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "pygraph/driver.h"

namespace pygraph::twin {

/// Works on either driver. The destructor waits for launched work, as cuMemFree does.
class DeviceMemory {
 public:
  DeviceMemory(const Driver& driver, std::size_t bytes) : driver_(&driver), bytes_(bytes) {
    driver.check(driver.api.cuMemAlloc(&address_, bytes), "cuMemAlloc");
  }
  ~DeviceMemory() {
    if (address_ != 0) {
      driver_->api.cuMemFree(address_);
    }
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  DeviceMemory(DeviceMemory&& other) noexcept
      : driver_(other.driver_), address_(std::exchange(other.address_, 0)), bytes_(other.bytes_) {}
  DeviceMemory& operator=(DeviceMemory&&) = delete;

  [[nodiscard]] CUdeviceptr address() const noexcept { return address_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  /// Synchronous copies; `values` must fit.
  template <typename T>
  void write(const std::vector<T>& values) const {
    driver_->check(driver_->api.cuMemcpyHtoD(address_, values.data(), values.size() * sizeof(T)),
                   "cuMemcpyHtoD");
  }
  template <typename T>
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> values(bytes_ / sizeof(T));
    driver_->check(driver_->api.cuMemcpyDtoH(values.data(), address_, values.size() * sizeof(T)),
                   "cuMemcpyDtoH");
    return values;
  }
  void fill(unsigned char value) const {
    driver_->check(driver_->api.cuMemsetD8(address_, value, bytes_), "cuMemsetD8");
    driver_->check(driver_->api.cuCtxSynchronize(), "cuCtxSynchronize");
  }

 private:
  const Driver* driver_;
  CUdeviceptr address_ = 0;
  std::size_t bytes_;
};

}  // namespace pygraph::twin
