#include "captured.h"

#include <algorithm>
#include <utility>

#include "../torch/timeline.h"
#include "untraced.h"

namespace pygraph::torch_bridge::callable {
namespace {

std::vector<PyObject*> roots_of(const Entry& entry, PyObject* positional, PyObject* named) {
  PyObject* const* more = PySequence_Fast_ITEMS(entry.roots.get());
  const auto count = static_cast<std::size_t>(PyTuple_GET_SIZE(entry.roots.get()));
  std::vector<PyObject*> roots(count + 2);
  roots[0] = positional;
  roots[1] = named;
  std::copy_n(more, count, roots.begin() + 2);
  return roots;
}

/// The object that stands for an argument of the graph; null where tensors that lay in one memory
/// do not any more.
PyObject* object_of(const Lifted& argument, const Found& found) noexcept {
  if (argument.object) {
    return argument.object.get();
  }
  PyObject* first = found.leaves[argument.leaf].get();
  if (argument.inside.empty()) [[likely]] {
    return first;
  }
  const TorchApi& api = torch_api();
  const CUdeviceptr start = address_of(api.data(first));
  const bool together = std::all_of(
      argument.inside.begin(), argument.inside.end(), [&](const Lifted::Inside& inside) {
        return address_of(api.data(found.leaves[inside.leaf].get())) ==
               start + static_cast<CUdeviceptr>(inside.offset);
      });
  return together ? first : nullptr;
}

/// Builds what the callable returns.
class Builder {
 public:
  Builder(const std::vector<Output>& output, const Found& found, PyObject* results)
      : output_(output), found_(found), results_(results) {}

  PythonRef build() {
    const Output& part = output_[at_++];
    switch (part.kind) {
      case Output::Kind::kResult:
        return PythonRef::to(PyTuple_GET_ITEM(results_, static_cast<Py_ssize_t>(part.index)));
      case Output::Kind::kLeaf:
        return PythonRef::to(found_.leaves[part.index].get());
      case Output::Kind::kObject:
        return PythonRef::to(found_.objects[part.index].get());
      case Output::Kind::kConstant:
        return PythonRef::to(part.object.get());
      case Output::Kind::kTuple:
        return as_tuple(children(part));
      case Output::Kind::kList:
        return children(part);
      case Output::Kind::kDict:
        return dict(part);
      case Output::Kind::kMade: {
        const PythonRef list = children(part);
        return list ? PythonRef::stolen(PyObject_CallOneArg(part.object.get(), list.get()))
                    : PythonRef();
      }
    }
    return {};
  }

 private:
  static PythonRef as_tuple(const PythonRef& list) {
    return list ? PythonRef::stolen(PyList_AsTuple(list.get())) : PythonRef();
  }

  PythonRef children(const Output& part) {
    PythonRef list = PythonRef::stolen(PyList_New(static_cast<Py_ssize_t>(part.children)));
    for (std::uint32_t i = 0; list && i < part.children; ++i) {
      PythonRef child = build();
      if (!child) {
        return {};
      }
      PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), child.release());
    }
    return list;
  }

  PythonRef dict(const Output& part) {
    PythonRef made = PythonRef::stolen(PyDict_New());
    for (std::uint32_t i = 0; made && i < part.children; ++i) {
      const PythonRef child = build();
      PyObject* key = PyTuple_GET_ITEM(part.object.get(), static_cast<Py_ssize_t>(i));
      if (!child || PyDict_SetItem(made.get(), key, child.get()) != 0) {
        return {};
      }
    }
    return made;
  }

  const std::vector<Output>& output_;
  const Found& found_;
  PyObject* results_;
  std::size_t at_ = 0;
};

}  // namespace

CapturedFunction::CapturedFunction(PyObject* miss, PyObject* count_up, PyObject* set_asked)
    : miss_(PythonRef::to(miss)),
      count_up_(PythonRef::to(count_up)),
      set_asked_(PythonRef::to(set_asked)) {}

void CapturedFunction::add(std::shared_ptr<const Entry> entry) {
  entries_.insert(entries_.begin(), std::move(entry));
}

void CapturedFunction::remove(PyObject* owner) noexcept {
  std::erase_if(entries_, [owner](const auto& entry) { return entry->owner.get() == owner; });
}

std::optional<std::size_t> CapturedFunction::first_mismatch(PyObject* owner, PyObject* positional,
                                                            PyObject* named) const {
  const auto entries = entries_;  // a comparison may run Python code
  for (const std::shared_ptr<const Entry>& entry : entries) {
    Found found;
    if (entry->owner.get() == owner &&
        !entry->structure.admits(roots_of(*entry, positional, named), found)) {
      return found.places - 1;
    }
  }
  return std::nullopt;
}

std::shared_ptr<const Entry> CapturedFunction::find(PyObject* positional, PyObject* named,
                                                    Found& found) {
  const Span span(Layer::kCompare);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const std::shared_ptr<const Entry> entry = entries_[i];  // a comparison may run Python code
    if (entry->modes->holds() &&
        entry->structure.admits_again(roots_of(*entry, positional, named), found)) {
      shortcuts_ += found.past_unchanged ? 1 : 0;
      if (i != 0 && i < entries_.size() && entries_[i] == entry) {
        std::rotate(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(i),
                    entries_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
      return entry;
    }
  }
  return nullptr;
}

bool CapturedFunction::count_up(const Entry& entry, const Found& found) const {
  if (entry.written.empty()) {
    return true;
  }
  const auto count = static_cast<Py_ssize_t>(entry.written.size());
  const PythonRef tensors = PythonRef::stolen(PyTuple_New(count));
  for (Py_ssize_t i = 0; tensors && i < count; ++i) {
    PyObject* leaf = found.leaves[entry.written[static_cast<std::size_t>(i)]].get();
    PyTuple_SET_ITEM(tensors.get(), i, Py_NewRef(leaf));
  }
  return tensors && PythonRef::stolen(PyObject_CallOneArg(count_up_.get(), tensors.get()));
}

bool CapturedFunction::rebind(const Entry& entry, const Found& found, PyObject* results) const {
  return std::all_of(entry.rebound.begin(), entry.rebound.end(), [&](const Rebound& each) {
    PyObject* value = each.result >= 0 ? PyTuple_GET_ITEM(results, each.result)
                      : each.result == -1
                          ? Py_None
                          : found.leaves[static_cast<std::size_t>(-2 - each.result)].get();
    if (!each.whole) {
      return found.slots[each.slot].set(value);
    }
    const PythonRef list = PythonRef::stolen(PyList_New(1));
    if (list) {
      PyList_SET_ITEM(list.get(), 0, Py_NewRef(value));
    }
    const PythonRef made =
        list ? PythonRef::stolen(PyObject_CallOneArg(each.whole.get(), list.get())) : PythonRef();
    return made && found.slots[each.slot].set(made.get());
  });
}

/// Serves a call by `entry`'s program: false if none takes it, or if it failed. `result` is a new
/// reference, or null with a Python error set.
bool CapturedFunction::serve(const Entry& entry, Found& found, PyObject*& result) const {
  if (entry.once_decided && !entry.dispatcher->goes_past()) {
    return false;
  }
  std::vector<PyObject*> items(entry.arguments.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i] = object_of(entry.arguments[i], found);
    if (items[i] == nullptr) {
      return false;
    }
  }
  Arguments arguments{items.data(), nullptr, items.size()};
  arguments.made_again = true;
  Dispatcher::Choice choice = entry.dispatcher->choose(arguments);
  if (choice.program == nullptr) {
    return false;
  }
  for (const Rebound& each : entry.rebound) {
    if (each.given_up && !found.slots[each.slot].set(Py_None)) {
      result = nullptr;
      return true;
    }
  }
  std::optional<Dispatcher::Launch> launched = entry.dispatcher->launch(choice, arguments);
  if (!launched) {
    return false;
  }
  const PythonRef results =
      PythonRef::stolen(entry.dispatcher->finish(std::move(*launched), arguments));
  choice.held.end();
  if (results.get() == Py_None) {
    return false;  // the program failed before it had written anything
  }
  const bool done = results && count_up(entry, found) && rebind(entry, found, results.get());
  result = done ? Builder(entry.output, found, results.get()).build().release() : nullptr;
  return true;
}

PyObject* CapturedFunction::call(PyObject* positional, PyObject* named) {
  const Span span(Layer::kEntry);
  const std::shared_ptr<const Entry> last = entries_.empty() ? nullptr : entries_.front();
  const bool chosen = last != nullptr && last->once_decided;
  std::optional<selection::CallClock> watch;
  if (chosen) {
    watch.emplace(last->dispatcher);
  }
  Found found;
  const std::shared_ptr<const Entry> entry =
      chosen && !last->dispatcher->goes_past() ? nullptr : find(positional, named, found);
  PyObject* result = nullptr;
  if (entry != nullptr && entry->dispatcher == nullptr) {
    return PyObject_Call(entry->as_it_is.get(), positional, named);
  }
  const Untraced untraced(set_asked_.get());
  if (entry != nullptr && serve(*entry, found, result)) {
    ++served_;
    return result;
  }
  PyObject* arguments[] = {positional, named};  // NOLINT(modernize-avoid-c-arrays)
  return PyObject_Vectorcall(miss_.get(), arguments, 2, nullptr);
}

int CapturedFunction::traverse(visitproc visit, void* arg) const {
  Py_VISIT(miss_.get());
  Py_VISIT(count_up_.get());
  Py_VISIT(set_asked_.get());
  for (const auto& entry : entries_) {
    Py_VISIT(entry->roots.get());
    Py_VISIT(entry->owner.get());
    Py_VISIT(entry->graph.get());
    Py_VISIT(entry->as_it_is.get());
    for (const Lifted& argument : entry->arguments) {
      Py_VISIT(argument.object.get());
    }
    for (const Rebound& each : entry->rebound) {
      Py_VISIT(each.whole.get());
    }
    for (const Output& part : entry->output) {
      Py_VISIT(part.object.get());
    }
    if (const int stop = entry->structure.traverse(visit, arg); stop != 0) {
      return stop;
    }
  }
  return 0;
}

void CapturedFunction::release() noexcept {
  entries_.clear();
  miss_ = {};
}

}  // namespace pygraph::torch_bridge::callable
