// One call of a compiled callable whose graph may be launched in front of its guards
// (speculation.h): the guess, the arrival, and what is learned from either.
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "../selection/contest.h"
#include "call_shape.h"
#include "pending_launch.h"
#include "speculation.h"

namespace pygraph::torch_bridge::speculation {

/// What is known of one compiled callable.
struct Knowledge {
  PythonRef code;
  PythonRef variables;
  PythonRef wrapper;
  PythonRef between;
  PythonRef plain_tuple;
  PlainTypes plain;
  std::vector<CallShape> shapes;  ///< last used first
  Counts counts;
  PythonRef at_end;           ///< to be called at the end of the next call
  std::uint64_t permits = 0;  ///< entry points whose graphs may be launched by it
  std::uint64_t calls = 0;
  std::uint64_t lessons = 0;  ///< since a claim: calls to learn from, or beyond reading
  std::uint64_t pause = 0;    ///< calls until the next guess
  unsigned misses = 0;        ///< in a row

  [[nodiscard]] bool may_learn() const noexcept;
};

/// One call of a compiled callable, from before its guards to its end.
class Guess {
 public:
  /// `frame` is the one that runs the callable; `owner` keeps `knowledge`.
  Guess(PyObject* owner, Knowledge& knowledge, PythonRef frame);
  ~Guess();
  Guess(const Guess&) = delete;
  Guess& operator=(const Guess&) = delete;

  /// Of this thread.
  static Guess*& innermost() noexcept;
  /// See speculation.h.
  PendingLaunch* arrive(const Arrival& call);
  /// The call that arrived returns.
  void returned() noexcept { watch_.reset(); }

 private:
  using Clock = Benefit::Clock;

  void begin();
  bool find_shape();
  bool launch(const CallShape& shape);
  PendingLaunch::Start start(PendingLaunch& launch, IndexBounds& bounds);
  bool is_to_be_timed(const Permit& permit) noexcept;
  void see_how_long_it_runs();
  void see_what_is_left_to_the_host(const PendingLaunch& claimed) noexcept;
  bool comes_directly() const;
  const Arguments& with_numbers_of(const Arrival& call);
  void put(const Number& number, PyObject* object);
  void learn(const std::shared_ptr<Target>& target, PyObject* const* arguments);
  void drop() noexcept;
  void pause() noexcept;

  PythonRef owner_;  ///< keeps the knowledge
  Knowledge& knowledge_;
  PythonRef frame_;
  PythonRef positional_;
  PythonRef named_;
  Leaves leaves_;
  bool readable_ = false;
  bool arrived_ = false;
  Guess* outer_;

  std::size_t shape_ = 0;  ///< what the call is taken for
  std::shared_ptr<Benefit> benefit_;
  std::shared_ptr<Target> target_;
  PythonRef target_owner_;            ///< keeps its dispatcher
  std::vector<PythonRef> kept_;       ///< the graph's arguments, in the order of its caller
  std::vector<Number> numbers_;       ///< those that may be other objects with the same value
  std::vector<PyObject*> arguments_;  ///< the same, in the graph's order
  Arguments view_{};
  std::optional<selection::CallClock> watch_;
  std::optional<PendingLaunch> launch_;
  void* stream_ = nullptr;
  Clock::time_point began_;
  Clock::time_point launched_;
  Clock::time_point arrival_;
  Clock::duration cost_{0};  ///< of the guess: what stood in front of the launch
  bool pays_ = true;
};

}  // namespace pygraph::torch_bridge::speculation
