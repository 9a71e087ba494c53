#include "speculation.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "../torch/timeline.h"
#include "frames.h"
#include "guess.h"
#include "pending_launch.h"

namespace pygraph::torch_bridge::speculation {
namespace {

struct HookObject {
  PyObject_HEAD Knowledge* knowledge;
};

/// What torch calls at the end; the call ends with it even if torch never does.
struct EndObject {
  PyObject_HEAD Guess* guess;
};

HookObject* hook_of(PyObject* self) { return reinterpret_cast<HookObject*>(self); }  // NOLINT

void end(PyObject* self) {
  delete std::exchange(reinterpret_cast<EndObject*>(self)->guess, nullptr);
}

PyObject* call_end(PyObject* self, PyObject* /*arguments*/, PyObject* /*names*/) {
  end(self);
  Py_RETURN_NONE;
}

void deallocate_end(PyObject* self) {
  end(self);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyTypeObject* end_type() {
  static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(call_end)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(deallocate_end)},
                                {0, nullptr}};
  static PyType_Spec spec = {"pygraph._engine.EndOfCall", sizeof(EndObject), 0, Py_TPFLAGS_DEFAULT,
                             slots};
  static PyObject* type = PyType_FromSpec(&spec);
  return reinterpret_cast<PyTypeObject*>(type);  // NOLINT
}

PyObject* before(PyObject* self, PyObject* /*arguments*/, PyObject* /*names*/) {
  const Span span(Layer::kGuess);
  PyTypeObject* type = end_type();
  PyObject* made = type == nullptr ? nullptr : type->tp_alloc(type, 0);
  if (made == nullptr) {
    return nullptr;
  }
  Knowledge& knowledge = *hook_of(self)->knowledge;
  PythonRef frame = frame_of(knowledge.code.get());
  if (frame) {
    try {
      reinterpret_cast<EndObject*>(made)->guess =
          new Guess(self, knowledge, std::move(frame));  // NOLINT
    } catch (const std::exception&) {                    // no memory: then nothing is launched
      PyErr_Clear();
    }
  }
  return made;
}

void deallocate_hook(PyObject* self) {
  delete hook_of(self)->knowledge;  // NOLINT
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

/// What was launched on a guess for a call that has come, to be claimed; null if nothing was, and
/// then nothing launched on a guess is taken for anything any more. Borrowed, until the call ends.
PendingLaunch* arrive(const Arrival& call) noexcept {
  Guess* guess = Guess::innermost();
  if (guess == nullptr) {
    return nullptr;
  }
  try {
    return guess->arrive(call);
  } catch (const std::exception&) {
    return nullptr;  // no memory to learn
  }
}

PyObject* through(PyObject* wrappers, const Arrival& call, std::size_t flags) {
  const Span span(Layer::kWrappers);
  return PyObject_Vectorcall(wrappers, call.arguments, flags, nullptr);
}

PyObject* never_arrived(PyObject* result) {
  Py_DECREF(result);
  PyErr_SetString(
      PyExc_RuntimeError,
      "a CUDA graph was launched that writes its arguments, and the call that it was launched for "
      "has not come; please report this");
  return nullptr;
}

}  // namespace

PyTypeObject* hook_type() {
  static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(before)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(deallocate_hook)},
                                {Py_tp_doc, const_cast<char*>(  // NOLINT
                                                "Launches graphs before guards run; see "
                                                "speculation.h.")},
                                {0, nullptr}};
  static PyType_Spec spec = {"pygraph._engine.SpeculationHook", sizeof(HookObject), 0,
                             Py_TPFLAGS_DEFAULT, slots};
  static PyObject* type = PyType_FromSpec(&spec);
  return reinterpret_cast<PyTypeObject*>(type);  // NOLINT
}

PyObject* make_hook(PyObject* code, PyObject* variables, PyObject* wrapper, PyObject* between,
                    PyObject* plain) {
  if (!PyCode_Check(code) || !PyTuple_Check(variables) || PyTuple_GET_SIZE(variables) != 2 ||
      !PyCode_Check(wrapper) || !PyTuple_Check(between) || !PyTuple_Check(plain)) {
    PyErr_SetString(PyExc_TypeError, "code, a tuple of two names, code, and two tuples are needed");
    return nullptr;
  }
  PyTypeObject* type = hook_type();
  PyObject* self = type == nullptr ? nullptr : type->tp_alloc(type, 0);
  if (self == nullptr) {
    return nullptr;
  }
  auto knowledge = std::make_unique<Knowledge>();
  knowledge->code = PythonRef::to(code);
  knowledge->variables = PythonRef::to(variables);
  knowledge->wrapper = PythonRef::to(wrapper);
  knowledge->between = PythonRef::to(between);
  knowledge->plain_tuple = PythonRef::to(plain);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(plain); ++i) {
    knowledge->plain.push_back(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(plain, i)));
  }
  hook_of(self)->knowledge = knowledge.release();
  return self;
}

Counts counts_of(PyObject* hook) noexcept { return hook_of(hook)->knowledge->counts; }

void call_at_end(PyObject* hook, PyObject* callable) noexcept {
  hook_of(hook)->knowledge->at_end = PythonRef::to(callable);
}

std::uint64_t count_permits(PyObject* hook, std::int64_t change) noexcept {
  return hook_of(hook)->knowledge->permits += static_cast<std::uint64_t>(change);
}

bool allow(Target& target, std::vector<IndexBound> bounds, bool always) {
  const auto exists = [&](const IndexBound& bound) { return bound.argument < target.order.size(); };
  if (!std::all_of(bounds.begin(), bounds.end(), exists)) {
    PyErr_SetString(PyExc_IndexError, "a bound refers to an argument that does not exist");
    return false;
  }
  target.permit = std::make_unique<Permit>(std::move(bounds), always);
  return true;
}

bool claim(const Arrival& call, PyObject*& result) {
  PendingLaunch* launch = arrive(call);
  if (launch == nullptr || !launch->secure()) {
    return false;
  }
  result = launch->claim(call.view);
  launch->answer();
  return true;
}

PyObject* call_wrappers(const Arrival& call, PyObject* wrappers, std::size_t flags) {
  if (PendingLaunch* launch = arrive(call); launch != nullptr) {
    PyObject* result = through(wrappers, call, flags);
    launch->answer();
    return result;
  }
  const std::shared_ptr<Target> target = call.target;  // what the wrappers run may clear the other
  PendingLaunch launch(*target, call.view);
  if (launch.launch(target->dispatcher.choose(call.view)) == PendingLaunch::Start::kError) {
    return launch.claim(call.view);
  }
  PyObject* result = through(wrappers, call, flags);
  const bool lost = result != nullptr && !launch.claimed() && launch.leaves_traces();
  return lost ? never_arrived(result) : result;
}

void returned() noexcept {
  if (Guess* guess = Guess::innermost(); guess != nullptr) {
    guess->returned();
  }
}

PyObject* serve(Dispatcher& dispatcher, PyObject* list) {
  const Arguments given = Arguments::of_given(list);
  const selection::CallClock watch(&dispatcher);
  PendingLaunch* launch = PendingLaunch::find(dispatcher, given);
  return launch == nullptr ? dispatcher.call(list)
                           : Dispatcher::consume(list, launch->claim(given));
}

}  // namespace pygraph::torch_bridge::speculation
