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

PendingLaunch::PendingLaunch(Dispatcher& dispatcher, const Arguments& arguments,
                             bool awaited) noexcept
    : dispatcher_(dispatcher),
      arguments_(arguments),
      outer_(std::exchange(innermost(), this)),
      awaited_(awaited) {}

PendingLaunch::~PendingLaunch() {
  PendingLaunch** link = &innermost();
  while (*link != this) {
    link = &(*link)->outer_;
  }
  *link = outer_;
  Py_XDECREF(served_);
}

PendingLaunch::Start PendingLaunch::launch(std::shared_ptr<TensorProgram> program) {
  if (program == nullptr || !dispatcher_.launch(program, arguments_, results_, served_)) {
    return Start::kMiss;
  }
  if (!results_ && served_ == nullptr) {
    return Start::kError;
  }
  if (results_) {
    program_ = std::move(program);
  }
  launched_ = true;
  return Start::kLaunched;
}

PendingLaunch* PendingLaunch::find(const Dispatcher& dispatcher,
                                   const Arguments& arguments) noexcept {
  for (PendingLaunch* launch = innermost(); launch != nullptr; launch = launch->outer_) {
    if (&launch->dispatcher_ == &dispatcher && launch->awaited_ && launch->launched_ &&
        !launch->claimed_ && launch->is(arguments)) {
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
  PyObject* result = std::exchange(served_, nullptr);
  if (results_) {
    result = dispatcher_.finish(program_, arguments, *results_);
    results_.reset();
  }
  return result;
}

}  // namespace pygraph::torch_bridge::speculation
