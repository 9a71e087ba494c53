// Where the arguments of a compiled graph come from, seen from the call of the compiled callable.
//
// A caller's tensors are found in its arguments, through tuples, lists and dictionaries. Everything
// else that reaches the graph, parameters above all, belongs to the callable: the same objects in
// each call. A CallShape says which is which, and whether another call is such that launching the
// graph on it can do no harm before anybody has checked that it is the right one: the caller's
// tensors have the same shapes, and the others stand where they stood, so whatever the graph reads
// is there.
//
// Dynamo makes a new tensor of a number in each call: of a float among the caller's arguments, or
// of one that the callable has, such as an attribute. For a guess, a tensor of ours stands for it,
// with the float's value, or with the one that it had. A call that arrives with another value is
// not the one that was guessed.
#pragma once

#include <Python.h>

#include <bit>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "speculation.h"

namespace pygraph::torch_bridge::speculation {

/// What a call is made of: objects that are no containers, and how they are contained.
struct Leaves {
  std::vector<PythonRef> items;
  std::vector<std::uint64_t> structure;

  /// False when there are too many, or too deep.
  bool read(PyObject* positional, PyObject* named);

 private:
  bool add(PyObject* object, int depth);
};

/// The types whose tensors are plain, of a process: torch.Tensor, torch.nn.Parameter. Borrowed.
using PlainTypes = std::vector<PyTypeObject*>;

/// What decides whether a guess pays (guess.cpp).
struct Benefit {
  using Clock = std::chrono::steady_clock;

  /// What the host does in a call behind the guards: the least that was seen. None: not seen yet.
  std::optional<Clock::duration> remainder;
  bool outlasts = false;  ///< the graph was seen running for longer than that and a guess
};

/// An argument of the graph that is a number, and no object that could be told again.
struct Number {
  std::size_t index;                 ///< in the order of the graph's caller
  std::optional<double> value = {};  ///< of a tensor; none: an integer of Python's
};

/// The value of what Dynamo makes of a float of Python's or NumPy's: a tensor on the host without
/// dimensions, of fp64 or fp32. None: it is none.
[[nodiscard]] std::optional<double> float_in(const TorchApi& api, PyObject* tensor) noexcept;
/// Gives such a tensor a value of its type.
void write_float(const TorchApi& api, PyObject* tensor, double value) noexcept;
[[nodiscard]] inline bool same_bits(double one, double other) noexcept {
  return std::bit_cast<std::uint64_t>(one) == std::bit_cast<std::uint64_t>(other);
}

/// What a graph is called with on a guess.
struct Given {
  std::vector<PythonRef> arguments;  ///< in the order of the graph's caller
  std::vector<Number> numbers;       ///< those among them that are any objects with these values
};

class CallShape {
 public:
  /// Of a call that led to `target` with `given`, the graph's arguments in the order of its caller.
  /// None when something of it cannot be told again, for instance an object of a class of the
  /// user's.
  static std::optional<CallShape> learn(const std::shared_ptr<Target>& target,
                                        PyObject* const* given, const Leaves& leaves,
                                        const PlainTypes& plain);

  /// Whether a call has the same containers, numbers and strings, and tensors of the same shapes.
  [[nodiscard]] bool fits(const Leaves& leaves) const noexcept;

  /// The graph's arguments for a call that fits. Empty when one that belongs to the callable is
  /// gone or stands somewhere else.
  [[nodiscard]] Given given(const Leaves& leaves) const;

  /// What it leads to; null when that is gone.
  [[nodiscard]] std::shared_ptr<Target> target() const noexcept { return target_.lock(); }

  /// Of its graph, which has the same sizes in each call that fits. For calls to keep: another
  /// thread can learn that a shape is another.
  [[nodiscard]] const std::shared_ptr<Benefit>& benefit() const noexcept { return benefit_; }

 private:
  /// One leaf, as it must be again.
  struct Expected {
    PythonRef value;      ///< a number, a string, a bool or None; null: a tensor
    bool varies = false;  ///< any number of this type: the graph has it as an argument
    PyTypeObject* type = nullptr;
    std::int32_t dtype = -1;
    std::int32_t device_type = -1;
    std::int32_t device_index = -1;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;

    static std::optional<Expected> of(PyObject* leaf, const PlainTypes& plain);
    [[nodiscard]] bool admits(PyObject* leaf) const noexcept;
  };
  /// Where an argument of the graph comes from.
  struct Source {
    std::int32_t leaf = -1;        ///< negative: it belongs to the callable
    PythonRef cell;                ///< the tensor of ours that may stand for a float
    double value = 0;              ///< of one that is no leaf: what it was
    PythonRef constant;            ///< weak
    const void* object = nullptr;  ///< what that was, to fetch it ahead: it may be gone
    CUdeviceptr address = 0;       ///< of the constant
  };

  /// Where an argument comes from that is none of the caller's objects, if that can be told.
  std::optional<Source> source_of(PyObject* argument, const Leaves& leaves);
  [[nodiscard]] static std::int32_t float_among(const Leaves& leaves, double value);

  std::vector<std::uint64_t> structure_;
  std::vector<Expected> leaves_;
  std::vector<Source> sources_;
  std::weak_ptr<Target> target_;
  std::shared_ptr<Benefit> benefit_ = std::make_shared<Benefit>();
};

}  // namespace pygraph::torch_bridge::speculation
