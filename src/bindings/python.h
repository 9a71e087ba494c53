// Small things that bindings of calls share.
#pragma once

#include <nanobind/nanobind.h>

namespace pygraph::bindings {

inline nanobind::object stolen(PyObject* result) {
  if (result == nullptr) {
    throw nanobind::python_error();
  }
  return nanobind::steal(result);
}

inline void require_list(nanobind::handle arguments) {
  if (!PyList_Check(arguments.ptr())) {
    throw nanobind::type_error("a graph call takes one list of arguments");
  }
}

}  // namespace pygraph::bindings
