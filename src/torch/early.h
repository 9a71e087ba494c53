// A graph that is launched before Dynamo has checked its guards.
//
// In front of every call of a compiled callable Dynamo checks that the compiled code is for it: the
// arguments, each module and parameter, globals. It takes 10 us for a small model and a millisecond
// for a large one, during which the GPU waits, and nearly always the answer is yes. So the graph is
// launched first, on a guess, and the guards run while the GPU does. All of them do: when they
// pass, the call comes to the graph's Entry with the arguments that were guessed, and takes the
// results of the flight. When they do not, it comes elsewhere, and what the graph computed is
// thrown away.
//
// That is right as long as a wrong guess can do no harm:
//
// - The graph writes nothing but memory of its own, and draws no random numbers (without_trace).
// - What it reads is there: the caller's tensors have the shapes that they had, what belongs to the
//   callable is alive and stands where it stood (route.h).
// - Where it reads depends on nothing that it reads but indices that the host has looked at: an
//   index that is right for one graph may be out of bounds in another, which ends the process
//   (frontends/compile/index_bounds.py asks the kernels for them, index_bounds.h looks).
//
// and nothing happens between the launch and the place where the graph belongs: the frame that
// calls the Entry is the one that Dynamo compiled for the callable itself, and it begins with that.
// Other code of the user's may have run in front of any other frame, and written what the graph
// reads. So the frames are looked at when the call arrives, and the stream.
//
// And it is worth something as long as the guards take longer than what a guess does in front of
// the launch, and the graph longer than that and the rest of the call: small graphs are left to the
// guards (early_call.cpp).
//
// Who calls this: torch keeps a list of callables with each compiled callable, which it calls in
// front of Dynamo, and each of which returns what to call at the end (enter_exit_hooks of
// torch._dynamo.eval_frame._TorchDynamoContext; backends have it for contexts of their own).
#pragma once

#include <Python.h>

#include <cstdint>

#include "tensor_program.h"

namespace pygraph::torch_bridge {

class Flight;

/// Makes the Python type of what stands in torch's list, once; null with a Python error set.
PyTypeObject* early_type();

/// A new one. `code`: of the function that calls it, whose variables `args` and `kwargs` are the
/// caller's arguments. `wrapper`: of what Dynamo puts around a backend's function. `between`: a
/// tuple of the code of what may stand between the first and a frame that Dynamo compiled, because
/// it only passes a call on. `plain`: a tuple of the types whose tensors are plain. Null with a
/// Python error set on failure. What it knows it learns from the calls that arrive.
PyObject* make_early(PyObject* code, PyObject* wrapper, PyObject* between, PyObject* plain);

/// Of one such object: calls whose arguments were read for a guess, graphs launched early, and
/// those among them whose call came.
struct EarlyCounts {
  std::uint64_t read = 0;
  std::uint64_t launched = 0;
  std::uint64_t landed = 0;
};
EarlyCounts early_counts(PyObject* early) noexcept;

/// For an Entry: a call has come to it, with `arguments` in the order of its caller and `view` in
/// that of its graph. The flight that it is the arrival of; null if there is none, and then nothing
/// launched early is taken for anything any more. Borrowed, until the call ends. `may_learn`: the
/// entry's graph may be launched early from now on.
Flight* early_arrival(PyObject* entry, PyObject* const* arguments, Py_ssize_t count,
                      const Arguments& view, bool may_learn) noexcept;

}  // namespace pygraph::torch_bridge
