// The CUDA driver as a table of function pointers.
//
// PyGraph never links libcuda: the real driver is opened at run time (real_driver), the CPU twin
// (twin.h) fills the same table with functions that run on the host, and everything above takes
// `const Driver&` and cannot tell them apart. A machine without a GPU gets a Driver whose
// capabilities say what was looked for and what is missing; nothing throws at import.
#pragma once

#include <cuda.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pygraph {

/// Function pointers of one driver. Members carry the names of cuda.h (after its version macros),
/// so their types follow the cuda.h that is included: it must be of the major version that the
/// library was built with (find_package(pygraph) sees to that). Null: not loaded, or optional and
/// absent.
struct DriverApi {
#define PYGRAPH_REQUIRED(name) decltype(&::name) name = nullptr;
#define PYGRAPH_OPTIONAL(name) decltype(&::name) name = nullptr;
#include "pygraph/driver_symbols.def"
};

/// What a driver can do, and when it cannot be used: what was found and what is needed. Plain data.
struct Capabilities {
  /// CUDA 12.4: first driver with cuFuncGetParamInfo, which lays out a kernel's parameter block.
  static constexpr int kMinimumVersion = 12040;

  std::string library;               ///< what was opened ("libcuda.so.1", "CPU twin"); empty: none
  int version = 0;                   ///< cuDriverGetVersion, e.g. 13000; 0 when unknown
  int device_count = 0;              ///< CUDA devices visible to this process
  std::vector<std::string> missing;  ///< required entry points the library lacks
  std::string problem;               ///< empty when usable; else one sentence: found, needed

  [[nodiscard]] bool usable() const noexcept { return problem.empty(); }
};

/// A failed driver call. `code` is the CUresult; `operation` the entry point; `object` what it was
/// applied to (node, kernel, region); `remedy` what the reader can do, possibly empty. what() is
/// one sentence of these. An error of earlier asynchronous work can surface in any later call
/// (driver API, "Error Handling").
class DriverError : public std::runtime_error {
 public:
  DriverError(CUresult code, std::string_view code_name, std::string_view operation,
              std::string_view object, std::string_view remedy);

  [[nodiscard]] CUresult code() const noexcept { return code_; }
  [[nodiscard]] const std::string& operation() const noexcept { return operation_; }
  [[nodiscard]] const std::string& object() const noexcept { return object_; }

 private:
  CUresult code_;
  std::string operation_;
  std::string object_;
};

/// One driver: its table and what it can do. Immutable after construction, safe to share between
/// threads. Whoever is given a `const Driver&` keeps it: it must outlive them (real_driver() and
/// twin::driver() live as long as the process). Nothing here makes a context current; the calls
/// that need one say so in the driver API.
struct Driver {
  DriverApi api;
  Capabilities capabilities;

  /// Throws DriverError unless `code` is CUDA_SUCCESS. For set-up and hot paths alike: the success
  /// path is one comparison.
  void check(CUresult code, std::string_view operation, std::string_view object = {},
             std::string_view remedy = {}) const {
    if (code != CUDA_SUCCESS) [[unlikely]] {
      fail(code, operation, object, remedy);
    }
  }

  /// True in a process that was forked after a driver was opened in its parent. No driver call
  /// works there, and objects of the parent must be left alone: "CUDA_ERROR_NOT_INITIALIZED" at
  /// best. One load; safe from any thread.
  [[nodiscard]] static bool in_forked_child() noexcept {
    return forked_.load(std::memory_order_relaxed);
  }
  /// Makes in_forked_child() true in every child forked from now on. For whoever makes a Driver.
  static void watch_for_forks();

  /// "CUDA_ERROR_INVALID_VALUE" for a code, or its number when the driver does not know it. Works
  /// with an empty table too.
  [[nodiscard]] std::string error_name(CUresult code) const;

 private:
  [[noreturn]] void fail(CUresult code, std::string_view operation, std::string_view object,
                         std::string_view remedy) const;

  static inline std::atomic<bool> forked_{false};
};

/// The process's CUDA driver (libcuda.so.1), opened and initialised with cuInit on first use.
/// Thread-safe. Throws nothing for want of a driver or a device: look at `capabilities.usable()`.
const Driver& real_driver();

/// Opens `library` and fills a table from it; for tests of the failure paths. `minimum_version` is
/// in cuDriverGetVersion's form (12040: CUDA 12.4). Failures stand in `capabilities.problem`. The
/// handle is never closed: CUDA does not survive being unloaded.
Driver load_driver(const std::string& library, int minimum_version = Capabilities::kMinimumVersion);

}  // namespace pygraph
