#include "flight.h"

#include <utility>

namespace pygraph::torch_bridge {
namespace {

/// The innermost one of this thread.
Flight*& innermost() noexcept {
  thread_local Flight* flight = nullptr;
  return flight;
}

}  // namespace

Flight::Flight(const Dispatcher& dispatcher, const Arguments& arguments, bool awaited) noexcept
    : dispatcher_(dispatcher),
      arguments_(arguments),
      outer_(std::exchange(innermost(), this)),
      awaited_(awaited) {}

Flight::~Flight() {
  Flight** link = &innermost();
  while (*link != this) {
    link = &(*link)->outer_;
  }
  *link = outer_;
  Py_XDECREF(result_);
}

Flight* Flight::arriving(const Dispatcher& dispatcher, const Arguments& arguments) noexcept {
  for (Flight* flight = innermost(); flight != nullptr; flight = flight->outer_) {
    if (&flight->dispatcher_ == &dispatcher && flight->awaited_ && flight->departed_ &&
        !flight->landed_ && flight->is(arguments)) {
      return flight;
    }
  }
  return nullptr;
}

bool Flight::is(const Arguments& arguments) const noexcept {
  bool same = arguments.count == arguments_.count;
  for (std::size_t i = 0; same && i < arguments.count; ++i) {
    same = arguments[i] == arguments_[i];
  }
  return same;
}

void Flight::depart(std::shared_ptr<TensorProgram> call, TensorProgram::Launched launched) noexcept {
  call_ = std::move(call);
  launched_ = std::move(launched);
  departed_ = true;
}

void Flight::depart(PyObject* result) noexcept {
  result_ = result;
  departed_ = true;
}

void* Flight::stream() const noexcept {
  return call_ == nullptr ? nullptr : call_->current_stream();
}

bool Flight::leaves_traces() const noexcept { return call_ != nullptr && !call_->without_trace(); }

}  // namespace pygraph::torch_bridge
