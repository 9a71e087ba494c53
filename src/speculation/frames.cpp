#include "frames.h"

namespace pygraph::torch_bridge::speculation {

PythonRef variable(PyObject* frame, PyObject* name) {
#if PY_VERSION_HEX >= 0x030C0000
  PyObject* found = PyFrame_GetVar(reinterpret_cast<PyFrameObject*>(frame), name);  // NOLINT
#else
  const PythonRef locals = PythonRef::stolen(PyObject_GetAttrString(frame, "f_locals"));
  PyObject* found =
      locals && PyDict_Check(locals.get()) ? PyDict_GetItem(locals.get(), name) : nullptr;
  Py_XINCREF(found);
#endif
  if (found == nullptr) {
    PyErr_Clear();
  }
  return PythonRef::stolen(found);
}

PythonRef code_of(PyObject* frame) {
  return PythonRef::stolen(reinterpret_cast<PyObject*>(
      PyFrame_GetCode(reinterpret_cast<PyFrameObject*>(frame))));  // NOLINT
}

PythonRef back(PyObject* frame) {
  return PythonRef::stolen(reinterpret_cast<PyObject*>(
      PyFrame_GetBack(reinterpret_cast<PyFrameObject*>(frame))));  // NOLINT
}

PythonRef frame_of(PyObject* code) {
  PythonRef frame =
      PythonRef::stolen(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
  for (int depth = 0; frame && depth < 2; ++depth) {
    if (code_of(frame.get()).get() == code) {
      return frame;
    }
    frame = back(frame.get());
  }
  return {};
}

}  // namespace pygraph::torch_bridge::speculation
