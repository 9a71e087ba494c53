// One call of a compiled callable whose graph may be launched before Dynamo has checked its guards
// (early.h): the guess, the arrival, and what is learned from either.
#pragma once

#include <Python.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "early.h"
#include "entry.h"
#include "flight.h"
#include "python_ref.h"
#include "route.h"

namespace pygraph::torch_bridge {

/// What is known of one compiled callable.
struct Knowledge {
  PythonRef code;
  PythonRef wrapper;
  PythonRef between;
  PythonRef plain_tuple;
  PlainTypes plain;
  std::vector<Route> routes;  ///< last used first
  EarlyCounts counts;
  std::uint64_t calls = 0;
  std::uint64_t lessons = 0;  ///< since something landed: calls to learn from, or beyond reading
  std::uint64_t pause = 0;    ///< calls until the next guess
  unsigned misses = 0;        ///< in a row

  [[nodiscard]] bool may_learn() const noexcept;
};

/// One call of a compiled callable, from before its guards to its end.
class EarlyCall {
 public:
  /// `frame` is the one that runs the callable; `owner` keeps `knowledge`.
  EarlyCall(PyObject* owner, Knowledge& knowledge, PythonRef frame);
  ~EarlyCall();
  EarlyCall(const EarlyCall&) = delete;
  EarlyCall& operator=(const EarlyCall&) = delete;

  /// Of this thread.
  static EarlyCall*& innermost() noexcept;
  /// See early_arrival().
  Flight* arrive(PyObject* entry, PyObject* const* arguments, Py_ssize_t count,
                 const Arguments& view, bool may_learn);

 private:
  using Clock = Worth::Clock;

  void begin();
  bool guess();
  bool launch(const Route& route);
  bool is_to_be_timed(const EarlyPermit& permit) noexcept;
  void see_how_long_it_runs();
  void see_what_is_left_to_the_host(const Flight& flight) noexcept;
  bool comes_directly() const;
  void learn(PyObject* entry, PyObject* const* arguments, Py_ssize_t count);
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
  EarlyCall* outer_;

  std::size_t route_ = 0;  ///< the guess
  std::shared_ptr<Worth> worth_;
  PythonRef entry_;
  std::vector<PythonRef> kept_;  ///< the graph's arguments, in the order of its caller
  Destination destination_;
  Arguments view_{};
  std::optional<Flight> flight_;
  void* stream_ = nullptr;
  Clock::time_point began_;
  Clock::time_point departed_;
  Clock::time_point arrival_;
  Clock::duration cost_{0};  ///< of the guess: what stood in front of the launch
  bool pays_ = true;
};

}  // namespace pygraph::torch_bridge
