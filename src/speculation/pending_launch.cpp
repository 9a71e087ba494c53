#include "pending_launch.h"

#include <utility>

namespace pygraph::torch_bridge::speculation {
namespace {

/// The innermost one of this thread.
PendingLaunch*& innermost() noexcept {
  thread_local PendingLaunch* launch = nullptr;
  return launch;
}

}  // namespace

PendingLaunch::PendingLaunch(Target& target, const Arguments& arguments, bool awaited) noexcept
    : target_(target),
      arguments_(arguments),
      outer_(std::exchange(innermost(), this)),
      awaited_(awaited) {}

PendingLaunch::~PendingLaunch() {
  PendingLaunch** link = &innermost();
  while (*link != this) {
    link = &(*link)->outer_;
  }
  *link = outer_;
  target_.counts->dropped += launched() && !claimed_ ? 1U : 0U;
}

PendingLaunch::Start PendingLaunch::launch(Dispatcher::Choice choice) {
  std::optional<Dispatcher::Launch> made;
  if (choice.program != nullptr) {
    made = awaited_ ? target_.dispatcher.launch(choice, arguments_)
                    : target_.dispatcher.launch_on_guess(choice, arguments_);
  }
  if (!made) {
    return Start::kMiss;
  }
  launch_ = std::move(*made);
  return launched() ? Start::kLaunched : Start::kError;
}

PendingLaunch* PendingLaunch::find(const Dispatcher& dispatcher,
                                   const Arguments& arguments) noexcept {
  for (PendingLaunch* launch = innermost(); launch != nullptr; launch = launch->outer_) {
    if (&launch->target_.dispatcher == &dispatcher && launch->awaited_ && launch->launched() &&
        !launch->claimed_ && launch->is(arguments) && launch->secure()) {
      return launch;
    }
  }
  return nullptr;
}

/// Other threads that draw have looked at the generators, or wait until this call has moved them.
bool PendingLaunch::secure() noexcept {
  if (launch_.launched && launch_.launched->turn != nullptr && !leaves_traces()) {
    held_ = launch_.program->lock().take();
    if (!held_) {
      return false;
    }
  }
  if (!stands()) {
    held_.end();
    return false;
  }
  return true;
}

bool PendingLaunch::is(const Arguments& arguments) const noexcept {
  bool same = arguments.count == arguments_.count;
  for (std::size_t i = 0; same && i < arguments.count; ++i) {
    same = arguments[i] == arguments_[i];
  }
  return same;
}

PyObject* PendingLaunch::claim(const Arguments& arguments) {
  claimed_ = true;
  PyObject* result = target_.dispatcher.finish(std::move(launch_), arguments);
  held_.end();
  return result;
}

}  // namespace pygraph::torch_bridge::speculation
