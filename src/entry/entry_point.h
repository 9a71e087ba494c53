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

/// How the caller's arguments become a graph's, and its results the caller's.
struct Handover {
  Py_ssize_t argument_count;  ///< positional ones of the caller's
  /// A sequence of integers: the graph's argument i is the caller's number order[i], or part number
  /// order[i] - argument_count.
  PyObject* order;
  /// The same: the graph's result number results[j] is the caller's result j. None: the graph is
  /// launched before `slow`, which calls the dispatcher with the same arguments.
  PyObject* results;
  /// A sequence of (argument, attribute): what an argument that is made of tensors is made of.
  PyObject* parts;
  /// A sequence of integers: arguments whose versions `count_up`, called with a tuple of them,
  /// counts up behind each call.
  PyObject* counted;
  PyObject* count_up;
};

/// From now on calls go to `dispatcher` (which `owner` keeps alive). False with a Python error set
/// when what is handed over is of another kind, or refers to arguments that do not exist.
bool connect_entry_point(PyObject* entry, PyObject* owner, Dispatcher& dispatcher,
                         const Handover& handover);

/// What it leads to. Null with a Python error set when it is not connected. Borrowed.
speculation::Target* target_of(PyObject* entry);

/// Replaces `slow`.
void set_slow(PyObject* entry, PyObject* slow);

/// Has `watcher(arguments, results)` called, tuples, behind each call that does not fail; null: no
/// one any more.
void set_watcher(PyObject* entry, PyObject* watcher);

}  // namespace pygraph::torch_bridge
