#include "unchanged.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

#include "structure.h"

// Without the GIL a callback would need locks.
#if PY_VERSION_HEX >= 0x030C0000 && !defined(Py_GIL_DISABLED)
#define PYGRAPH_DICTIONARIES_CAN_BE_WATCHED 1
#else
#define PYGRAPH_DICTIONARIES_CAN_BE_WATCHED 0
#endif

namespace pygraph::torch_bridge::callable {

namespace {

bool is_finalizing() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

}  // namespace

#if PYGRAPH_DICTIONARIES_CAN_BE_WATCHED

/// The dictionaries that records watch.
class Registry {
 public:
  /// Null: the interpreter has no watcher left. Lives as long as the process, for dictionaries end
  /// later than the module.
  static Registry* get() {
    static Registry* const registry = make();
    return registry;
  }

  bool add(Record::Watch& watch) {
    const auto [entry, fresh] = watched_.try_emplace(watch.dict, nullptr);
    if (fresh && PyDict_Watch(id_, watch.dict) != 0) {
      PyErr_Clear();
      watched_.erase(entry);
      return false;
    }
    watch.next = std::exchange(entry->second, &watch);
    return true;
  }

  void remove(const Record::Watch& watch) noexcept {
    const auto entry = watched_.find(watch.dict);
    if (entry == watched_.end()) {
      return;
    }
    Record::Watch** link = &entry->second;
    while (*link != nullptr && *link != &watch) {
      link = &(*link)->next;
    }
    if (*link != nullptr) {
      *link = watch.next;
    }
    if (entry->second == nullptr) {
      watched_.erase(entry);
      // At its end the interpreter forgets its watchers, and dictionaries end unheard.
      if (!is_finalizing() && PyDict_Unwatch(id_, watch.dict) != 0) {
        PyErr_Clear();
      }
    }
  }

 private:
  explicit Registry(int id) : id_(id) {}

  static Registry* make() {
    const int id = PyDict_AddWatcher(on_event);
    if (id < 0) {
      PyErr_Clear();
      return nullptr;
    }
    auto registry = std::unique_ptr<Registry>(new Registry(id));
    made_ = registry.get();
    made_ = registry->hears_of_attributes() ? registry.release() : nullptr;
    if (made_ == nullptr) {
      PyDict_ClearWatcher(id);
      PyErr_Clear();
    }
    return made_;
  }

  /// Whether an attribute that is set is a change of its object's dictionary. In CPython 3.13.0 it
  /// is none (python/cpython#125608).
  bool hears_of_attributes() {
    const PythonRef type = PythonRef::stolen(
        PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyType_Type), "s(){}", "Probe"));
    const PythonRef object =
        type ? PythonRef::stolen(PyObject_CallNoArgs(type.get())) : PythonRef();
    const PythonRef dict =
        object ? PythonRef::stolen(PyObject_GenericGetDict(object.get(), nullptr)) : PythonRef();
    bool heard = static_cast<bool>(dict);
    for (PyObject* value : {Py_True, Py_False, static_cast<PyObject*>(nullptr)}) {
      Record record;
      Record::Watch watch{.record = &record, .dict = dict.get()};
      heard = heard && add(watch);
      heard = heard && PyObject_SetAttrString(object.get(), "attribute", value) == 0;
      heard = heard && record.stale();
      if (dict) {
        remove(watch);
      }
    }
    PyErr_Clear();
    return heard;
  }

  static int on_event(PyDict_WatchEvent event, PyObject* dict, PyObject* /*key*/,
                      PyObject* /*value*/) noexcept {
    std::unordered_map<PyObject*, Record::Watch*>& watched = made_->watched_;
    const auto entry = watched.find(dict);
    if (entry == watched.end()) {
      return 0;
    }
    for (Record::Watch* watch = entry->second; watch != nullptr; watch = watch->next) {
      watch->changed = watch->record->stale_ = true;
      if (event == PyDict_EVENT_DEALLOCATED) {
        watch->dict = nullptr;
      }
    }
    if (event == PyDict_EVENT_DEALLOCATED) {
      watched.erase(entry);
    }
    return 0;
  }

  static inline Registry* made_ = nullptr;

  int id_;
  std::unordered_map<PyObject*, Record::Watch*> watched_;  ///< to the first of a list
};

#else

/// There is nothing to be watched.
class Registry {
 public:
  static Registry* get() noexcept { return nullptr; }
  static bool add(Record::Watch& /*watch*/) noexcept { return false; }
  static void remove(const Record::Watch& /*watch*/) noexcept {}
};

#endif

namespace {

/// Whether everything that a value is equal by stays as it is.
bool is_immutable(PyObject* value) noexcept {
  constexpr std::array<std::string_view, 4> kOfTorch{"torch.dtype", "torch.device", "torch.layout",
                                                     "torch.memory_format"};
  const PyTypeObject* type = Py_TYPE(value);
  return value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) ||
         PyFloat_CheckExact(value) || PyUnicode_CheckExact(value) || PyBytes_CheckExact(value) ||
         PyComplex_CheckExact(value) ||
         (PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE) == 0 &&
          std::find(kOfTorch.begin(), kOfTorch.end(), type->tp_name) != kOfTorch.end());
}

/// Whether an object may be given another type.
bool may_change_type(PyObject* object) noexcept {
  return PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE) != 0;
}

}  // namespace

bool has_order_of_its_own(PyObject* dict) noexcept {
  return PyODict_Check(dict) && PyDict_GET_SIZE(dict) > 1;
}

Record::~Record() {
  for (const Watch& watch : watches_) {
    if (watch.dict != nullptr) {
      Registry::get()->remove(watch);
    }
  }
}

bool Record::watch(PyObject* dict, std::uint32_t place, bool looked_up) {
  Registry* registry = Registry::get();
  if (registry == nullptr) {
    return false;
  }
  Watch& watch = watches_.emplace_back(
      Watch{.record = this, .dict = dict, .place = place, .looked_up = looked_up});
  if (!registry->add(watch)) {
    watches_.pop_back();
    return false;
  }
  return true;
}

void Recorder::see(std::uint32_t place, const Field& field) {
  if (position_.known == Known::kHeld || (position_.known == Known::kFixed && !field.lasting)) {
    check({.kind = Recheck::Kind::kField,
           .place = place,
           .number = field.offset,
           .object = field.owner,
           .other = field.content});
  }
}

void Recorder::see_attributes(std::uint32_t place, PyObject* attributes) {
  if (position_.known != Known::kNot && attributes != nullptr) {
    watch(attributes, place, false);
  }
}

void Recorder::watch(PyObject* dict, std::uint32_t place, bool looked_up) {
  if (!record_.watch(dict, place, looked_up)) {  // an instance's __dict__ is no plain one
    strikes_[place] = kMostStrikes;
    failed_ = true;
  }
}

void Recorder::see_no_attribute(std::uint32_t place, PyObject* owner) {
  if (position_.known != Known::kNot) {
    check({.source = Recheck::Source::kAttribute, .place = place, .object = owner});
  }
}

void Recorder::see_requires_grad(std::uint32_t place, PyObject* tensor, bool requires_grad) {
  if (position_.known != Known::kNot) {
    check({.kind = Recheck::Kind::kRequires,
           .place = place,
           .number = requires_grad ? 1 : 0,
           .object = tensor});
  }
}

bool Recorder::can_be_looked_into(std::uint32_t place, const Place& node, PyObject* object,
                                  Known known, Below below) const {
  if (node.returned >= 0) {  // which the walk must find
    return false;
  }
  switch (node.kind) {
    case Place::Kind::kAny:
    case Place::Kind::kIs:
    case Place::Kind::kSame:
      return true;
    case Place::Kind::kValue:
      return known == Known::kFixed && is_immutable(object);
    case Place::Kind::kTuple:
    case Place::Kind::kList:
    case Place::Kind::kInstance:
    case Place::Kind::kVariables:
      return !is_walked(place);
    case Place::Kind::kDict:
      return !is_walked(place) && !has_order_of_its_own(object);
    case Place::Kind::kAttributes:
    case Place::Kind::kFunction:
      return !is_walked(place) && below == Below::kNamed;
    default:
      return false;
  }
}

void Recorder::check_itself(std::uint32_t place, const Place& node, PyObject* object, Known known) {
  const bool held = known == Known::kHeld;
  Recheck made{.kind = Recheck::Kind::kType, .place = place, .object = object};
  made.other = reinterpret_cast<PyObject*>(Py_TYPE(object));
  switch (node.kind) {
    case Place::Kind::kDict:  // which is watched, so its end is known of
      if (may_change_type(object)) {
        check(made);
      }
      break;
    case Place::Kind::kTuple:
    case Place::Kind::kList:
      if (held || may_change_type(object)) {
        check(made);
      }
      if (held || node.kind == Place::Kind::kList) {
        made.kind = Recheck::Kind::kSize;
        made.number = static_cast<std::int32_t>(Py_SIZE(object));
        check(made);
      }
      if (node.kind == Place::Kind::kList && Py_SIZE(object) != 0) {  // where its elements stand
        made.kind = Recheck::Kind::kField;
        made.number = offsetof(PyListObject, ob_item);
        made.other = reinterpret_cast<PyObject*>(reinterpret_cast<PyListObject*>(object)->ob_item);
        check(made);
      }
      break;
    case Place::Kind::kAttributes:
      made.kind = Recheck::Kind::kVersion;
      made.number = static_cast<std::int32_t>(Py_TYPE(object)->tp_version_tag);
      check(made);
      break;
    case Place::Kind::kFunction:
      if (held) {
        check(made);
      }
      break;
    default:
      break;
  }
}

void Recorder::note_lines(const void* begin, std::size_t bytes) {
  constexpr std::uintptr_t kLineBytes = 64;
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  const std::uintptr_t last = begin == nullptr ? 0 : first + bytes;
  for (std::uintptr_t line = first & ~(kLineBytes - 1); line < last; line += kLineBytes) {
    const auto* start = reinterpret_cast<const void*>(line);  // NOLINT(performance-no-int-to-ptr)
    if (noted_.insert(start).second) {
      record_.lines.push_back(start);
    }
  }
}

void Recorder::check(const Recheck& check) {
  const auto* object = reinterpret_cast<const char*>(check.object);
  note_lines(object, sizeof(PyObject));
  if (check.kind == Recheck::Kind::kField || check.source == Recheck::Source::kField) {
    note_lines(object + check.number, sizeof(PyObject*));
  } else if (check.kind == Recheck::Kind::kDict) {
    note_lines(reinterpret_cast<const char*>(_PyObject_GetDictPtr(check.object)),
               sizeof(PyObject*));
  } else if (check.kind == Recheck::Kind::kSize) {
    note_lines(object, sizeof(PyVarObject));
  } else if (check.kind == Recheck::Kind::kRequires) {
    note_lines(torch_api().handle(check.object), sizeof(TensorHandle));
    note_autograd(check.object);
  }
  record_.anchors[position_.anchor - 1].checks.push_back(check);
}

void Recorder::walk(std::uint32_t place, const Place& node, PyObject* object,
                    Recheck::Source source, PyObject* owner, std::int32_t offset) {
  Recheck made{.source = source, .place = place, .number = offset, .object = owner};
  const bool alone = source != Recheck::Source::kAttribute && node.kind == Place::Kind::kTensor &&
                     node.number < 0 && node.returned < 0 && node.children == 0 && !node.object;
  if (alone && node.shape->has_seen) {
    note_tensor(node, object, made);
  }
  check(made);
}

void Recorder::note_walked(const Place& node, PyObject* object) {
  note_lines(&node, sizeof(Place));
  if (object == nullptr || node.kind == Place::Kind::kAny || node.kind == Place::Kind::kIs) {
    return;
  }
  note_lines(object, static_cast<std::size_t>(Py_TYPE(object)->tp_basicsize));
  if (PyDict_Check(object) != 0) {
    const auto* dict = reinterpret_cast<const PyDictObject*>(object);
    note_lines(dict->ma_keys, sizeof(void*));
    note_lines(dict->ma_values, sizeof(void*));
  }
}

void Recorder::note_autograd(PyObject* tensor) {
  // What requires_grad() asks is behind the word that follows the storage's (TensorImpl.h), and
  // looks into its class and 128 bytes further (AutogradMeta, in torch 2.11 to 2.13).
  constexpr std::ptrdiff_t kFlag = 128;
  const char* metadata = torch_api().metadata(tensor);
  const char* autograd = *reinterpret_cast<char* const*>(metadata + sizeof(void*));
  note_lines(metadata, 2 * sizeof(void*));
  if (autograd != nullptr) {
    note_lines(autograd, sizeof(void*));
    note_lines(autograd + kFlag, 1);
  }
}

void Recorder::note_tensor(const Place& node, PyObject* tensor, Recheck& check) {
  const TorchApi& api = torch_api();
  const std::size_t bytes = api.metadata_bytes;
  check.seen = static_cast<std::int32_t>(record_.seen.size() / bytes);
  check.other = node.type.get();
  const char* metadata = api.metadata(tensor);
  note_lines(tensor, sizeof(PyObject));
  note_lines(api.handle(tensor), sizeof(TensorHandle));
  note_lines(metadata, bytes);
  note_lines(*reinterpret_cast<char* const*>(metadata), sizeof(void*));  // its storage
  note_autograd(tensor);
  check.requires_grad = node.shape->requires_grad;
  check.asks_for_memory = node.shape->asks_for_memory();
  check.emptied = node.shape->emptied;
  const auto begin = node.shape->seen.begin();
  record_.seen.insert(record_.seen.end(), begin, begin + static_cast<std::ptrdiff_t>(bytes));
}

Recorder::Position Recorder::enter(std::uint32_t place, const Place& node, PyObject* object,
                                   Below below) {
  const Position outer = position_;
  const std::optional<Field> field = std::exchange(field_, std::nullopt);
  PyObject* const attribute_of = std::exchange(attribute_of_, nullptr);
  Known known = outer.known;
  if (known == Known::kFixed && field && !field->lasting) {
    known = Known::kHeld;
  }
  if (known != Known::kNot && attribute_of != nullptr && node.kind != Place::Kind::kAny) {
    walk(place, node, object, Recheck::Source::kAttribute, attribute_of, 0);
    position_.known = known = Known::kNot;
  }
  const bool kept = node.keeps(object);
  if (node.number >= 0) {
    const auto number = static_cast<std::size_t>(node.number);
    if (node.kind != Place::Kind::kSame) {
      const bool lives = known == Known::kFixed || (known == Known::kHeld && kept);
      fixed_[number] = lives ? object : nullptr;
    } else if (known == Known::kNot) {
      asked_[number] = true;
    }
  }
  if (known == Known::kNot) {
    note_walked(node, object);
  }
  if (known == Known::kNot || node.kind == Place::Kind::kAny) {
    return outer;
  }
  if (!kept && !can_be_looked_into(place, node, object, known, below)) {
    if (field && known == Known::kHeld) {
      walk(place, node, object, Recheck::Source::kField, field->owner, field->offset);
    } else {
      walk(place, node, object, Recheck::Source::kObject, object, 0);
    }
    position_.known = Known::kNot;
    return outer;
  }
  if (field) {
    see(place, *field);
  }
  if (node.kind == Place::Kind::kSame && fixed_[static_cast<std::size_t>(node.number)] == nullptr) {
    check({.kind = Recheck::Kind::kSame,
           .place = static_cast<std::uint32_t>(node.number),
           .object = object});
  }
  if (known == Known::kHeld && node.number >= 0 && node.kind != Place::Kind::kSame && !kept) {
    check({.kind = Recheck::Kind::kMeet,
           .place = static_cast<std::uint32_t>(node.number),
           .object = object});
  }
  if (known == Known::kHeld && below == Below::kLasting) {
    record_.kept.push_back(PythonRef::to(object));
    known = Known::kFixed;
  }
  if (!kept) {
    check_itself(place, node, object, known);
  }
  position_.known = known;
  return outer;
}

void Recorder::enter_items(std::uint32_t place, const Place& node, PyObject* instance,
                           PyObject* dict) {
  const bool ordered = has_order_of_its_own(dict);
  const bool known = position_.known != Known::kNot;
  if (is_walked(place) || (ordered && !known)) {
    return;
  }
  if (ordered) {
    strikes_[place] = kMostStrikes;
    failed_ = true;
    return;
  }
  watch(dict, place, node.kind == Place::Kind::kNames);
  if (!known) {
    record_.anchors.push_back({.place = place, .dict = dict});
    position_.anchor = record_.anchors.size();
  } else if (instance != nullptr) {
    check({.kind = Recheck::Kind::kType,
           .place = place,
           .object = instance,
           .other = node.type.get()});
    check({.kind = Recheck::Kind::kDict, .place = place, .object = instance, .other = dict});
  }
  position_.known = Known::kFixed;
}

void Recorder::leave(Position outer, std::uint32_t end) {
  if (position_.anchor != outer.anchor) {
    record_.anchors[position_.anchor - 1].end = end;
  }
  position_ = outer;
}

bool Recorder::finish() {
  for (std::size_t number = 0; number < fixed_.size(); ++number) {
    if (asked_[number] && fixed_[number] != nullptr) {
      record_.met.emplace_back(static_cast<std::uint32_t>(number), fixed_[number]);
    }
  }
  return !failed_;
}

int Unchanged::traverse(visitproc visit, void* arg) const {
  if (record_ != nullptr) {
    for (const PythonRef& tuple : record_->kept) {
      Py_VISIT(tuple.get());
    }
  }
  return 0;
}

std::shared_ptr<Record> Unchanged::usable() const noexcept {
  return record_ != nullptr && !record_->stale() && !is_finalizing() ? record_ : nullptr;
}

std::shared_ptr<Record> Unchanged::retire() {
  std::shared_ptr<Record> last = std::exchange(record_, nullptr);
  if (last == nullptr) {
    return nullptr;
  }
  const bool in_vain = last->uses < kWorthwhile;
  for (const Record::Watch& watch : last->watches_) {
    if (watch.changed && (in_vain || watch.looked_up)) {
      ++strikes_[watch.place];
    }
  }
  if (!in_vain) {
    in_vain_ = 0;
    return nullptr;
  }
  return last;
}

bool Unchanged::begin() noexcept {
  if (in_vain_ == kMostInVain || Registry::get() == nullptr || is_finalizing()) {
    return false;
  }
  ++in_vain_;
  return true;
}

bool Unchanged::strike_moved(const Record& last, const Record& made) {
  bool any = false;
  auto before = last.watches_.begin();
  for (const Record::Watch& watch : made.watches_) {  // both in the order of the tree
    while (before != last.watches_.end() && before->place < watch.place) {
      ++before;
    }
    if (before != last.watches_.end() && before->place == watch.place && !before->changed &&
        before->dict != watch.dict) {
      any = ++strikes_[watch.place] >= kMostStrikes || any;
    }
  }
  return any;
}

}  // namespace pygraph::torch_bridge::callable
