// Launching a graph before it is known that its call will come.
//
// A call of a compiled callable is on its way for a while before it comes to its graph. In front of
// it are Dynamo's guards, which check that the compiled code is for this call, and in a forward
// AOTAutograd's wrappers and an autograd.Function. That is 10 us for a small model and a
// millisecond for a large one, during which the GPU waits, and nearly always it is known from the
// start which graph is called, and with what. So: launch now, and hand the results over when the
// call has come. What was launched is a PendingLaunch. The call claims it if it comes with the very
// same objects; if it does not come so, the launch is dropped, and its results are thrown away.
// Everything in front of the graph still runs and still decides. Only the GPU does not wait for it.
//
// There are two places to launch from.
//
// Ahead of the wrappers. The guards have passed and the entry point (torch/entry_point.h) has been
// called. It launches, calls the wrappers, and they come to the graph's place (serve()).
// frontends/compile/entry_point.py establishes that this happens in each call of the function, with
// the same objects. So the graph may do anything, such as write its arguments. A call that ends
// without having claimed such a graph is an error.
//
// In front of the guards, on a guess. Torch calls a hook before them, and the guess goes by what
// earlier calls of the same shape led to (call_shape.h). The guess may be wrong: the guards fail,
// or the user's code runs first. A wrong guess does no harm, for:
//
// - The graph writes nothing but memory of its own, and draws no random numbers (without_trace).
// - What it reads is there: the caller's tensors have the shapes that they had, what belongs to the
//   callable is alive and stands where it stood.
// - Where it reads depends on nothing that it reads but indices that the host has looked at: an
//   index that is right for one graph may be out of bounds in another, which ends the process
//   (frontends/compile/index_bounds.py asks the kernels for them, index_bounds.h looks).
//
// A right guess gives the right results, for nothing happens between the launch and the place where
// the graph belongs: the frame that calls the entry point is the one that Dynamo compiled for the
// callable itself, and it begins with that. In front of any other frame other code of the user's
// may have run, and written what the graph reads. So the frames are looked at when the call
// arrives, and the stream (guess.cpp).
//
// What it is worth: the GPU starts earlier by the time that the wrappers, or the guards too, take
// on the host. To launch ahead of the wrappers costs nothing. A guess has to read the caller's
// arguments first, so it pays only where the guards take longer than that, and the graph longer
// than that and the rest of the call. Small graphs are left to the guards (guess.cpp).
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "../torch/python_ref.h"
#include "index_bounds.h"
#include "pending_launch.h"

namespace pygraph::torch_bridge::speculation {

/// That a graph may be launched in front of guards.
struct Permit {
  Permit(std::vector<IndexBound> within, bool also_where_it_does_not_pay)
      : bounds(std::move(within)), always(also_where_it_does_not_pay) {}

  IndexBounds bounds;  ///< with indices within these
  bool always;         ///< even where it does not pay
};

/// What a connected entry point leads to: all that a launch needs to know of it.
struct Target {
  Dispatcher& dispatcher;
  PythonRef owner;                   ///< keeps the dispatcher
  Py_ssize_t argument_count;         ///< of the caller
  std::vector<std::uint32_t> order;  ///< the graph's argument i is the caller's number order[i]
  std::unique_ptr<Permit> permit;    ///< null: not to be launched in front of guards
};

// --------------------------------------------- before and end: around a call, guards and all
//
// Torch keeps a list of callables with each compiled callable, which it calls in front of Dynamo,
// and each of which returns what to call at the end (enter_exit_hooks of
// torch._dynamo.eval_frame._TorchDynamoContext; backends have it for contexts of their own).

/// Makes the Python type of what stands in torch's list, once; null with a Python error set.
PyTypeObject* hook_type();

/// A new one. `code`: of the function that calls it, whose variables `args` and `kwargs` are the
/// caller's arguments. `wrapper`: of what Dynamo puts around a backend's function. `between`: a
/// tuple of the code of what may stand between the first and a frame that Dynamo compiled, because
/// it only passes a call on. `plain`: a tuple of the types whose tensors are plain. Null with a
/// Python error set on failure. What it knows it learns from the calls that arrive.
PyObject* make_hook(PyObject* code, PyObject* wrapper, PyObject* between, PyObject* plain);

/// Of one hook: calls whose arguments were read for a guess, graphs launched on one, and those
/// among them that were claimed.
struct Counts {
  std::uint64_t read = 0;
  std::uint64_t launched = 0;
  std::uint64_t claimed = 0;
};
Counts counts_of(PyObject* hook) noexcept;

// ---------------------------------------------------------------------- arrive: at the entry point

/// A call has come to the entry point of `target`, with `arguments` as its caller has them and
/// `view` in the graph's order. What was launched for it on a guess, to be claimed; null if nothing
/// was, and then nothing launched on a guess is taken for anything any more. Borrowed, until the
/// call ends.
PendingLaunch* arrive(const std::shared_ptr<Target>& target, PyObject* const* arguments,
                      const Arguments& view) noexcept;

// --------------------------------------------------------------------- claim: at the graph's place

/// A call of `dispatcher` with a list, which is cleared: what this thread has launched for it is
/// claimed, and otherwise the dispatcher is called. A new reference, or null with a Python error
/// set.
PyObject* serve(Dispatcher& dispatcher, PyObject* list);

}  // namespace pygraph::torch_bridge::speculation
