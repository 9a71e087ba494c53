// The CPU twin: a second implementation of the driver table, on the host.
//
// Device memory is host memory, kernels are registered host functions with a declared parameter
// layout, streams capture, graphs instantiate, node parameters can be read and set, copies and
// memsets run, and phantom memory really is one physical block mapped many times. So the whole
// engine is tested on a machine without a GPU, by the same tests that run on the real driver.
//
// What it does not do: run anything concurrently. Launches queue per process in the order they
// were made and run at the next synchronising call, so an update of a graph that is "in flight"
// must not change what was launched before, as on a GPU. It has no clock worth measuring. Like the
// driver, it does not work in a process forked after its first use.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "pygraph/driver.h"
#include "pygraph/image.h"

namespace pygraph::twin {

/// A kernel launch as the host function sees it: `block` is the packed parameter block.
struct Launch {
  const std::byte* block;
  std::uint32_t grid[3];
  std::uint32_t threads[3];

  /// The parameter of type T at byte `offset` of the block.
  template <typename T>
  [[nodiscard]] T parameter(std::size_t offset) const noexcept {
    T value;
    __builtin_memcpy(&value, block + offset, sizeof value);
    return value;
  }
};

using HostKernel = void (*)(const Launch&);

/// The twin's driver table. One device, driver version 13.0. Thread-safe by one lock.
const Driver& driver();

/// Makes `run` a kernel with the given parameter layout; the function handle lives as long as the
/// process. `parameters` stand by ascending offset; bytes between them are padding.
CUfunction register_kernel(const std::string& name, std::vector<ParameterSlot> parameters,
                           HostKernel run);

/// Misbehaviour on demand; `reset()` ends all of it.
struct Faults {
  /// The entry point `symbol` (cuda.h's plain name, e.g. "cuGraphLaunch") fails with `code` on its
  /// `nth` call from now on (1: the next), once; if `lasting`, on all calls behind that as well.
  static void fail(const std::string& symbol, CUresult code, int nth = 1, bool lasting = false);
  /// The entry point takes that much longer.
  static void slow(const std::string& symbol, std::chrono::microseconds delay);
  /// Calls of every entry point since `count_calls(true)`, by name; those never called are left
  /// out. A planned failure counts as a call.
  static void count_calls(bool on);
  static std::map<std::string, std::uint64_t> calls();
  /// Padding between the parameters of a captured kernel is filled with changing bytes.
  static void padding_noise(bool on);
  /// The nodes of a graph run in an order that its edges allow, drawn anew at each launch; the same
  /// draws for the same seed. 0: in the order in which they stand.
  static void any_order(std::uint64_t seed);
  static void reset();
};

/// Live objects, to test for leaks.
struct Census {
  std::size_t allocations, allocated_bytes, graphs, execs, streams, events, mappings, reservations;
  bool operator==(const Census&) const = default;
};
Census census();

/// Lets copies and fills use host memory that the twin did not allocate, as on a GPU with
/// CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS: torch's CPU tensors can then stand in for device
/// memory. Off by default, so that a stray address is an error.
void pageable_memory_access(bool on);

/// Finishes everything that was launched.
void synchronize();

}  // namespace pygraph::twin
