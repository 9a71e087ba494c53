// What the example needs of a device. cuda_device.cpp has it on a GPU (cuBLAS and a kernel of its
// own), twin_device.cpp on the CPU twin, with kernels that are host functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pygraph/handles.h"

namespace replay {

/// Device 0, ready: current context, one stream, the two operations. Not thread-safe. Throws
/// pygraph::DriverError, and std::runtime_error when there is no such device.
class Device {
 public:
  static constexpr std::size_t kWorkspaceBytes = std::size_t{8} << 20;

  Device();
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] const pygraph::Driver& driver() const noexcept { return *driver_; }
  [[nodiscard]] CUstream stream() const noexcept { return stream_.get(); }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  /// The memory that gemm may use, kWorkspaceBytes at a multiple of 256: an operand like any other.
  /// Without one of ours cuBLAS would allocate inside the capture.
  void use_workspace(CUdeviceptr workspace);

  /// out = left * right, square matrices of n * n floats, row by row.
  void gemm(CUdeviceptr out, CUdeviceptr left, CUdeviceptr right, std::uint32_t n) const;
  /// out[i] = max(in[i], 0) for `count` floats.
  void relu(CUdeviceptr out, CUdeviceptr in, std::uint32_t count) const;

  void synchronize() const {
    driver().check(driver().api.cuStreamSynchronize(stream()), "cuStreamSynchronize");
  }

 private:
  struct Library;

  const pygraph::Driver* driver_;
  std::string name_;
  pygraph::StreamHandle stream_;
  std::unique_ptr<Library> library_;
};

/// Launches `function` on `stream`, `threads` threads in blocks of 128.
template <typename... Parameters>
void launch(const pygraph::Driver& driver, CUstream stream, CUfunction function,
            std::uint32_t threads, Parameters... parameters) {
  constexpr std::uint32_t kBlock = 128;
  void* pointers[] = {&parameters...};
  driver.check(driver.api.cuLaunchKernel(function, (threads + kBlock - 1) / kBlock, 1, 1, kBlock, 1,
                                         1, 0, stream, pointers, nullptr),
               "cuLaunchKernel");
}

/// Owner of one piece of device memory.
class Memory {
 public:
  Memory(const pygraph::Driver& driver, std::size_t bytes) : driver_(driver), bytes_(bytes) {
    driver.check(driver.api.cuMemAlloc(&address_, bytes), "cuMemAlloc");
  }
  ~Memory() { driver_.api.cuMemFree(address_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] CUdeviceptr address() const noexcept { return address_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  void write(const std::vector<float>& values) const {
    driver_.check(driver_.api.cuMemcpyHtoD(address_, values.data(), values.size() * sizeof(float)),
                  "cuMemcpyHtoD");
  }
  [[nodiscard]] std::vector<float> read() const {
    std::vector<float> values(bytes_ / sizeof(float));
    driver_.check(driver_.api.cuMemcpyDtoH(values.data(), address_, bytes_), "cuMemcpyDtoH");
    return values;
  }

 private:
  const pygraph::Driver& driver_;
  std::size_t bytes_;
  CUdeviceptr address_ = 0;
};

}  // namespace replay
