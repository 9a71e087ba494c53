#include "early.h"

#include <exception>
#include <memory>
#include <utility>

#include "early_call.h"
#include "frames.h"

namespace pygraph::torch_bridge {
namespace {

struct EarlyObject {
  PyObject_HEAD Knowledge* knowledge;
};

/// What torch calls at the end; the call ends with it even if torch never does.
struct EndObject {
  PyObject_HEAD EarlyCall* call;
};

void end(PyObject* self) {
  delete std::exchange(reinterpret_cast<EndObject*>(self)->call, nullptr);
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

PyObject* call_early(PyObject* self, PyObject* /*arguments*/, PyObject* /*names*/) {
  PyTypeObject* type = end_type();
  PyObject* made = type == nullptr ? nullptr : type->tp_alloc(type, 0);
  if (made == nullptr) {
    return nullptr;
  }
  PythonRef frame =
      frame_of(reinterpret_cast<EarlyObject*>(self)->knowledge->code.get());  // NOLINT
  if (frame) {
    try {
      Knowledge& knowledge = *reinterpret_cast<EarlyObject*>(self)->knowledge;  // NOLINT
      reinterpret_cast<EndObject*>(made)->call =
          new EarlyCall(self, knowledge, std::move(frame));  // NOLINT
    } catch (const std::exception&) {  // no memory: then nothing is launched early
      PyErr_Clear();
    }
  }
  return made;
}

void deallocate_early(PyObject* self) {
  delete reinterpret_cast<EarlyObject*>(self)->knowledge;  // NOLINT
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

}  // namespace

PyTypeObject* early_type() {
  static PyType_Slot slots[] = {
      {Py_tp_call, reinterpret_cast<void*>(call_early)},
      {Py_tp_dealloc, reinterpret_cast<void*>(deallocate_early)},
      {Py_tp_doc, const_cast<char*>("Launches graphs before guards run; see early.h.")},  // NOLINT
      {0, nullptr}};
  static PyType_Spec spec = {"pygraph._engine.Early", sizeof(EarlyObject), 0, Py_TPFLAGS_DEFAULT,
                             slots};
  static PyObject* type = PyType_FromSpec(&spec);
  return reinterpret_cast<PyTypeObject*>(type);  // NOLINT
}

PyObject* make_early(PyObject* code, PyObject* wrapper, PyObject* between, PyObject* plain) {
  if (!PyCode_Check(code) || !PyCode_Check(wrapper) || !PyTuple_Check(between) ||
      !PyTuple_Check(plain)) {
    PyErr_SetString(PyExc_TypeError, "two code objects and two tuples are needed");
    return nullptr;
  }
  PyTypeObject* type = early_type();
  PyObject* self = type == nullptr ? nullptr : type->tp_alloc(type, 0);
  if (self == nullptr) {
    return nullptr;
  }
  auto knowledge = std::make_unique<Knowledge>();
  knowledge->code = PythonRef::to(code);
  knowledge->wrapper = PythonRef::to(wrapper);
  knowledge->between = PythonRef::to(between);
  knowledge->plain_tuple = PythonRef::to(plain);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(plain); ++i) {
    knowledge->plain.push_back(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(plain, i)));
  }
  reinterpret_cast<EarlyObject*>(self)->knowledge = knowledge.release();  // NOLINT
  return self;
}

EarlyCounts early_counts(PyObject* early) noexcept {
  return reinterpret_cast<EarlyObject*>(early)->knowledge->counts;  // NOLINT
}

Flight* early_arrival(PyObject* entry, PyObject* const* arguments, Py_ssize_t count,
                      const Arguments& view, bool may_learn) noexcept {
  EarlyCall* call = EarlyCall::innermost();
  if (call == nullptr) {
    return nullptr;
  }
  try {
    return call->arrive(entry, arguments, count, view, may_learn);
  } catch (const std::exception&) {
    return nullptr;  // no memory to learn
  }
}

}  // namespace pygraph::torch_bridge
