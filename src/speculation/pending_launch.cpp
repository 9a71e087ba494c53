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

PendingLaunch::Start PendingLaunch::launch(std::shared_ptr<TensorProgram> program) {
  std::optional<Dispatcher::Launch> made;
  if (program != nullptr) {
    made = awaited_ ? target_.dispatcher.launch(std::move(program), arguments_)
                    : target_.dispatcher.launch_on_guess(std::move(program), arguments_);
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
        !launch->claimed_ && launch->is(arguments) && launch->stands()) {
      return launch;
    }
  }
  return nullptr;
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
  return target_.dispatcher.finish(std::move(launch_), arguments);
}

}  // namespace pygraph::torch_bridge::speculation
