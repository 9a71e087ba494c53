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
//   - Everything else is walked as ever, from this object on: tensors, whose metadata and gradient
//     change in place; lists, sets, arrays, functions with their cells, objects without a __dict__.
//     The walk may come to further anchors below.
//
// Pointers of a Record are compared and followed without a reference: they keep nobody's model
// alive. They are followed only while the Record is not stale, thus while what is fixed lives: an
// anchor was just reached from something alive, and a dictionary's end is a change. For the same
// reason none of them can be another object on an old address. What is not fixed is read anew in
// each call, by the walk, which trusts no pointer but that of a watched dictionary.
//
// These dictionaries are not watched: variables of modules, which a program assigns all the time;
// those in which a call itself puts something else; an OrderedDict of several items, whose
// move_to_end() is no event; and those that were seen to change from call to call, see Unchanged.
// They are walked, and those below them are watched all the same.
//
// Guarded by the GIL.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace pygraph::torch_bridge::callable {

struct Place;
class Registry;

/// Something fixed that may have changed nevertheless.
struct Recheck {
  enum class Kind : std::uint8_t {
    kInstance,  ///< `object` is of the type `type` and has the __dict__ `dict`, that of `place`
    kType,      ///< `object` is of the type `type`
    kSame,      ///< `object` is what this call has met as number `place`
    kWalk,      ///< `object` is compared with the tree that begins at `place`
  };
  Kind kind = Kind::kWalk;
  std::uint32_t place = 0;
  PyObject* object = nullptr;
  PyObject* type = nullptr;
  PyObject* dict = nullptr;
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
    bool changed = false;
  };

  Record() = default;
  ~Record();
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  /// From now on a change of `dict` makes this stale. False: it cannot be watched.
  [[nodiscard]] bool watch(PyObject* dict, std::uint32_t place);

  [[nodiscard]] bool stale() const noexcept { return stale_; }

  std::vector<Anchor> anchors;  ///< in the order of the tree
  /// Numbers of fixed objects, as which something that is not fixed is met again.
  std::vector<std::pair<std::uint32_t, PyObject*>> met;
  std::uint64_t uses = 0;

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
  /// Where in the tree the walk is.
  struct Position {
    bool fixed = false;
    std::size_t anchor = 0;  ///< one behind the innermost one
  };

  Recorder(Record& record, Strikes& strikes, std::size_t numbers)
      : record_(record), strikes_(strikes), fixed_(numbers), asked_(numbers) {}

  /// The walk comes to `place`; returns where it was.
  Position enter(std::uint32_t place, const Place& node, PyObject* object);
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
  [[nodiscard]] bool stays_fixed(std::uint32_t place, const Place& node, PyObject* object) const;
  void check(const Recheck& check) {
    record_.anchors[position_.anchor - 1].checks.push_back(check);
  }

  Record& record_;
  Strikes& strikes_;
  std::vector<PyObject*> fixed_;  ///< by number; null: not fixed
  std::vector<bool> asked_;
  Position position_;
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

  /// The record, if it may be used; or null.
  [[nodiscard]] std::shared_ptr<Record> usable() const noexcept;

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
