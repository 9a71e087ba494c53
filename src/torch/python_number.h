// Python's numbers as host numbers.
#pragma once

#include <Python.h>

#include <optional>

#include "pygraph/host_number.h"

namespace pygraph::torch_bridge {

/// Of exactly a float, or exactly an int that fits 64 bits; none of anything else, a bool among
/// them. Needs the GIL.
inline std::optional<NumberValue> python_number(PyObject* object) noexcept {
  if (PyFloat_CheckExact(object)) {
    return PyFloat_AS_DOUBLE(object);
  }
  if (!PyLong_CheckExact(object)) {
    return std::nullopt;
  }
  int overflow = 0;
  const std::int64_t value = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow == 0 ? std::optional<NumberValue>(value) : std::nullopt;
}

}  // namespace pygraph::torch_bridge
