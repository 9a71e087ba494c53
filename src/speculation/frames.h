// Python frames, as far as the way into a compiled callable goes by them (guess.cpp). Needs the
// GIL.
#pragma once

#include <Python.h>

#include "../torch/python_ref.h"

namespace pygraph::torch_bridge::speculation {

/// A local variable of a frame; empty if it has none of that name.
PythonRef variable(PyObject* frame, PyObject* name);
PythonRef code_of(PyObject* frame);
/// The frame that called it; empty for the outermost.
PythonRef back(PyObject* frame);
/// The frame whose code is `code`, the running one or the one that called it; empty if neither is.
PythonRef frame_of(PyObject* code);

}  // namespace pygraph::torch_bridge::speculation
