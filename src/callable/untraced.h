// Dynamo, kept from looking at our own code.
//
// torch.compile has CPython ask Dynamo about each frame of Python code that begins on the thread
// (PEP 523), to compile it. A captured callable may be called by such code: what it runs of ours,
// and what runs while it is watched and captured, must run as it is written.
#pragma once

#include <Python.h>

#include "../torch/python_ref.h"

namespace pygraph::torch_bridge::callable {

/// While it exists, Dynamo is not asked about frames of this thread. Needs the GIL. Keeps a Python
/// error that is set.
class Untraced {
 public:
  /// `set_asked` sets what is asked about the frames of this thread (None: nobody), and returns
  /// what was: torch._C._dynamo.eval_frame.set_eval_frame. Null: nobody ever is. Borrowed.
  explicit Untraced(PyObject* set_asked) noexcept {
    const auto asks = _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
    if (set_asked == nullptr || asks == _PyEval_EvalFrameDefault) {
      return;  // nobody is, on no thread
    }
    set_asked_ = set_asked;
    asked_ = PythonRef::stolen(PyObject_CallOneArg(set_asked_, Py_None));
    if (!asked_) {
      PyErr_Clear();
    }
  }
  ~Untraced() {
    if (!asked_) {
      return;
    }
    PyObject* type = nullptr;
    PyObject* error = nullptr;
    PyObject* trace = nullptr;
    PyErr_Fetch(&type, &error, &trace);
    if (!PythonRef::stolen(PyObject_CallOneArg(set_asked_, asked_.get()))) {
      PyErr_Clear();
    }
    PyErr_Restore(type, error, trace);
  }
  Untraced(const Untraced&) = delete;
  Untraced& operator=(const Untraced&) = delete;

 private:
  PyObject* set_asked_ = nullptr;
  PythonRef asked_;
};

}  // namespace pygraph::torch_bridge::callable
