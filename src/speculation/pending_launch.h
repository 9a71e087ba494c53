// A graph that runs for a call that has not come yet (speculation.h).
#pragma once

#include <Python.h>

#include <chrono>
#include <memory>
#include <optional>

#include "speculation.h"

namespace pygraph::torch_bridge::speculation {

/// On the stack of who launches it, whose thread alone knows of it. Needs the GIL. One that was
/// launched and is not claimed when it goes is dropped: it was no call.
class PendingLaunch {
 public:
  using Clock = std::chrono::steady_clock;

  /// `target` and `arguments` must outlive it. One that is not `awaited` is found by nobody until
  /// expect().
  PendingLaunch(Target& target, const Arguments& arguments, bool awaited = true) noexcept;
  ~PendingLaunch();
  PendingLaunch(const PendingLaunch&) = delete;
  PendingLaunch& operator=(const PendingLaunch&) = delete;

  /// kMiss: no program serves the call, and nothing was done. kError: a Python error is set.
  enum class Start : std::uint8_t { kMiss, kLaunched, kError };
  /// Launches what the dispatcher has chosen for these arguments. One that is not awaited has no
  /// error.
  Start launch(Dispatcher::Choice choice);

  /// What this thread has launched for a call of `dispatcher` with `arguments`, the very same
  /// objects, as it would be launched now; null if there is nothing. Secured.
  static PendingLaunch* find(const Dispatcher& dispatcher, const Arguments& arguments) noexcept;

  /// A call comes with `arguments`: if they are the very same objects it is awaited.
  bool expect(const Arguments& arguments) noexcept {
    awaited_ = launched() && is(arguments);
    return awaited_;
  }
  /// Whether its random numbers are still those of a call made now, and of no other thread's until
  /// it is claimed. Then it is to be claimed at once.
  bool secure() noexcept;
  /// The call has come: its results, as Dispatcher::try_call() has them. Once, and secured.
  PyObject* claim(const Arguments& arguments);
  [[nodiscard]] bool claimed() const noexcept { return claimed_; }

  /// Its results go to the caller.
  void answer() noexcept { answered_ = Clock::now(); }
  [[nodiscard]] std::optional<Clock::time_point> answered() const noexcept { return answered_; }
  /// The stream that it would be launched on now. Null on the twin.
  [[nodiscard]] void* stream() const noexcept {
    return launch_.program == nullptr ? nullptr : launch_.program->current_stream();
  }
  /// Whether one that nobody claims has left a trace: written arguments.
  [[nodiscard]] bool leaves_traces() const noexcept {
    return launch_.launched && !launch_.program->without_trace();
  }

 private:
  [[nodiscard]] bool launched() const noexcept { return launch_.launched || launch_.served; }
  bool is(const Arguments& arguments) const noexcept;
  /// One that leaves traces cannot be launched again.
  [[nodiscard]] bool stands() const noexcept {
    return leaves_traces() || !launch_.launched || launch_.launched->stands();
  }

  Target& target_;
  const Arguments& arguments_;
  PendingLaunch* outer_;  ///< of this thread
  Dispatcher::Launch launch_;
  LaunchLock::Held held_;
  bool awaited_;
  bool claimed_ = false;
  std::optional<Clock::time_point> answered_;
};

}  // namespace pygraph::torch_bridge::speculation
