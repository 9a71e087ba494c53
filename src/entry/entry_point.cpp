#include "entry_point.h"

#include <structmember.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "../torch/timeline.h"

namespace pygraph::torch_bridge {
namespace {

using speculation::Target;

/// A Python object by hand: the vectorcall protocol passes the caller's own array of arguments,
/// which a binding generator would copy into a tuple first.
struct EntryPointObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* slow;
  PyObject* watcher;                   ///< null: nobody
  std::shared_ptr<Target> target;      ///< null: everything is slow
  std::vector<std::uint32_t> results;  ///< empty: the dispatcher's results as they are
  bool wrapped;                        ///< the graph is launched, and `slow` makes the call
  PyObject* weak_references;
};

EntryPointObject* cast(PyObject* self) {
  return reinterpret_cast<EntryPointObject*>(self);  // NOLINT
}

PyObject* pick(PyObject* tuple, const std::vector<std::uint32_t>& results) {
  PyObject* picked = PyTuple_New(static_cast<Py_ssize_t>(results.size()));
  for (std::size_t i = 0; picked != nullptr && i < results.size(); ++i) {
    PyTuple_SET_ITEM(picked, static_cast<Py_ssize_t>(i),
                     Py_NewRef(PySequence_Fast_GET_ITEM(tuple, results[i])));
  }
  Py_DECREF(tuple);
  return picked;
}

/// Whoever clocks the call since before its guards hears of its end.
class Returning {
 public:
  Returning() = default;
  ~Returning() {
    if (selection::Contest::under_way() != 0) [[unlikely]] {
      speculation::returned();
    }
  }
  Returning(const Returning&) = delete;
  Returning& operator=(const Returning&) = delete;
};

PyObject* serve(EntryPointObject* self, PyObject* const* arguments, std::size_t flags,
                PyObject* names) {
  const Target* target = self->target.get();
  if (target != nullptr && names == nullptr &&
      PyVectorcall_NARGS(flags) == target->argument_count) {
    Timeline::note(Layer::kEntry, true);
    const speculation::Arrival arrival{
        self->target, arguments, {arguments, target->order.data(), target->order.size()}};
    const Returning returning;
    const selection::CallClock watch(&target->dispatcher);
    if (self->wrapped) {
      PyObject* result = speculation::call_wrappers(arrival, self->slow, flags);
      Timeline::note(Layer::kEntry, false);
      return result;
    }
    PyObject* result = nullptr;
    if (speculation::claim(arrival, result) || target->dispatcher.try_call(arrival.view, result)) {
      Timeline::note(Layer::kEntry, false);
      return result == nullptr || self->results.empty() ? result : pick(result, self->results);
    }
    return PyObject_Vectorcall(self->slow, arguments, flags, nullptr);
  }
  return PyObject_Vectorcall(self->slow, arguments, flags, names);
}

/// The call is the caller's, whatever becomes of who watches.
void tell(PyObject* watcher, PyObject* const* arguments, Py_ssize_t count, PyObject* results) {
  const PythonRef told = PythonRef::to(watcher);  // it may end the watch
  const PythonRef given = PythonRef::stolen(PyTuple_New(count));
  for (Py_ssize_t i = 0; given && i < count; ++i) {
    PyTuple_SET_ITEM(given.get(), i, Py_NewRef(arguments[i]));
  }
  if (!given ||
      !PythonRef::stolen(PyObject_CallFunctionObjArgs(told.get(), given.get(), results, nullptr))) {
    PyErr_WriteUnraisable(told.get());
  }
}

PyObject* call(PyObject* callable, PyObject* const* arguments, std::size_t flags, PyObject* names) {
  EntryPointObject* self = cast(callable);
  PyObject* results = serve(self, arguments, flags, names);
  if (self->watcher != nullptr && results != nullptr) [[unlikely]] {
    tell(self->watcher, arguments, PyVectorcall_NARGS(flags), results);
  }
  return results;
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(cast(self)->slow);
  Py_VISIT(cast(self)->watcher);
  if (const std::shared_ptr<Target>& target = cast(self)->target; target != nullptr) {
    Py_VISIT(target->owner.get());
  }
  return 0;
}

int clear(PyObject* self) {
  const std::shared_ptr<Target> gone = std::move(cast(self)->target);
  Py_CLEAR(cast(self)->slow);
  Py_CLEAR(cast(self)->watcher);
  return 0;
}

void deallocate(PyObject* self) {
  PyObject_GC_UnTrack(self);
  if (cast(self)->weak_references != nullptr) {
    PyObject_ClearWeakRefs(self);
  }
  clear(self);
  cast(self)->target.~shared_ptr();
  cast(self)->results.~vector();
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(EntryPointObject, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(EntryPointObject, weak_references), READONLY,
     nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_members, members},
    {Py_tp_doc,
     const_cast<char*>("The way into a compiled function; see entry_point.h.")},  // NOLINT
    {0, nullptr}};

PyType_Spec spec = {"pygraph._engine.EntryPoint", sizeof(EntryPointObject), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots};

bool read_indices(PyObject* sequence, Py_ssize_t below, std::vector<std::uint32_t>& indices) {
  PyObject* fast = PySequence_Fast(sequence, "a sequence of integers is needed");
  if (fast == nullptr) {
    return false;
  }
  bool good = true;
  for (Py_ssize_t i = 0; good && i < PySequence_Fast_GET_SIZE(fast); ++i) {
    const long index = PyLong_AsLong(PySequence_Fast_GET_ITEM(fast, i));
    good = index >= 0 && (below < 0 || index < below);
    indices.push_back(static_cast<std::uint32_t>(index));
  }
  Py_DECREF(fast);
  if (!good && PyErr_Occurred() == nullptr) {
    PyErr_SetString(PyExc_IndexError, "an index refers to an argument that does not exist");
  }
  return good;
}

}  // namespace

PyTypeObject* entry_point_type() {
  static PyObject* type = PyType_FromSpec(&spec);
  return reinterpret_cast<PyTypeObject*>(type);  // NOLINT
}

PyObject* make_entry_point(PyObject* slow) {
  PyTypeObject* type = entry_point_type();
  PyObject* self = type == nullptr ? nullptr : type->tp_alloc(type, 0);
  if (self == nullptr) {
    return nullptr;
  }
  EntryPointObject* entry = cast(self);
  entry->vectorcall = call;
  entry->slow = Py_NewRef(slow);
  entry->watcher = nullptr;
  new (&entry->target) std::shared_ptr<Target>();
  new (&entry->results) std::vector<std::uint32_t>();
  return self;
}

bool connect_entry_point(PyObject* self, PyObject* owner, Dispatcher& dispatcher,
                         Py_ssize_t argument_count, PyObject* order, PyObject* results) {
  EntryPointObject* entry = cast(self);
  std::vector<std::uint32_t> arguments;
  std::vector<std::uint32_t> picked;
  const bool wrapped = results == Py_None;
  if (!read_indices(order, argument_count, arguments) ||
      (!wrapped && !read_indices(results, -1, picked))) {
    return false;
  }
  entry->wrapped = wrapped;
  entry->results = std::move(picked);
  entry->target = std::make_shared<Target>(
      Target{dispatcher, PythonRef::to(owner), argument_count, std::move(arguments)});
  return true;
}

Target* target_of(PyObject* entry) {
  Target* target = cast(entry)->target.get();
  if (target == nullptr) {
    PyErr_SetString(PyExc_IndexError, "the entry point is not connected");
  }
  return target;
}

void set_slow(PyObject* self, PyObject* slow) { Py_XSETREF(cast(self)->slow, Py_NewRef(slow)); }

void set_watcher(PyObject* self, PyObject* watcher) {
  Py_XSETREF(cast(self)->watcher, Py_XNewRef(watcher));
}

}  // namespace pygraph::torch_bridge
