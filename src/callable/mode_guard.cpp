#include "mode_guard.h"

#include <algorithm>

namespace pygraph::torch_bridge::callable {
namespace {

bool answered_the_same(const ModeGuard::Question& question) noexcept {
  PyObject* function = question.function.get();
  const PythonRef answer =
      PythonRef::stolen(question.argument ? PyObject_CallOneArg(function, question.argument.get())
                                          : PyObject_CallNoArgs(function));
  const int same =
      answer ? PyObject_RichCompareBool(answer.get(), question.answer.get(), Py_EQ) : -1;
  if (same < 0) {
    PyErr_Clear();
  }
  return same == 1;
}

}  // namespace

bool ModeGuard::holds() const noexcept {
  return std::all_of(questions_.begin(), questions_.end(), answered_the_same);
}

}  // namespace pygraph::torch_bridge::callable
