// What a user calls in place of a captured callable: the programs made of it, each for calls of one
// structure, and the Python side for all other calls.
//
// A call is compared with the structure used last first. Where one admits it, the tensors that were
// found on the way are the graph's arguments; a program is launched, the places that the callable
// would have given new tensors get them, and the results take the form that the callable returns.
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "../torch/dispatcher.h"
#include "mode_guard.h"
#include "structure.h"

namespace pygraph::torch_bridge::callable {

/// One argument of the graph: memory that some leaves of a structure lie in. It begins with `leaf`,
/// and the others stand as many bytes behind as `inside` says, as they did when it was captured. Or
/// `object`, which has no memory: a mesh of ranks, which the structure has in one of its places.
struct Lifted {
  struct Inside {
    std::uint32_t leaf;
    std::int64_t offset;
  };
  std::uint32_t leaf = 0;
  std::vector<Inside> inside;
  PythonRef object;
};

/// How what the callable returns is made: a tree, in the order in which it is walked.
struct Output {
  enum class Kind : std::uint8_t {
    kResult,    ///< result number `index` of the graph
    kLeaf,      ///< leaf number `index` of the structure, the very object
    kObject,    ///< the object in the place whose Place::returned is `index`
    kConstant,  ///< `object`
    kTuple,     ///< of `children`
    kList,
    kDict,  ///< keys: the tuple `object`
    kMade,  ///< `object(list of children)`
  };
  Kind kind = Kind::kConstant;
  std::uint32_t index = 0;
  std::uint32_t children = 0;
  PythonRef object;
};

/// A place of the structure that gets a result, or what is made of one, or None.
struct Rebound {
  std::uint32_t slot = 0;
  std::int32_t result = -1;  ///< -1: None; less: leaf number -2 - result
  /// What is there is let go of in front of the launch, which may have its memory then.
  bool given_up = false;
  PythonRef whole = {};  ///< if there is one: what is put there is `whole([the value])`
};

/// What serves the calls of one structure.
struct Entry {
  Structure structure;
  PythonRef roots;  ///< a tuple: what the structure's trees but the first two begin with
  std::shared_ptr<const ModeGuard> modes;  ///< those of the capture
  std::vector<Lifted> arguments = {};
  std::vector<Rebound> rebound = {};
  std::vector<std::uint32_t> written = {};  ///< leaves: their versions are counted up
  std::vector<Output> output = {};
  PythonRef owner;       ///< whose entry it is
  PythonRef graph = {};  ///< keeps `dispatcher` alive
  Dispatcher* dispatcher = nullptr;
  bool once_decided = false;  ///< only calls that go past the guards (Dispatcher::goes_past)
  PythonRef as_it_is = {};    ///< without a dispatcher: the callable, which serves the calls
};

/// Guarded by the GIL. A call may be made while another one is under way.
class CapturedFunction {
 public:
  /// `miss` serves calls that no entry does, as (positional, named). `count_up(tensors)` counts
  /// their versions. `set_asked`: see untraced.h; null: nobody is asked about frames.
  CapturedFunction(PyObject* miss, PyObject* count_up, PyObject* set_asked);

  void add(std::shared_ptr<const Entry> entry);
  /// Takes out the entries of `owner`.
  void remove(PyObject* owner) noexcept;

  /// A new reference, or null with a Python error set.
  PyObject* call(PyObject* positional, PyObject* named);

  /// The first place of the tree of `owner`'s entry that a call does not have; none: it is
  /// admitted.
  [[nodiscard]] std::optional<std::size_t> first_mismatch(PyObject* owner, PyObject* positional,
                                                          PyObject* named) const;

  /// Calls that an entry has admitted without a look at what had not changed.
  [[nodiscard]] std::uint64_t shortcuts() const noexcept { return shortcuts_; }
  /// Calls that a program has served.
  [[nodiscard]] std::uint64_t served() const noexcept { return served_; }

  int traverse(visitproc visit, void* arg) const;
  void release() noexcept;

 private:
  std::shared_ptr<const Entry> find(PyObject* positional, PyObject* named, Found& found);
  /// False: not served, and nothing was done, but for gradients that were given up.
  bool serve(const Entry& entry, Found& found, PyObject*& result) const;
  /// False with a Python error set.
  bool rebind(const Entry& entry, const Found& found, PyObject* results) const;
  bool count_up(const Entry& entry, const Found& found) const;

  PythonRef miss_;
  PythonRef count_up_;
  PythonRef set_asked_;
  std::vector<std::shared_ptr<const Entry>> entries_;  ///< the one used last comes first
  std::uint64_t shortcuts_ = 0;
  std::uint64_t served_ = 0;
};

}  // namespace pygraph::torch_bridge::callable
