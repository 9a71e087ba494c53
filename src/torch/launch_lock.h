// One launch of a program at a time.
//
// From the first address that a call binds to the launch of the program's last part, the nodes'
// parameters are that call's. Behind that they are nobody's: an update of an exec changes launches
// to come only (CUDA driver API, Graph Management, cuGraphExecKernelNodeSetParams: "Already
// enqueued or running launches of hGraphExec are not affected by this call"), and two launches of
// it never overlap, on whichever streams ("Each launch is ordered behind both any previous work in
// hStream and any previous launches of hGraphExec", cuGraphLaunch). Arena, outputs and copies are
// memory of the call's own. So this is all that a thread ever has to wait for: not another call's
// GPU work, and nothing of the user's.
//
// The GIL alone keeps others out nearly always, for a launch holds it. It may be lost where
// arguments are dropped between two parts, or a collection starts (destructors and weak references'
// callbacks are Python), in a user's callback of torch's allocator, and on the twin in every
// operator, since there a launch runs the graph. Then another thread waits here, without the GIL,
// and looks for its program once more: anything may have changed meanwhile.
//
// Nobody waits for ever. A thread that is inside a launch already (what runs there has called a
// compiled graph) does not wait at all, so no circle of threads waits for itself; and whoever waits
// gives up after kLongestWait, and makes the call without a program. What is waited for is let go
// of again and not handed over: threads that handed it on would exchange the GIL in every call.
#pragma once

#include <Python.h>
#include <pythread.h>

#include <chrono>
#include <new>
#include <utility>

namespace pygraph::torch_bridge {

/// Taken and waited for with the GIL held. Not in a forked child.
class LaunchLock {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kLongestWait{1};

  /// Has the lock until it ends; empty: does not. Ends on the thread that took it.
  class Held {
   public:
    Held() = default;
    ~Held() { end(); }
    Held(Held&& other) noexcept : lock_(std::exchange(other.lock_, nullptr)) {}
    Held& operator=(Held&& other) noexcept {
      std::swap(lock_, other.lock_);
      return *this;
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    explicit operator bool() const noexcept { return lock_ != nullptr; }
    void end() noexcept {
      if (lock_ != nullptr) {
        PyThread_release_lock(std::exchange(lock_, nullptr));
        --held_by_this_thread();
      }
    }

   private:
    friend class LaunchLock;
    explicit Held(PyThread_type_lock lock) noexcept : lock_(lock) { ++held_by_this_thread(); }
    PyThread_type_lock lock_ = nullptr;
  };

  LaunchLock() : lock_(PyThread_allocate_lock()) {
    if (lock_ == nullptr) {
      throw std::bad_alloc();
    }
  }
  ~LaunchLock() { PyThread_free_lock(lock_); }
  LaunchLock(const LaunchLock&) = delete;
  LaunchLock& operator=(const LaunchLock&) = delete;

  /// Empty: somebody has it.
  [[nodiscard]] Held try_take() const noexcept {
    return PyThread_acquire_lock(lock_, NOWAIT_LOCK) != 0 ? Held(lock_) : Held();
  }

  /// The same, having waited for it. Empty: not in time, or this thread must not wait.
  [[nodiscard]] Held take() const noexcept {
    Held held = try_take();
    const Clock::time_point end = held ? Clock::time_point() : Clock::now() + kLongestWait;
    while (!held && wait(end)) {
      held = try_take();
    }
    return held;
  }

  /// Waits until nobody has it. False: not before `end`, or this thread must not wait.
  [[nodiscard]] bool wait(Clock::time_point end) const noexcept {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(end - Clock::now());
    if (held_by_this_thread() != 0 || left.count() <= 0) {
      return false;
    }
    bool free = false;
    Py_BEGIN_ALLOW_THREADS;
    free = PyThread_acquire_lock_timed(lock_, left.count(), 0) == PY_LOCK_ACQUIRED;
    if (free) {
      PyThread_release_lock(lock_);
    }
    Py_END_ALLOW_THREADS;
    return free;
  }

 private:
  static unsigned& held_by_this_thread() noexcept {
    thread_local unsigned count = 0;
    return count;
  }

  PyThread_type_lock lock_;
};

}  // namespace pygraph::torch_bridge
