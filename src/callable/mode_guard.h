// Whether torch's modes are those that a callable was captured in: gradients, autocast, precision,
// determinism, and whoever sees operators before torch does.
#pragma once

#include <Python.h>

#include <utility>
#include <vector>

#include "../torch/python_ref.h"

namespace pygraph::torch_bridge::callable {

/// Asked in each call, so from here and not in Python, which takes twice as long. Immutable; needs
/// the GIL.
class ModeGuard {
 public:
  /// A function of torch's that tells of a mode, and what it has told.
  struct Question {
    PythonRef function;
    PythonRef argument;  ///< null: it takes none
    PythonRef answer;
  };

  explicit ModeGuard(std::vector<Question> questions) : questions_(std::move(questions)) {}
  ~ModeGuard() = default;
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

  /// Whether every answer is the same now. Leaves no Python error set: who cannot tell has given
  /// another answer.
  [[nodiscard]] bool holds() const noexcept;

 private:
  std::vector<Question> questions_;
};

}  // namespace pygraph::torch_bridge::callable
