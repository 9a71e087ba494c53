#include "entry.h"

#include <structmember.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "dispatcher.h"
#include "early.h"

namespace pygraph::torch_bridge {
namespace {

/// A Python object by hand: the vectorcall protocol passes the caller's own array of arguments,
/// which a binding generator would copy into a tuple first.
struct EntryObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* slow;
  PyObject* owner;
  Dispatcher* dispatcher;  ///< null: everything is slow
  Py_ssize_t argument_count;
  std::vector<std::uint32_t> order;
  std::vector<std::uint32_t> results;  ///< empty: the dispatcher's results as they are
  std::unique_ptr<EarlyPermit> early;  ///< null: not to be launched in front of guards
  bool ahead;                          ///< the graph is launched, and `slow` makes the call
  PyObject* weak_references;
};

EntryObject* cast(PyObject* self) { return reinterpret_cast<EntryObject*>(self); }  // NOLINT

PyObject* pick(PyObject* tuple, const std::vector<std::uint32_t>& results) {
  PyObject* picked = PyTuple_New(static_cast<Py_ssize_t>(results.size()));
  for (std::size_t i = 0; picked != nullptr && i < results.size(); ++i) {
    PyTuple_SET_ITEM(picked, static_cast<Py_ssize_t>(i),
                     Py_NewRef(PySequence_Fast_GET_ITEM(tuple, results[i])));
  }
  Py_DECREF(tuple);
  return picked;
}

PyObject* never_arrived(PyObject* result) {
  Py_DECREF(result);
  PyErr_SetString(
      PyExc_RuntimeError,
      "a CUDA graph was launched that writes its arguments or draws random numbers, and "
      "the call that it was launched for has not come; please report this");
  return nullptr;
}

PyObject* call_ahead(EntryObject* self, const Arguments& view, PyObject* const* arguments,
                     std::size_t flags) {
  Flight flight(*self->dispatcher, view);
  if (self->dispatcher->start(view, flight) == Dispatcher::Start::kError) {
    return nullptr;
  }
  PyObject* result = PyObject_Vectorcall(self->slow, arguments, flags, nullptr);
  const bool lost = result != nullptr && !flight.landed() && flight.leaves_traces();
  return lost ? never_arrived(result) : result;
}

/// Which comes to the dispatcher, where `early` lands.
PyObject* call_slow(EntryObject* self, Flight& early, PyObject* const* arguments,
                    std::size_t flags) {
  PyObject* result = PyObject_Vectorcall(self->slow, arguments, flags, nullptr);
  early.answer();
  return result;
}

PyObject* call(PyObject* callable, PyObject* const* arguments, std::size_t flags, PyObject* names) {
  EntryObject* self = cast(callable);
  if (self->dispatcher != nullptr && names == nullptr &&
      PyVectorcall_NARGS(flags) == self->argument_count) {
    const Arguments view{arguments, self->order.data(), self->order.size()};
    Flight* early =
        early_arrival(callable, arguments, self->argument_count, view, self->early != nullptr);
    if (self->ahead) {
      return early != nullptr ? call_slow(self, *early, arguments, flags)
                              : call_ahead(self, view, arguments, flags);
    }
    PyObject* result = nullptr;
    if (early != nullptr) {
      result = self->dispatcher->land(*early, view);
      early->answer();
    }
    if (early != nullptr || self->dispatcher->try_call(view, result)) {
      return result == nullptr || self->results.empty() ? result : pick(result, self->results);
    }
  }
  return PyObject_Vectorcall(self->slow, arguments, flags, names);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(cast(self)->slow);
  Py_VISIT(cast(self)->owner);
  return 0;
}

int clear(PyObject* self) {
  cast(self)->dispatcher = nullptr;
  Py_CLEAR(cast(self)->slow);
  Py_CLEAR(cast(self)->owner);
  return 0;
}

void deallocate(PyObject* self) {
  PyObject_GC_UnTrack(self);
  if (cast(self)->weak_references != nullptr) {
    PyObject_ClearWeakRefs(self);
  }
  clear(self);
  cast(self)->order.~vector();
  cast(self)->results.~vector();
  cast(self)->early.~unique_ptr();
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(EntryObject, vectorcall), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(EntryObject, weak_references), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_members, members},
    {Py_tp_doc, const_cast<char*>("The way into a compiled function; see entry.h.")},  // NOLINT
    {0, nullptr}};

PyType_Spec spec = {"pygraph._engine.Entry", sizeof(EntryObject), 0,
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

PyTypeObject* entry_type() {
  static PyObject* type = PyType_FromSpec(&spec);
  return reinterpret_cast<PyTypeObject*>(type);  // NOLINT
}

PyObject* make_entry(PyObject* slow) {
  PyTypeObject* type = entry_type();
  PyObject* self = type == nullptr ? nullptr : type->tp_alloc(type, 0);
  if (self == nullptr) {
    return nullptr;
  }
  EntryObject* entry = cast(self);
  entry->vectorcall = call;
  entry->slow = Py_NewRef(slow);
  new (&entry->order) std::vector<std::uint32_t>();
  new (&entry->results) std::vector<std::uint32_t>();
  new (&entry->early) std::unique_ptr<EarlyPermit>();
  return self;
}

bool connect_entry(PyObject* self, PyObject* owner, Dispatcher& dispatcher,
                   Py_ssize_t argument_count, PyObject* order, PyObject* results) {
  EntryObject* entry = cast(self);
  std::vector<std::uint32_t> arguments;
  std::vector<std::uint32_t> picked;
  const bool ahead = results == Py_None;
  if (!read_indices(order, argument_count, arguments) ||
      (!ahead && !read_indices(results, -1, picked))) {
    return false;
  }
  entry->ahead = ahead;
  entry->order = std::move(arguments);
  entry->results = std::move(picked);
  entry->argument_count = argument_count;
  Py_XSETREF(entry->owner, Py_NewRef(owner));
  entry->dispatcher = &dispatcher;
  return true;
}

Destination entry_destination(PyObject* self, const std::vector<PythonRef>& arguments) {
  const EntryObject* entry = cast(self);
  Destination destination;
  if (entry->dispatcher == nullptr ||
      static_cast<Py_ssize_t>(arguments.size()) != entry->argument_count) {
    return destination;
  }
  destination.dispatcher = entry->dispatcher;
  destination.owner = PythonRef::to(entry->owner);
  destination.permit = entry->early.get();
  destination.graphs.reserve(entry->order.size());
  for (const std::uint32_t index : entry->order) {
    destination.graphs.push_back(arguments[index].get());
  }
  return destination;
}

bool allow_early(PyObject* entry, std::vector<IndexBound> bounds, bool always) {
  EntryObject* self = cast(entry);
  const auto exists = [&](const IndexBound& bound) { return bound.argument < self->order.size(); };
  if (self->dispatcher == nullptr || !std::all_of(bounds.begin(), bounds.end(), exists)) {
    PyErr_SetString(PyExc_IndexError, self->dispatcher == nullptr
                                          ? "the entry is not connected"
                                          : "a bound refers to an argument that does not exist");
    return false;
  }
  self->early = std::make_unique<EarlyPermit>(std::move(bounds), always);
  return true;
}

bool worth_a_guess(PyObject* entry) noexcept {
  const EntryObject* self = cast(entry);
  return self->dispatcher != nullptr && self->early != nullptr &&
         (self->early->bounds.bounds().empty() || self->dispatcher->idle());
}

void set_entry_slow(PyObject* self, PyObject* slow) {
  Py_XSETREF(cast(self)->slow, Py_NewRef(slow));
}

}  // namespace pygraph::torch_bridge
