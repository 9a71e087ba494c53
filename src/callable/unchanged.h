// What a call need not look at, since it cannot have changed since the last one.
//
// Most of what a callable reads lies in dictionaries that nobody writes between two calls: the
// attributes of a model's modules, their parameters and submodules, an optimizer's state. CPython
// (3.12 and later) tells of every change of a dictionary that is *watched*, in front of it, and of
// its end. So a call that was compared whole leaves a Record: the dictionaries that it met, which
// are watched from then on, and what has to be looked at below them nevertheless. Once a watched
// dictionary changes, each Record that knows it is stale and of no use any more.
//
// A call beside a Record walks the tree as ever, from the roots, until it comes to a watched
// dictionary, an Anchor. If it is the one that was there before, its items are what they were. What
// is *fixed* so, by the dictionary that holds it, is alive and the same object; of it, a few things
// may have changed without an event, and are Rechecks, in the order of the tree:
//
//   - An instance may have got another type, or another __dict__. Its attributes are fixed in turn.
//   - A tuple's elements are fixed with it. Values that nobody can change need no check.
//   - What objects in C hold is a *field*: a slot, an element of a list, what a cell contains, the
//     code of a function and its defaults. It changes unheard, so the pointer that stands there is
//     compared with the one that stood there. That it is the same does not say that the object is:
//     the old one may have gone, and another one stand on its address. So what is reached through a
//     field is *held*, and not fixed. It is alive and can be looked into, but all that it is made
//     of is checked: its type, its fields in turn, a tuple's elements. It ends where the tree
//     itself keeps the object alive, or where a watched dictionary tells of its end.
//   - Everything else is walked as ever, from this object on: tensors, whose metadata and gradient
//     change in place; sets, arrays; attributes that are computed. The walk may come to further
//     anchors below.
//
// Pointers of a Record are compared and followed without a reference: they keep nobody's model
// alive. (It refers to tuples of what the tree refers to anyway.) They are followed only while the
// Record is not stale, thus while what is fixed lives: an anchor was just reached from something
// alive, and a dictionary's end is a change. For the same reason none of them can be another object
// on an old address. What is not fixed is read anew in each call, by the walk, which trusts no
// pointer but that of a watched dictionary.
//
// These dictionaries are not watched: those in which a call itself puts something else; an
// OrderedDict of several items, whose move_to_end() is no event; those that were seen to change
// from call to call, see Unchanged; and a module's variables once they have changed twice, for a
// script assigns its own all the time, and to look up the few that count costs little. They are
// walked, and those below them are watched all the same.
//
// Guarded by the GIL.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "../torch/python_ref.h"

namespace pygraph::torch_bridge::callable {

struct Place;
class Registry;

/// Something that may have changed unheard. A call reads thousands of these, most of them from
/// memory that is in no cache, so they are small.
struct Recheck {
  enum class Kind : std::uint8_t {
    kType,      ///< `object` is of the type `other`
    kVersion,   ///< and CPython's version of that type is `number`
    kDict,      ///< the __dict__ of `object` is `other`
    kSize,      ///< `object`, a tuple or a list, has `number` elements
    kField,     ///< `other` stands `number` bytes behind the start of `object`
    kRequires,  ///< `object`, a tensor, requires gradients if `number` is not 0
    kMeet,      ///< no check: this call has met `object` as number `place`
    kSame,      ///< `object` is what this call has met as number `place`
    kWalk,      ///< `object` is compared with the tree that begins at `place`
  };
  /// kWalk: what is compared.
  enum class Source : std::uint8_t {
    kObject,     ///< `object`
    kField,      ///< what stands `number` bytes behind its start; not null
    kAttribute,  ///< its attribute of the place's name, or that it has none
  };
  Kind kind = Kind::kWalk;
  Source source = Source::kObject;
  /// kWalk, of a tensor without more below it: its type is `other`, which of Record::seen is its
  /// metadata, or negative, and what else is in its TensorShape.
  bool requires_grad : 1 = false;
  bool asks_for_memory : 1 = false;
  bool emptied : 1 = false;
  std::int32_t seen = -1;
  std::uint32_t place = 0;
  std::int32_t number = 0;
  PyObject* object = nullptr;
  PyObject* other = nullptr;
};

/// Where something stands within an object, or in the memory of a list's elements: so many bytes
/// behind its start.
struct Field {
  PyObject* owner = nullptr;
  std::int32_t offset = 0;
  PyObject* content = nullptr;  ///< or null
  bool lasting = false;         ///< for the life of the owner
};

/// A watched dictionary that is not below another one, or not fixed by it.
struct Anchor {
  std::uint32_t place = 0;  ///< whose items it holds
  std::uint32_t end = 0;    ///< the place behind these
  PyObject* dict = nullptr;
  std::vector<Recheck> checks = {};
};

/// What one call has left.
class Record {
 public:
  /// One dictionary of it.
  struct Watch {
    Record* record = nullptr;
    PyObject* dict = nullptr;  ///< null: it is no more
    Watch* next = nullptr;     ///< of the same dictionary
    std::uint32_t place = 0;
    bool looked_up = false;  ///< only a few of its items are in the tree, by their names
    bool changed = false;
  };

  Record() = default;
  ~Record();
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  /// From now on a change of `dict` makes this stale. False: it cannot be watched.
  [[nodiscard]] bool watch(PyObject* dict, std::uint32_t place, bool looked_up);

  [[nodiscard]] bool stale() const noexcept { return stale_; }

  std::vector<Anchor> anchors;  ///< in the order of the tree
  /// Numbers of fixed objects, as which something that is not fixed is met again.
  std::vector<std::pair<std::uint32_t, PyObject*>> met;
  std::uint64_t uses = 0;
  /// TorchApi::metadata() of tensors, one behind the other in the order of the checks.
  mutable std::vector<char> seen;
  /// The cache lines of objects that a call beside this reads, in order. They have often been
  /// driven out since the last call, and one object leads to the next, so a call asks for all of
  /// them first. An address of something that is no more does no harm.
  std::vector<const void*> lines;
  /// Tuples of what the tree keeps alive. As long as they live no other has their address.
  std::vector<PythonRef> kept;

 private:
  friend class Registry;
  friend class Unchanged;

  std::deque<Watch> watches_;  // the registry points to them
  bool stale_ = false;
};

/// By place: how often it was a mistake to watch its dictionary. After kMostStrikes it is walked.
using Strikes = std::vector<std::uint8_t>;
inline constexpr std::uint8_t kMostStrikes = 2;

/// Writes a Record, told by a walk what it comes to.
class Recorder {
 public:
  /// How far what the walk comes to is known to be what it was.
  enum class Known : std::uint8_t { kNot, kHeld, kFixed };
  /// Where in the tree the walk is.
  struct Position {
    Known known = Known::kNot;
    std::size_t anchor = 0;  ///< one behind the innermost one
  };

  Recorder(Record& record, Strikes& strikes, std::size_t numbers)
      : record_(record), strikes_(strikes), fixed_(numbers), asked_(numbers) {}

  /// What the walk comes to next stands in a field.
  void reach(const Field& field) noexcept { field_ = field; }
  /// What the walk comes to next is an attribute of `owner` that no field holds.
  void reach_attribute(PyObject* owner) noexcept { attribute_of_ = owner; }
  /// A field of which more is not in the tree than what stands in it.
  void see(std::uint32_t place, const Field& field);
  /// The attributes of a function that has none; or null.
  void see_attributes(std::uint32_t place, PyObject* attributes);
  /// An attribute that is not there, and that no field would hold.
  void see_no_attribute(std::uint32_t place, PyObject* owner);
  /// Whether a tensor requires gradients is in the tree.
  void see_requires_grad(std::uint32_t place, PyObject* tensor, bool requires_grad);
  /// What is below a place.
  enum class Below : std::uint8_t {
    kNamed,    ///< functions, and attributes of a class that has a version
    kLasting,  ///< the object is a tuple of what the tree keeps alive
    kOther,
  };
  /// The walk comes to `place`; returns where it was.
  Position enter(std::uint32_t place, const Place& node, PyObject* object, Below below);
  /// The items of `dict`, that of `place`, come next. `instance`: whose __dict__ it is, or null.
  void enter_items(std::uint32_t place, const Place& node, PyObject* instance, PyObject* dict);
  /// Everything below what was entered at `outer` is done.
  void leave(Position outer, std::uint32_t end);
  /// The walk has come to its end. False: the record is of no use.
  [[nodiscard]] bool finish();

 private:
  [[nodiscard]] bool is_walked(std::uint32_t place) const {
    return strikes_[place] >= kMostStrikes;
  }
  [[nodiscard]] bool can_be_looked_into(std::uint32_t place, const Place& node, PyObject* object,
                                        Known known, Below below) const;
  /// Has the tree below a place compared with what is there.
  void walk(std::uint32_t place, const Place& node, PyObject* object, Recheck::Source source,
            PyObject* owner, std::int32_t offset);
  /// What may have changed of something that is looked into.
  void check_itself(std::uint32_t place, const Place& node, PyObject* object, Known known);
  void check(const Recheck& check);
  void watch(PyObject* dict, std::uint32_t place, bool looked_up);
  /// The cache lines of these bytes.
  void note_lines(const void* begin, std::size_t bytes);
  /// Those of a place and of what is there.
  void note_walked(const Place& node, PyObject* object);
  /// Those of what tells whether a tensor requires gradients.
  void note_autograd(PyObject* tensor);
  void note_tensor(const Place& node, PyObject* tensor, Recheck& check);

  Record& record_;
  Strikes& strikes_;
  std::vector<PyObject*> fixed_;  ///< by number; null: not fixed
  std::vector<bool> asked_;
  std::unordered_set<const void*> noted_;
  Position position_;
  std::optional<Field> field_;
  PyObject* attribute_of_ = nullptr;
  bool failed_ = false;
};

/// The record of one structure, and when there is a new one.
///
/// A record costs as much as ten comparisons. One that was used less than kWorthwhile times has
/// come to nothing: that is a strike for the dictionaries that were other ones or have changed
/// meanwhile. So a learning rate that is set in each step costs a few places and not the record.
/// After kMostInVain such records in a row there is none any more.
class Unchanged {
 public:
  static constexpr std::uint64_t kWorthwhile = 16;
  static constexpr std::uint32_t kMostInVain = 8;

  explicit Unchanged(Strikes strikes) : strikes_(std::move(strikes)) {}

  int traverse(visitproc visit, void* arg) const;

  /// The record, if it may be used; or null.
  [[nodiscard]] std::shared_ptr<Record> usable() const noexcept;

  /// What stands in a field of `place` is another object from call to call: it is walked.
  void blame(std::uint32_t place) noexcept { strikes_[place] = kMostStrikes; }

  /// A call was admitted that no record has served. Makes a record: `walk(recorder)` compares once
  /// more, and returns whether the call is admitted.
  template <typename Walk>
  void renew(std::size_t numbers, Walk walk) {
    const std::shared_ptr<Record> in_vain = retire();
    while (begin()) {
      const auto made = std::make_shared<Record>();
      Recorder recorder(*made, strikes_, numbers);
      if (!walk(recorder) || !recorder.finish()) {
        return;
      }
      if (in_vain == nullptr || !strike_moved(*in_vain, *made)) {
        record_ = made;
        return;
      }
    }
  }

 private:
  /// Takes the record out, and returns it if it has come to nothing.
  std::shared_ptr<Record> retire();
  /// Whether one more is made.
  [[nodiscard]] bool begin() noexcept;
  /// Counts the places where other dictionaries stand now, and returns whether there are some that
  /// should not have been watched.
  bool strike_moved(const Record& last, const Record& made);

  Strikes strikes_;
  std::shared_ptr<Record> record_;
  std::uint32_t in_vain_ = 0;
};

/// Whether an OrderedDict may change its order without an event.
bool has_order_of_its_own(PyObject* dict) noexcept;

}  // namespace pygraph::torch_bridge::callable
