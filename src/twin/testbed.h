// A driver that is ready for work, twin or real: a current context, a stream, and one kernel that
// exists on both, so that one test or benchmark runs on either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "pygraph/handles.h"

namespace pygraph::twin {

/// Parameters of the kernel `affine`, as its packed block: out = scale * in + shift.
struct AffineBlock {
  CUdeviceptr out;
  CUdeviceptr in;
  float scale;
  float shift;
  std::uint32_t count;  ///< floats
};

enum class ParameterOrder : std::uint8_t {
  kArray,            ///< a pointer per parameter
  kPointerThenSize,  ///< packed in `extra`
  kSizeThenPointer,  ///< packed in `extra`
};

/// Not thread-safe.
class Testbed {
 public:
  enum class Kind : std::uint8_t { kTwin, kReal };

  /// Why there is no such driver here; empty when there is.
  static std::string problem(Kind kind);

  /// Throws DriverError. The real driver's primary context is kept for the rest of the process.
  explicit Testbed(Kind kind);

  [[nodiscard]] const Driver& driver() const noexcept { return driver_; }
  [[nodiscard]] CUstream stream() const noexcept { return stream_.get(); }
  [[nodiscard]] CUfunction affine_function() const noexcept { return affine_; }

  /// Launches `affine` on the stream (or into its capture).
  void affine(const AffineBlock& block, ParameterOrder order = ParameterOrder::kArray) const;

  /// Captures what `work` puts on the stream.
  [[nodiscard]] GraphHandle capture(const std::function<void()>& work) const;

  /// Waits for everything that was launched.
  void synchronize() const;

 private:
  const Driver& driver_;
  ModuleHandle module_;
  StreamHandle stream_;
  CUfunction affine_ = nullptr;
};

}  // namespace pygraph::twin
