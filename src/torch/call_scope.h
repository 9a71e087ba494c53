// Where a call runs.
#pragma once

#include <cstdint>
#include <optional>

#include "tensor_program.h"

namespace pygraph::torch_bridge {

/// Makes a device of torch's current for as long as it exists.
class DeviceGuard {
 public:
  explicit DeviceGuard(std::int32_t index) {
    require(torch_api().create_guard(index, &guard_), "device guard");
  }
  ~DeviceGuard() { torch_api().delete_guard(guard_); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  void* guard_ = nullptr;
};

/// The device and stream of one call. Makes the graph's device current when it is not (another
/// device, a new thread). The twin has one device and one stream.
class CallScope {
 public:
  CallScope(const Driver& driver, TensorProgram::Device device, int index, CUcontext context) {
    if (device == TensorProgram::Device::kTwin) {
      return;
    }
    const TorchApi& api = torch_api();
    std::int32_t current = -1;
    api.current_device(&current);
    if (current != index) {
      guard_.emplace(index);
    }
    CUcontext active = nullptr;
    driver.api.cuCtxGetCurrent(&active);
    if (active == nullptr) {
      driver.check(driver.api.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    }
    require(api.current_stream(index, &stream_), "current stream");
  }
  ~CallScope() = default;
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  [[nodiscard]] CUstream stream() const noexcept { return static_cast<CUstream>(stream_); }

 private:
  std::optional<DeviceGuard> guard_;
  void* stream_ = nullptr;
};

/// What is forbidden while others capture, as is a look at a stream, is allowed to this thread as
/// long as it exists: none of it has to do with their streams (CUDA driver API,
/// cuThreadExchangeStreamCaptureMode).
class Relaxed {
 public:
  explicit Relaxed(const Driver& driver) : driver_(driver), exchanged_(exchange()) {}
  ~Relaxed() {
    if (exchanged_) {
      exchange();
    }
  }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  bool exchange() noexcept {
    return driver_.api.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
  }

  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool exchanged_;
};

}  // namespace pygraph::torch_bridge
