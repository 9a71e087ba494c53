// What a call of a captured callable is made of, and whether another call is made of the same.
//
// A callable reads more than its arguments: parameters, optimizer state, attributes, variables of
// the functions around it. All of it hangs on a few *roots*, the arguments among them, as tensors,
// numbers and containers of those. A Structure is that tree as one call found it. It admits another
// call if that finds the same containers with the same numbers in them, tensors of the same
// metadata, and functions and other objects that are the very same. Tensors may be other ones, on
// other addresses: they are collected, for the graph takes them as arguments.
//
// The tree is stored in the order in which it is walked (frontends/callable/structure.py makes it).
// Containers need not be the same objects: a dictionary that was replaced by an equal one matches.
// An object that is met again counts as the one that was met first, so cycles end, and what was
// shared must be shared again.
//
// A Python number that differs from call to call may have a place of its own kind, which admits
// others in place of it: those are collected like tensors.
//
// What this does not do: say what differs. A call that does not match takes the slow path, which
// walks it anew and compares the trees.
#pragma once

#include <Python.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "../torch/python_ref.h"
#include "../torch/torch_api.h"

namespace pygraph::torch_bridge::callable {

/// What must be the same of a tensor.
struct TensorShape {
  std::int32_t dtype = -1;
  std::int32_t device_type = -1;
  std::int32_t device_index = -1;
  bool requires_grad = false;
  /// Whether its memory could be shown negated: a view of a complex tensor's imaginary part.
  bool may_be_negated = false;
  bool may_be_conjugated = false;  ///< the same of a complex tensor
  bool empty = false;              ///< it has no elements, and need not have memory
  bool emptied = false;            ///< it has elements, and must not have memory for them
  bool used = true;                ///< it has memory if the graph can take it, which asks for that
  std::uint32_t dimensions = 0;
  std::vector<std::int64_t> extents = {};  ///< sizes, then strides
  /// TorchApi::metadata() of the tensor that was found to have it last, if that tells all of it.
  mutable std::array<char, kMostMetadata> seen = {};
  mutable bool has_seen = false;

  /// Whether nobody but a comparison asks if it has memory.
  [[nodiscard]] bool asks_for_memory() const noexcept { return !empty && (emptied || !used); }
};

/// How an attribute of a class's objects is read past the look-up of its name, until the class
/// changes, or one that it is derived from.
struct AttributeReader {
  unsigned int version = 0;  ///< CPython's for the class, which no other class has; 0: not known
  Py_ssize_t slot = 0;       ///< where an object has it, in bytes; 0: it has no slot
  const PyGetSetDef* computed = nullptr;  ///< null: not by C code
};

/// One place of the tree, with `children` places below it, which follow.
struct Place {
  enum class Kind : std::uint8_t {
    kAny,         ///< whatever is there
    kValue,       ///< equals `object` and has its type
    kIs,          ///< is `object`
    kSame,        ///< is the object that was met as number `number`
    kTuple,       ///< of the exact type `type`; children in order
    kList,        ///< the same
    kIterated,    ///< a set or a deque, of the type `type`; children in the order that it shows
    kDict,        ///< of the type `type`; children in order, with their keys
    kInstance,    ///< of the type `type`; children are its __dict__ in order, with their keys
    kVariables,   ///< of the type `type`; children are looked up in its __dict__ by their keys
    kAttributes,  ///< of the type `type`; children are attributes, looked up by their keys
    kNames,       ///< a dictionary, or a class for its own; children are looked up by their keys
    kMethods,     ///< the class `object` of the order `type`; children: what it has by their keys.
                  ///< `key`: (keys, names), a tuple of those keys that count, and a set: special
                  ///< methods count, and these names; None: all. It is looked at where the class
                  ///< has changed since it was compared
    kFunction,    ///< a function with the code `object`, and without attributes if there is no
                  ///< `type`; children: its cells, defaults, keyword ones
    kBytes,       ///< an array of the type `type` whose memory holds the bytes `object`
    kReference,   ///< a weak reference of the type `type`, or the context variable `object`; one
                  ///< child: what it refers to now
    kEmpty,       ///< a variable without a value
    kTensor,      ///< a tensor of the type `type`, without attributes of the names `object`, a
                  ///< tuple, if there is one; children, or none: its gradient, its hooks
    kUnread,      ///< a gradient that nobody reads: a leaf that is left out
    kGenerator,   ///< a random generator
    kNumber,      ///< a number that may stand in for `object`; a leaf
  };
  Kind kind = Kind::kAny;
  std::uint32_t children = 0;
  std::int32_t number = -1;  ///< objects that are met again: which one; negative: never met again
  std::int32_t slot = -1;  ///< of what is in this place a call makes a new one: which; or negative
  std::int32_t returned = -1;  ///< of objects that a call returns, the same: which; or negative
  PythonRef object;
  PythonRef type;
  PythonRef key;  ///< in the container above; null: none, or the place before this one is the key
  std::unique_ptr<const TensorShape> shape = {};  ///< of a tensor
  std::size_t end = 0;                  ///< the place behind those below; Structure fills it in
  mutable unsigned int version = 0;     ///< kMethods: CPython's for the class, which a change ends
  mutable AttributeReader reader = {};  ///< below kAttributes: of the attribute

  /// Whether the tree keeps what is here alive, so that its address is no other's.
  [[nodiscard]] bool keeps(const PyObject* found) const noexcept {
    return found != nullptr && object.get() == found && (kind == Kind::kIs || kind == Kind::kValue);
  }
};

/// A place that a call gives another tensor, or None.
struct Slot {
  enum class Owner : std::uint8_t { kDict, kList, kAttribute };
  Owner owner = Owner::kDict;
  PythonRef container;
  PythonRef key;         ///< kDict, kAttribute
  Py_ssize_t index = 0;  ///< kList

  /// Puts `value` there. False with a Python error set on failure.
  [[nodiscard]] bool set(PyObject* value) const;
};

/// What a call was found to be made of.
struct Found {
  std::vector<PythonRef> leaves;   ///< tensors, generators, numbers, in the order of the tree
  std::vector<Slot> slots;         ///< by Place::slot
  std::vector<PythonRef> objects;  ///< by Place::returned
  std::size_t places = 0;          ///< of the tree, that were looked at
  bool past_unchanged = false;     ///< what has not changed was not looked at
};

/// Whether code that takes `one` for a decision may be expected to decide the same of `other`: both
/// are exactly floats, or exactly ints of 64 bits, and on the same side of 0, of 1 and of -1. False
/// for numbers that code likes to compare with, and is written another way for: the multiples of
/// one half up to 4, and those that are not finite.
bool may_stand_in(PyObject* one, PyObject* other) noexcept;

class Unchanged;

/// Immutable, but for what it remembers of calls. Guarded by the GIL.
class Structure {
 public:
  /// Throws std::invalid_argument if the nodes are no trees, one behind the other.
  explicit Structure(std::vector<Place> nodes);
  ~Structure();
  Structure(const Structure&) = delete;
  Structure& operator=(const Structure&) = delete;
  Structure(Structure&& other) noexcept;
  Structure& operator=(Structure&& other) = delete;

  /// Whether `roots` are made of the same. `found` is filled, and of no use if not. Leaves no
  /// Python error set.
  [[nodiscard]] bool admits(const std::vector<PyObject*>& roots, Found& found) const;
  /// The same, without a look at what has not changed since a call that this has admitted
  /// (unchanged.h).
  [[nodiscard]] bool admits_again(const std::vector<PyObject*>& roots, Found& found) const;

  int traverse(visitproc visit, void* arg) const;

 private:
  class Walk;

  std::vector<Place> nodes_;
  std::size_t roots_ = 0;
  std::size_t numbers_ = 0;
  std::size_t slots_ = 0;
  std::size_t objects_ = 0;
  std::size_t leaves_ = 0;
  std::unique_ptr<Unchanged> unchanged_;
};

}  // namespace pygraph::torch_bridge::callable
