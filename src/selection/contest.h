// Which of two ways to serve calls costs the caller less: the graph, or another one. That is the
// callable as it is, or the graph again with some arguments copied where others are patched.
//
// Both are tried on calls that the caller makes anyway. A *pair* is one turn of either, in an order
// that is drawn: a caller with a rhythm of its own must not have one of them meet all of its slow
// calls. A turn is two calls, of which the second counts: the first one finds caches and allocator
// as the other way has left them. Three clocks run:
//
//   host     until the call has returned. All that a caller pays who is always behind the device.
//   device   on its stream, until that was done with the call. If it was still at the turn's first
//            call when this one began: since it was done with that. So the gap that a device leaves
//            between two launches is in it, and it is all that a caller pays who is always ahead of
//            the device. Else since it reached the call, and then it is how long a caller waits who
//            waits for the result.
//   period   until this thread begins its next call of any compiled graph. Whichever of both it is,
//            it is in here; but so is what the caller does in between.
//
// What follows from them is said elsewhere (decide/selection.py). Here is what it may cost: one
// hundredth of the time that has passed since the first graph of the process. A pair costs what the
// slower way takes more, and the clocks.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "pygraph/handles.h"

namespace pygraph::selection {

using Clock = std::chrono::steady_clock;

enum class Alternative : std::uint8_t { kGraph, kOther };

/// What one call took, in us. A clock that has not run: NaN.
struct Cost {
  double host;
  double device;
  double period;
  bool idle;  ///< its stream had nothing to do when the call came
};
struct ClockedPair {
  Cost graph;
  Cost other;
};

/// What all contests of the process have cost, and may.
class Ledger {
 public:
  /// Of all time, for exploration.
  static constexpr double kShare = 0.01;

  /// The time begins to count; from the second call on nothing happens.
  static void open(Clock::time_point now) noexcept;
  static void spend(Clock::duration cost) noexcept;
  [[nodiscard]] static bool has_credit(Clock::time_point now) noexcept;
};

/// One call that is clocked. Its contest and the thread that made it hold it.
struct Sighting {
  Alternative alternative = Alternative::kGraph;
  bool counts = false;
  bool idle = false;
  Clock::time_point began;
  std::optional<Clock::time_point> returned;
  std::optional<Clock::time_point> next;  ///< when the thread began its next call
  CUstream stream = nullptr;
  std::uint64_t number = 0;  ///< among all calls that Contest::count_call has seen
  EventHandle first;         ///< of a call that counts; empty: the device has no clock
  EventHandle last;
};

/// Guarded by the GIL. One call is under way at a time: calls of other threads meanwhile, and those
/// beyond the ledger's credit, are the graph's. The device may be behind by several.
class Contest {
 public:
  /// Pairs at which `judge` is to be asked; the first pair of all is thrown away. Behind the last
  /// there are no more.
  static constexpr std::uint32_t kLooks[] = {12, 16, 24, 32, 48, 64};

  /// Turns that the device may not be done with. Were there one only, of a caller ahead of the
  /// device just the calls behind a wait would be seen.
  static constexpr std::size_t kMostOpen = 8;

  using Now = Clock::time_point (*)();
  /// `device_clock`: the driver's events tell the time. `seed` of the order of turns.
  Contest(const Driver& driver, bool device_clock, std::uint32_t seed, Now now = &Clock::now);
  ~Contest();
  Contest(const Contest&) = delete;
  Contest& operator=(const Contest&) = delete;

  /// How many there are in the process that still ask for calls.
  [[nodiscard]] static int under_way() noexcept { return under_way_; }
  /// A call of any compiled graph begins, on any thread, while one is under way.
  static void count_call() noexcept { ++number_; }

  /// Who serves a call that began at `began` and will run on `stream`, which nobody captures; the
  /// driver's context is current. Null: the graph, and nobody looks. `began` is in the past.
  std::shared_ptr<Sighting> begin(Clock::time_point began, CUstream stream);
  /// The call has returned, or the thread is on to another one.
  void end(Sighting& sighting, Clock::time_point now) noexcept;

  /// Whether there is something new to be judged. It is until the next begin().
  [[nodiscard]] bool due() const noexcept { return due_; }
  /// The last look: behind it no calls are asked for.
  [[nodiscard]] bool over() const noexcept { return look_ == std::size(kLooks); }
  [[nodiscard]] const std::vector<ClockedPair>& pairs() const noexcept { return pairs_; }

 private:
  bool collect();
  void take(const Sighting& sighting, double device);
  void start_device_clock(Sighting& sighting) const;
  [[nodiscard]] EventHandle make_event() const;
  bool may_begin();

  const Driver* driver_;
  bool device_clock_;
  Now now_;
  std::minstd_rand random_;
  std::shared_ptr<Sighting> last_;              ///< of the call that began last
  std::deque<std::shared_ptr<Sighting>> open_;  ///< of calls that count, not taken in yet
  std::vector<ClockedPair> pairs_;
  std::optional<Cost> graph_;  ///< of the pair under way
  std::optional<Cost> other_;  ///< of the same
  bool graph_first_ = true;
  std::uint32_t calls_ = 0;  ///< that were begun
  bool cold_ = true;         ///< the first pair, which is thrown away
  std::size_t look_ = 0;
  bool due_ = false;
  static inline int under_way_ = 0;
  static inline std::uint64_t number_ = 0;
};

/// One call of a compiled graph on this thread, from the outermost place that is ours. Costs one
/// comparison where there is no contest.
class CallClock {
 public:
  /// `graph`: whose call it is. Inside of another call of the same nothing happens.
  explicit CallClock(const void* graph) noexcept {
    if (Contest::under_way() != 0) [[unlikely]] {
      begin(graph);
    }
  }
  ~CallClock() {
    if (active_) [[unlikely]] {
      end();
    }
  }
  CallClock(const CallClock&) = delete;
  CallClock& operator=(const CallClock&) = delete;

  /// The call of `graph` that this thread is in; null where nobody watches.
  static CallClock* of(const void* graph) noexcept;
  /// A call begins on this thread that may come to a graph: if it does, it began now.
  static void announce() noexcept {
    if (Contest::under_way() != 0) [[unlikely]] {
      announce_now();
    }
  }
  /// It did not.
  static void withdraw() noexcept;

  /// It is not the call that it was taken for: nothing is to be learned from it.
  void discard() noexcept;

  /// Who serves this call. The first time, `contest` says so; from then on it stays.
  Alternative alternative(const std::shared_ptr<Contest>& contest, CUstream stream);

 private:
  void begin(const void* graph) noexcept;
  void end() noexcept;
  static void announce_now() noexcept;

  const void* graph_ = nullptr;
  CallClock* outer_ = nullptr;
  Clock::time_point began_;
  std::optional<Alternative> alternative_;
  bool active_ = false;
};

}  // namespace pygraph::selection
