// What Inductor calls in place of a compiled graph: the graphs linked for it, the one used last
// first, the callable itself for signatures that rest, and the Python side for everything else.
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flight.h"
#include "tensor_program.h"
#include "sizes.h"
#include "uncaptured.h"

namespace pygraph::torch_bridge {

/// Guarded by the GIL. Not for recursion: a call made while another runs takes the slow path.
class Dispatcher {
 public:
  /// `miss(arguments)` serves calls that no graph accepts (warming, capturing, falling back);
  /// `failed(arguments, message)` serves a call whose graph failed, after the graph was dropped.
  Dispatcher(PyObject* miss, PyObject* failed);
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  /// Makes `call` serve the calls it accepts from now on.
  void add(std::shared_ptr<TensorProgram> call);
  void clear() noexcept { graphs_.clear(); }
  /// While held, no graph serves a call: everything misses.
  void hold(bool held) noexcept { held_ = held; }
  /// Whether a call is being served right now, on another thread that waits for something: by a
  /// graph, or by the callable without Python.
  [[nodiscard]] bool busy() const noexcept {
    return busy_ != 0 || (uncaptured_ != nullptr && uncaptured_->occupied_by_others());
  }
  /// What serves the calls whose signature rests, unless held. Once.
  void set_uncaptured(std::unique_ptr<Uncaptured> uncaptured) noexcept {
    uncaptured_ = std::move(uncaptured);
  }
  /// Null before it was set.
  [[nodiscard]] Uncaptured* uncaptured() const noexcept { return uncaptured_.get(); }
  /// Takes `call` out again; nothing when it is not there.
  void remove(const std::shared_ptr<TensorProgram>& call) noexcept;
  /// The call that was used longest ago; null when there is none.
  [[nodiscard]] std::shared_ptr<TensorProgram> oldest() const noexcept;
  /// How many calls there had been when it was; 0 when there is none.
  [[nodiscard]] std::uint64_t oldest_used() const noexcept;

  /// One call: `arguments` is a list, cleared when a graph served it. Returns a new reference, or
  /// null with a Python error set.
  PyObject* call(PyObject* arguments);

  /// The first half of a call that only a graph may serve: `flight` departs, and call() with the
  /// same arguments will be its arrival. kMiss: no graph accepts them, and nothing was done.
  /// kError: a Python error is set.
  enum class Start : std::uint8_t { kMiss, kDeparted, kError };
  Start start(const Arguments& arguments, Flight& flight);
  /// The same on a guess: only a graph that leaves no trace may serve it, so that it can be
  /// withdrawn, and only indices within `bounds`.
  Start guess(const Arguments& arguments, Flight& flight, IndexBounds& bounds);
  /// Whether the stream of the graph that was used last has nothing left to do, as far as can be
  /// told: not while somebody captures it.
  [[nodiscard]] bool idle() const noexcept;
  /// The other half, of a flight that call() does not find: its results, as try_call() has them.
  PyObject* land(Flight& flight, const Arguments& arguments);
  /// The call that `flight` departed for will not come.
  void withdraw() noexcept {
    --count_;
    ++withdrawn_;
  }
  [[nodiscard]] std::uint64_t withdrawn() const noexcept { return withdrawn_; }

  /// One call that only a graph may serve. False: no graph accepts the arguments, and nothing was
  /// done. True: `result` is a new reference, or null with a Python error set.
  bool try_call(const Arguments& arguments, PyObject*& result);

  [[nodiscard]] std::uint64_t calls() const noexcept { return count_; }
  /// Those that a graph served.
  [[nodiscard]] std::uint64_t replays() const noexcept { return count_ - missed_; }
  [[nodiscard]] std::size_t size() const noexcept { return graphs_.size(); }
  int traverse(visitproc visit, void* arg) const;
  void release() noexcept;

 private:
  /// Runs `step`, which calls `chosen`, and turns what it throws into what the caller gets: false
  /// for a call that must be made another way.
  template <typename Step>
  bool guarded(const Arguments& arguments, const std::shared_ptr<TensorProgram>& chosen,
               PyObject*& result, Step step);
  std::shared_ptr<TensorProgram> choose(const Arguments& arguments);
  Start depart(const std::shared_ptr<TensorProgram>& chosen, const Arguments& arguments,
               Flight& flight);
  PyObject* failed(const Arguments& arguments, const std::shared_ptr<TensorProgram>& call,
                   const std::string& message);
  PyObject* disturbed(const Arguments& arguments, const std::shared_ptr<TensorProgram>& call,
                      const char* message);
  static PyObject* out_of_memory(const char* message);

  struct Graph {
    std::shared_ptr<TensorProgram> call;
    std::size_t sizes;   ///< hash of the integers that it was captured with
    std::uint64_t used;  ///< calls that there had been
  };

  std::vector<Graph>::const_iterator find_oldest() const noexcept;

  PyObject* miss_;
  PyObject* failed_;
  std::vector<Graph> graphs_;  ///< looked through in each call: kept small, and in one piece
  std::size_t last_ = 0;       ///< used last
  Sizes sizes_;
  std::unique_ptr<Uncaptured> uncaptured_;
  std::uint64_t count_ = 0;
  std::uint64_t missed_ = 0;
  std::uint64_t withdrawn_ = 0;
  std::uint32_t busy_ = 0;  ///< calls that are being served right now, on any thread
  bool held_ = false;
};

}  // namespace pygraph::torch_bridge
