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

/// What is handed over beside the caller's arguments as they are.
struct Beside {
  struct Part {
    std::uint32_t of;  ///< of the caller's arguments
    PythonRef name;
  };
  std::vector<Part> parts;
  std::vector<std::uint32_t> counted;  ///< of the caller's arguments
  PythonRef count_up;
};

/// A Python object by hand: the vectorcall protocol passes the caller's own array of arguments,
/// which a binding generator would copy into a tuple first.
struct EntryPointObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* slow;
  PyObject* watcher;                   ///< null: nobody
  std::shared_ptr<Target> target;      ///< null: everything is slow
  std::vector<std::uint32_t> results;  ///< empty: the dispatcher's results as they are
  bool wrapped;                        ///< the graph is launched, and `slow` makes the call
  std::unique_ptr<Beside> beside;      ///< null: nothing
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

/// Counts up what the call has written. `result` is taken, and returned if that can be done.
PyObject* count_up(const Beside& beside, PyObject* const* arguments, PyObject* result) {
  if (beside.counted.empty()) {
    return result;
  }
  const auto count = static_cast<Py_ssize_t>(beside.counted.size());
  const PythonRef written = PythonRef::stolen(PyTuple_New(count));
  for (Py_ssize_t i = 0; written && i < count; ++i) {
    PyTuple_SET_ITEM(written.get(), i,
                     Py_NewRef(arguments[beside.counted[static_cast<std::size_t>(i)]]));
  }
  if (!written || !PythonRef::stolen(PyObject_CallOneArg(beside.count_up.get(), written.get()))) {
    Py_CLEAR(result);
  }
  return result;
}

/// The same as Dispatcher::try_call(), with parts of arguments besides. False: not served, and no
/// error is set.
bool serve_with_parts(const Target& target, const Beside& beside, PyObject* const* arguments,
                      PyObject*& result) {
  std::vector<PythonRef> parts;
  std::vector<PyObject*> all(arguments, arguments + target.argument_count);
  parts.reserve(beside.parts.size());
  all.reserve(all.size() + beside.parts.size());
  for (const Beside::Part& part : beside.parts) {
    parts.push_back(PythonRef::stolen(PyObject_GetAttr(arguments[part.of], part.name.get())));
    if (!parts.back()) {
      PyErr_Clear();  // the wrappers say what is wrong with it
      return false;
    }
    all.push_back(parts.back().get());
  }
  if (!target.dispatcher.try_call({all.data(), target.order.data(), target.order.size()}, result)) {
    return false;
  }
  if (result != nullptr) {
    result = count_up(beside, arguments, result);
  }
  return true;
}

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
    const bool served = self->beside != nullptr
                            ? serve_with_parts(*target, *self->beside, arguments, result)
                            : speculation::claim(arrival, result) ||
                                  target->dispatcher.try_call(arrival.view, result);
    if (served) {
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
  if (const Beside* beside = cast(self)->beside.get(); beside != nullptr) {
    Py_VISIT(beside->count_up.get());
  }
  return 0;
}

int clear(PyObject* self) {
  const std::shared_ptr<Target> gone = std::move(cast(self)->target);
  const std::unique_ptr<Beside> besides = std::move(cast(self)->beside);
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
  cast(self)->beside.~unique_ptr();
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

bool read_parts(PyObject* sequence, Py_ssize_t below, std::vector<Beside::Part>& parts) {
  const PythonRef fast = PythonRef::stolen(PySequence_Fast(sequence, "a sequence is needed"));
  for (Py_ssize_t i = 0; fast && i < PySequence_Fast_GET_SIZE(fast.get()); ++i) {
    Py_ssize_t of = 0;
    PyObject* name = nullptr;
    if (PyArg_ParseTuple(PySequence_Fast_GET_ITEM(fast.get(), i), "nU", &of, &name) == 0) {
      return false;
    }
    if (of < 0 || of >= below) {
      PyErr_SetString(PyExc_IndexError, "a part is of an argument that does not exist");
      return false;
    }
    parts.push_back({static_cast<std::uint32_t>(of), PythonRef::to(name)});
  }
  return static_cast<bool>(fast);
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
  new (&entry->beside) std::unique_ptr<Beside>();
  return self;
}

bool connect_entry_point(PyObject* self, PyObject* owner, Dispatcher& dispatcher,
                         const Handover& given) {
  EntryPointObject* entry = cast(self);
  std::vector<std::uint32_t> arguments;
  std::vector<std::uint32_t> picked;
  auto beside = std::make_unique<Beside>();
  const bool wrapped = given.results == Py_None;
  if (!read_parts(given.parts, given.argument_count, beside->parts) ||
      !read_indices(given.counted, given.argument_count, beside->counted)) {
    return false;
  }
  const auto parts = static_cast<Py_ssize_t>(beside->parts.size());
  if (!read_indices(given.order, given.argument_count + parts, arguments) ||
      (!wrapped && !read_indices(given.results, -1, picked))) {
    return false;
  }
  const bool anything = !beside->parts.empty() || !beside->counted.empty();
  if (anything && wrapped) {
    PyErr_SetString(PyExc_ValueError,
                    "wrappers that run have nothing handed over beside arguments");
    return false;
  }
  beside->count_up = PythonRef::to(given.count_up);
  entry->beside = anything ? std::move(beside) : nullptr;
  entry->wrapped = wrapped;
  entry->results = std::move(picked);
  entry->target = std::make_shared<Target>(
      Target{dispatcher, PythonRef::to(owner), given.argument_count, std::move(arguments)});
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
