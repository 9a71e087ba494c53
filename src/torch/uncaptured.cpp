#include "uncaptured.h"

#include <algorithm>
#include <utility>

namespace pygraph::torch_bridge {

Uncaptured::Uncaptured(PyObject* function, std::vector<std::uint32_t> integers,
                       std::vector<std::uint32_t> aligned, std::uint64_t alignment_mask)
    : function_(Py_NewRef(function)),
      integers_(std::move(integers)),
      aligned_(std::move(aligned)),
      alignment_mask_(alignment_mask),
      key_(integers_.size()) {}

std::size_t Uncaptured::Hash::operator()(const Key& key) const noexcept {
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a, a word at a time
  for (const std::int64_t value : key) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x100000001b3U;
  }
  return hash ^ (hash >> 32U);
}

/// Into key_; false if the arguments have no signature.
bool Uncaptured::read_key(const Arguments& arguments) noexcept {
  for (std::size_t i = 0; i < integers_.size(); ++i) {
    int overflow = 0;
    if (integers_[i] >= arguments.count || !PyLong_CheckExact(arguments[integers_[i]])) {
      return false;
    }
    key_[i] = PyLong_AsLongLongAndOverflow(arguments[integers_[i]], &overflow);
    if (overflow != 0) {
      return false;
    }
  }
  return true;
}

bool Uncaptured::all_aligned(const Arguments& arguments) const noexcept {
  const TorchApi& api = torch_api();
  return std::all_of(aligned_.begin(), aligned_.end(), [&](std::uint32_t index) {
    PyObject* argument = index < arguments.count ? arguments[index] : Py_None;
    return !api.is_tensor(argument) || (address_of(api.data(argument)) & alignment_mask_) == 0 ||
           api.on_cpu(argument);
  });
}

void Uncaptured::rest(const Arguments& arguments, std::uint64_t calls, Clock::time_point until) {
  if (!read_key(arguments)) {
    return;
  }
  if (resting_.size() >= kMost) {
    resting_.clear();
  }
  resting_.insert_or_assign(key_, Rest{calls, until});
}

bool Uncaptured::takes(const Arguments& arguments) {
  if (resting_.empty() || function_ == nullptr || !read_key(arguments)) {
    return false;
  }
  const auto found = resting_.find(key_);
  if (found == resting_.end()) {
    return false;
  }
  Rest& rest = found->second;
  if (rest.calls == 0 || (rest.until != Clock::time_point::max() && Clock::now() >= rest.until)) {
    resting_.erase(found);
    return false;
  }
  if (!all_aligned(arguments)) {
    return false;
  }
  rest.calls -= rest.calls == kAlways ? 0U : 1U;
  return true;
}

PyObject* Uncaptured::call(PyObject* arguments) {
  const unsigned long me = PyThread_get_thread_ident();
  inside_.push_back(me);
  PyObject* function = Py_NewRef(function_);  // a collection may clear this object meanwhile
  PyObject* result = PyObject_CallOneArg(function, arguments);
  Py_DECREF(function);
  inside_.erase(std::find(inside_.begin(), inside_.end(), me));
  return result;
}

bool Uncaptured::occupied_by_others() const noexcept {
  const unsigned long me = PyThread_get_thread_ident();
  return std::any_of(inside_.begin(), inside_.end(),
                     [me](unsigned long thread) { return thread != me; });
}

int Uncaptured::traverse(visitproc visit, void* arg) const {
  Py_VISIT(function_);
  return 0;
}

}  // namespace pygraph::torch_bridge
