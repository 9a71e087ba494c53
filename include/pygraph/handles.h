// RAII owners of driver objects. Each knows the driver it came from; destructors never throw.
#pragma once

#include <utility>

#include "pygraph/driver.h"

namespace pygraph {

/// Unique owner of one driver object of type `Handle`, destroyed by the table's `Destroy` entry.
template <typename Handle, auto Destroy>
class DriverHandle {
 public:
  DriverHandle() = default;
  DriverHandle(const Driver& driver, Handle handle) noexcept : driver_(&driver), handle_(handle) {}
  ~DriverHandle() { reset(); }

  DriverHandle(const DriverHandle&) = delete;
  DriverHandle& operator=(const DriverHandle&) = delete;
  DriverHandle(DriverHandle&& other) noexcept
      : driver_(other.driver_), handle_(std::exchange(other.handle_, nullptr)) {}
  DriverHandle& operator=(DriverHandle&& other) noexcept {
    if (this != &other) {
      reset();
      driver_ = other.driver_;
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }

  [[nodiscard]] Handle get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != nullptr; }
  void reset() noexcept {
    if (handle_ != nullptr) {
      Handle gone = std::exchange(handle_, nullptr);
      if (!Driver::in_forked_child()) {  // there the parent's object is not ours to destroy
        (driver_->api.*Destroy)(gone);
      }
    }
  }

 private:
  const Driver* driver_ = nullptr;
  Handle handle_ = nullptr;
};

using GraphHandle = DriverHandle<CUgraph, &DriverApi::cuGraphDestroy>;
using ExecHandle = DriverHandle<CUgraphExec, &DriverApi::cuGraphExecDestroy>;
using StreamHandle = DriverHandle<CUstream, &DriverApi::cuStreamDestroy>;
using EventHandle = DriverHandle<CUevent, &DriverApi::cuEventDestroy>;
using ModuleHandle = DriverHandle<CUmodule, &DriverApi::cuModuleUnload>;

}  // namespace pygraph
