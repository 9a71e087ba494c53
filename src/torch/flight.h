// A graph that was launched before the wrappers around it ran.
//
// Between Dynamo's bytecode and the graph of a forward stand AOTAutograd's wrappers and an
// autograd.Function. They have work to do that cannot be skipped, and most of it the GPU need not
// wait for. So the Entry of such a function launches the graph first (frontends/compile/entry_point.py says when
// that is allowed) and calls the wrappers then. When they arrive at the graph's place, the
// dispatcher makes the results of the flight that it finds, and launches nothing.
#pragma once

#include <Python.h>

#include <chrono>
#include <memory>
#include <optional>

#include "tensor_program.h"

namespace pygraph::torch_bridge {

class Dispatcher;

/// One call, on the stack of who launched it. Its thread alone knows of it. Needs the GIL.
class Flight {
 public:
  /// `arguments` must outlive the flight. One that is not `awaited` arrives nowhere until expect()
  /// (early.h).
  Flight(const Dispatcher& dispatcher, const Arguments& arguments, bool awaited = true) noexcept;
  ~Flight();
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  /// The flight of this thread that a call of `dispatcher` with `arguments`, the very same
  /// objects, is the arrival of; null if there is none.
  static Flight* arriving(const Dispatcher& dispatcher, const Arguments& arguments) noexcept;

  /// From now on it can arrive: it was launched, or has its result already.
  void depart(std::shared_ptr<TensorProgram> call, TensorProgram::Launched launched) noexcept;
  void depart(PyObject* result) noexcept;

  /// A call comes with `arguments`: if they are the very same objects, it is awaited.
  bool expect(const Arguments& arguments) noexcept {
    awaited_ = departed_ && is(arguments);
    return awaited_;
  }

  [[nodiscard]] bool landed() const noexcept { return landed_; }
  /// Its results go to the caller.
  void answer() noexcept { answered_ = std::chrono::steady_clock::now(); }
  [[nodiscard]] std::optional<std::chrono::steady_clock::time_point> answered() const noexcept {
    return answered_;
  }
  /// The stream that a launch of it would go to now. Null on the twin.
  [[nodiscard]] void* stream() const noexcept;
  /// Whether a flight that never arrives has left a trace: written arguments, or random numbers
  /// drawn.
  [[nodiscard]] bool leaves_traces() const noexcept;

 private:
  friend class Dispatcher;

  bool is(const Arguments& arguments) const noexcept;

  const Dispatcher& dispatcher_;
  const Arguments& arguments_;
  Flight* outer_;  ///< of this thread
  std::shared_ptr<TensorProgram> call_;
  TensorProgram::Launched launched_;
  PyObject* result_ = nullptr;  ///< owned: of a call that the callable served
  bool awaited_;
  bool departed_ = false;
  bool landed_ = false;
  std::optional<std::chrono::steady_clock::time_point> answered_;
};

}  // namespace pygraph::torch_bridge
