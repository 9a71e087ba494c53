// Launching a graph before it is known that its call will come.
//
// A call of a compiled callable is on its way for a while before it comes to its graph. In front of
// it are Dynamo's guards, which check that the compiled code is for this call, and in a forward
// AOTAutograd's wrappers and an autograd.Function. That is 10 us for a small model and a
// millisecond for a large one, during which the GPU waits, and nearly always it is known from the
// start which graph is called, and with what. So: launch now, and hand the results over when the
// call has come. What was launched is a PendingLaunch. The call claims it if it comes with the very
// same objects, and numbers of the same bits; if it does not come so, the launch is dropped, and
// its results are thrown away. Everything in front of the graph still runs and still decides. Only
// the GPU does not wait for it.
//
// There are two places to launch from.
//
// Before the wrappers. The guards have passed and the entry point (entry/entry_point.h) has been
// called. The graph is launched, the wrappers are called, and they come to the graph's place
// (serve()). frontends/compile/entry_point.py establishes that this happens in each call of the
// function, with the same objects. So the graph may do anything, such as write its arguments. A
// call that ends without having claimed such a graph is an error.
//
// Before the guards, on a guess. Torch calls a hook before them, and the guess goes by what
// earlier calls of the same shape led to (call_shape.h). The guess may be wrong: the guards fail,
// or the user's code runs first. A wrong guess does no harm, for:
//
// - The graph writes nothing but memory of its own (without_trace). Random generators are moved on
//   when the launch is claimed, and it is claimed only if they are where they were (RandomTurn).
// - What it reads is there: the caller's tensors have the shapes that they had, what belongs to the
//   callable is alive and stands where it stood. Numbers are its own (call_shape.h).
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
// on the host. To launch before the wrappers costs nothing. A guess has to read the caller's
// arguments first, so it pays only where the guards take longer than that, and the graph longer
// than that and the rest of the call. Small graphs are left to the guards (guess.cpp).
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "../torch/dispatcher.h"
#include "../torch/python_ref.h"
#include "index_bounds.h"

namespace pygraph::torch_bridge::speculation {

/// That a graph may be launched before the guards.
struct Permit {
  Permit(std::vector<IndexBound> within, bool also_where_it_does_not_pay)
      : bounds(std::move(within)), always(also_where_it_does_not_pay) {}

  IndexBounds bounds;  ///< with indices within these
  bool always;         ///< even where it does not pay
};

/// Of one entry point.
struct LaunchCounts {
  std::uint64_t dropped = 0;          ///< launches for calls that did not come: they are no calls
  std::uint64_t bytes_looked_at = 0;  ///< of indices, brought to the host in front of launches
};

/// What a connected entry point leads to: all that a launch needs to know of it.
struct Target {
  Dispatcher& dispatcher;
  PythonRef owner;                   ///< keeps the dispatcher
  Py_ssize_t argument_count;         ///< of the caller
  std::vector<std::uint32_t> order;  ///< the graph's argument i is the caller's number order[i]
  std::unique_ptr<Permit> permit{};  ///< null: not to be launched before the guards
  std::shared_ptr<LaunchCounts> counts = std::make_shared<LaunchCounts>();
};

/// From now on its graph may be launched before the guards, with indices within `bounds`, where
/// that pays, or `always`. False with a Python error set when it has no such argument.
bool allow(Target& target, std::vector<IndexBound> bounds, bool always);
/// From now on it may not.
inline void forbid(Target& target) noexcept { target.permit.reset(); }

// --------------------------------------------- before and end: around a call, guards and all
//
// Torch keeps a list of callables with each compiled callable, which it calls in front of Dynamo,
// and each of which returns what to call at the end (enter_exit_hooks of
// torch._dynamo.eval_frame._TorchDynamoContext; backends have it for contexts of their own).

/// Makes the Python type of what stands in torch's list, once; null with a Python error set.
PyTypeObject* hook_type();

/// A new one. `code`: of the function that calls it. `variables`: a tuple of the names that the
/// caller's arguments have there, those by position and those by name. `wrapper`: the code of what
/// Dynamo puts around a backend's function. `between`: a tuple of the code of what may stand
/// between the first and a frame that Dynamo compiled, because it only passes a call on. `plain`: a
/// tuple of the types whose tensors are plain. Null with a Python error set on failure. What it
/// knows it learns from the calls that arrive.
PyObject* make_hook(PyObject* code, PyObject* variables, PyObject* wrapper, PyObject* between,
                    PyObject* plain);

/// Of one hook: calls whose arguments were read for a guess, graphs launched on one, and those
/// among them that were claimed.
struct Counts {
  std::uint64_t read = 0;
  std::uint64_t launched = 0;
  std::uint64_t claimed = 0;
};
Counts counts_of(PyObject* hook) noexcept;

/// Has `callable` called at the end of the hook's next call, when nothing of that looks at permits
/// or at torch's list any more.
void call_at_end(PyObject* hook, PyObject* callable) noexcept;
/// So many more entry points have a permit, or fewer. How many that are.
std::uint64_t count_permits(PyObject* hook, std::int64_t change) noexcept;

// ---------------------------------------------------------------------- arrive: at the entry point

/// A call as it has come to the entry point of `target`.
struct Arrival {
  const std::shared_ptr<Target>& target;
  PyObject* const* arguments;  ///< as its caller has them
  Arguments view;              ///< in the graph's order
};

/// Where the wrappers have nothing to do. True: what was launched for the call on a guess is
/// claimed, and `result` is as in Dispatcher::try_call(). False: nothing was.
bool claim(const Arrival& call, PyObject*& result);

/// Where they have: launches the graph, if that was not done on a guess, and calls `wrappers` by
/// vectorcall with `flags`. A new reference, or null with a Python error set.
PyObject* call_wrappers(const Arrival& call, PyObject* wrappers, std::size_t flags);

/// The call that came to an entry point last, on this thread, returns.
void returned() noexcept;

// --------------------------------------------------------------------- serve: at the graph's place

/// A call of `dispatcher` with a list, which is cleared: what this thread has launched for it is
/// claimed, and otherwise the dispatcher is called. A new reference, or null with a Python error
/// set.
PyObject* serve(Dispatcher& dispatcher, PyObject* list);

}  // namespace pygraph::torch_bridge::speculation
