// An owned reference to a Python object.
#pragma once

#include <Python.h>

#include <utility>

namespace pygraph::torch_bridge {

/// Null, or one reference. Needs the GIL wherever a reference is given up.
class PythonRef {
 public:
  PythonRef() = default;
  static PythonRef stolen(PyObject* object) noexcept { return PythonRef(object); }
  static PythonRef to(PyObject* object) noexcept { return PythonRef(Py_XNewRef(object)); }
  ~PythonRef() { Py_XDECREF(object_); }
  PythonRef(const PythonRef&) = delete;
  PythonRef& operator=(const PythonRef&) = delete;
  PythonRef(PythonRef&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  PythonRef& operator=(PythonRef&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  [[nodiscard]] PyObject* get() const noexcept { return object_; }
  [[nodiscard]] PyObject* release() noexcept { return std::exchange(object_, nullptr); }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  explicit PythonRef(PyObject* object) noexcept : object_(object) {}
  PyObject* object_ = nullptr;
};

}  // namespace pygraph::torch_bridge
