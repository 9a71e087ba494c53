// The way into a compiled function that goes straight to its graph.
//
// Between Dynamo's bytecode and a compiled graph stand AOTAutograd's and Inductor's Python
// wrappers. For most inference graphs they hand the same objects through, in another order. Where
// that was established (frontends/compile/entry_point.py says how), an Entry takes the caller's arguments,
// reorders them and calls the graph; everything else goes to `slow`, which is the whole stack.
#pragma once

#include <Python.h>

#include <utility>
#include <vector>

#include "index_bounds.h"
#include "python_ref.h"

namespace pygraph::torch_bridge {

class Dispatcher;

/// Makes the Python type, once; null with a Python error set on failure. Borrowed.
PyTypeObject* entry_type();

/// A new Entry around `slow`, a callable. Null with a Python error set on failure.
PyObject* make_entry(PyObject* slow);

/// From now on calls with `argument_count` positional arguments go to `dispatcher` (which `owner`
/// keeps alive): its argument i is the caller's number order[i], its result number results[j] is
/// the caller's result j. `order` and `results` are sequences of integers. Without `results`
/// (None), the graph is launched ahead of `slow`, which calls the dispatcher with the same
/// arguments. False with a Python error set when they are neither, or refer to arguments that do
/// not exist.
bool connect_entry(PyObject* entry, PyObject* owner, Dispatcher& dispatcher,
                   Py_ssize_t argument_count, PyObject* order, PyObject* results);

/// That a graph may be launched in front of guards.
struct EarlyPermit {
  EarlyPermit(std::vector<IndexBound> within, bool also_where_it_does_not_pay)
      : bounds(std::move(within)), always(also_where_it_does_not_pay) {}

  IndexBounds bounds;  ///< with indices within these
  bool always;         ///< even where it does not pay
};

/// What a connected entry leads to. `dispatcher` is null for one that is not connected.
struct Destination {
  Dispatcher* dispatcher = nullptr;
  PythonRef owner;                ///< keeps it
  EarlyPermit* permit = nullptr;  ///< null: not early. The entry keeps it
  std::vector<PyObject*> graphs;  ///< `arguments`, the caller's, in the order of the graph's
};
Destination entry_destination(PyObject* entry, const std::vector<PythonRef>& arguments);

/// The entry's graph may be launched in front of guards (early.h), with indices within `bounds`,
/// where that pays, or `always`. False with a Python error set when the entry is not connected, or
/// has no such argument.
bool allow_early(PyObject* entry, std::vector<IndexBound> bounds, bool always);

/// Whether its graph may be launched early and that is worth something now: what has indices to
/// look at would wait for the stream, if that has work to do.
bool worth_a_guess(PyObject* entry) noexcept;

/// Replaces `slow`.
void set_entry_slow(PyObject* entry, PyObject* slow);

}  // namespace pygraph::torch_bridge
