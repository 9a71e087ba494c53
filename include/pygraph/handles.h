// RAII owners of driver objects. Each knows the driver it came from; destructors never throw, so
// what the driver says to a destruction is lost.
//
// Like the objects themselves, a handle is not thread-safe: a graph and its nodes belong to one
// thread at a time (CUDA driver API, "Graph object thread safety").
#pragma once

#include <utility>

#include "pygraph/driver.h"

namespace pygraph {

/// Unique owner of one driver object of type `Handle`, destroyed by the table's `Destroy` entry.
/// The driver must outlive it. Empty when default-constructed, moved from or reset.
template <typename Handle, auto Destroy>
class DriverHandle {
 public:
  DriverHandle() = default;
  /// Takes over `handle`, which may be null.
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

  /// The object, still owned here; null when empty.
  [[nodiscard]] Handle get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != nullptr; }
  /// Destroys the object now.
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

/// An instantiated graph may be destroyed while it runs, it is freed when it is done; a stream's
/// work is finished as well (driver API, cuGraphExecDestroy, cuStreamDestroy). A module must not be
/// unloaded while its kernels run or while graphs hold them.
using GraphHandle = DriverHandle<CUgraph, &DriverApi::cuGraphDestroy>;
using ExecHandle = DriverHandle<CUgraphExec, &DriverApi::cuGraphExecDestroy>;
using StreamHandle = DriverHandle<CUstream, &DriverApi::cuStreamDestroy>;
using EventHandle = DriverHandle<CUevent, &DriverApi::cuEventDestroy>;
using ModuleHandle = DriverHandle<CUmodule, &DriverApi::cuModuleUnload>;

}  // namespace pygraph
