// The way into a compiled function that goes straight to its graph.
//
// Between Dynamo's bytecode and a compiled graph stand AOTAutograd's and Inductor's Python
// wrappers. For most inference graphs they hand the same objects through, in another order. Where
// that was established (frontends/compile/entry_point.py says how), an entry point takes the
// caller's arguments, reorders them and calls the graph. Where the wrappers have work to do, the
// graph is launched before them (speculation/speculation.h). Everything else goes to `slow`, which
// is the whole stack.
#pragma once

#include <Python.h>

#include "../speculation/speculation.h"

namespace pygraph::torch_bridge {

/// Makes the Python type, once; null with a Python error set on failure. Borrowed.
PyTypeObject* entry_point_type();

/// A new one around `slow`, a callable. Null with a Python error set on failure.
PyObject* make_entry_point(PyObject* slow);

/// From now on calls with `argument_count` positional arguments go to `dispatcher` (which `owner`
/// keeps alive): its argument i is the caller's number order[i], its result number results[j] is
/// the caller's result j. `order` and `results` are sequences of integers. Without `results`
/// (None), the graph is launched before `slow`, which calls the dispatcher with the same
/// arguments. False with a Python error set when they are neither, or refer to arguments that do
/// not exist.
bool connect_entry_point(PyObject* entry, PyObject* owner, Dispatcher& dispatcher,
                         Py_ssize_t argument_count, PyObject* order, PyObject* results);

/// What it leads to. Null with a Python error set when it is not connected. Borrowed.
speculation::Target* target_of(PyObject* entry);

/// Replaces `slow`.
void set_slow(PyObject* entry, PyObject* slow);

/// Has `watcher(arguments, results)` called, tuples, behind each call that does not fail; null: no
/// one any more.
void set_watcher(PyObject* entry, PyObject* watcher);

}  // namespace pygraph::torch_bridge
