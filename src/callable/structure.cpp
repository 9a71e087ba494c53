#include "structure.h"

#include <structmember.h>  // T_OBJECT_EX

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "unchanged.h"

namespace pygraph::torch_bridge::callable {
namespace {

struct Names {
  PyObject* cell_contents = PyUnicode_InternFromString("cell_contents");
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* is_conj = PyUnicode_InternFromString("is_conj");
};

const Names& names() {
  static const Names interned;  // NOLINT: lives as long as the process
  return interned;
}

/// How many lie ahead of a loop over them: 12 cache lines, as many as a core waits for at a time.
constexpr std::ptrdiff_t kPrefetchedRechecks = 24;

constexpr auto kPointer = static_cast<Py_ssize_t>(sizeof(PyObject*));

bool equal(PyObject* one, PyObject* other) noexcept {
  const int same = PyObject_RichCompareBool(one, other, Py_EQ);
  if (same < 0) {
    PyErr_Clear();
  }
  return same == 1;
}

std::uint64_t bits(double value) noexcept { return std::bit_cast<std::uint64_t>(value); }

/// Whether nothing tells two values apart. Python's equality takes 1, 1.0 and True for the same,
/// and 0.0 and -0.0; a NaN is itself here.
bool same_value(PyObject* wanted, PyObject* object) noexcept {
  if (object == wanted) {
    return true;
  }
  if (Py_TYPE(object) != Py_TYPE(wanted) || wanted == Py_None || PyBool_Check(wanted)) {
    return false;
  }
  if (PyFloat_Check(wanted)) {
    return bits(PyFloat_AS_DOUBLE(wanted)) == bits(PyFloat_AS_DOUBLE(object));
  }
  if (PyComplex_Check(wanted)) {
    const Py_complex left = PyComplex_AsCComplex(wanted);
    const Py_complex right = PyComplex_AsCComplex(object);
    return bits(left.real) == bits(right.real) && bits(left.imag) == bits(right.imag);
  }
  return equal(object, wanted);
}

/// Whether an array's memory, in one piece, holds the bytes.
bool same_bytes(PyObject* bytes, PyObject* array) noexcept {
  Py_buffer view;
  if (PyObject_GetBuffer(array, &view, PyBUF_SIMPLE) != 0) {
    PyErr_Clear();
    return false;
  }
  const bool same =
      view.len == PyBytes_GET_SIZE(bytes) &&
      std::memcmp(view.buf, PyBytes_AS_STRING(bytes), static_cast<std::size_t>(view.len)) == 0;
  PyBuffer_Release(&view);
  return same;
}

/// Of a class; see Place::Kind::kMethods.
bool are_keys_and_names(PyObject* object) noexcept {
  return object != nullptr && PyTuple_CheckExact(object) && PyTuple_GET_SIZE(object) == 2 &&
         PyTuple_CheckExact(PyTuple_GET_ITEM(object, 0)) &&
         (PyTuple_GET_ITEM(object, 1) == Py_None || PyAnySet_Check(PyTuple_GET_ITEM(object, 1)));
}

/// An attribute of torch's tensors, read past the look-up of its name, which takes as long again.
class TensorAttribute {
 public:
  explicit TensorAttribute(const char* name) {
    PyObject* type = reinterpret_cast<PyObject*>(torch_api().tensor_type);
    name_ = PyUnicode_InternFromString(name);
    PyObject* found = PyObject_GetAttr(type, name_);
    if (found != nullptr && Py_IS_TYPE(found, &PyGetSetDescr_Type)) {
      definition_ = reinterpret_cast<PyGetSetDescrObject*>(found)->d_getset;
    }
    PyErr_Clear();  // the descriptor lives as long as the type
  }
  /// A new reference, or null with a Python error set.
  PyObject* of(PyObject* tensor) const {
    return definition_ == nullptr ? PyObject_GetAttr(tensor, name_)
                                  : definition_->get(tensor, definition_->closure);
  }
  [[nodiscard]] PyObject* name() const noexcept { return name_; }
  [[nodiscard]] bool is(const PyGetSetDef* definition) const noexcept {
    return definition == definition_;
  }

 private:
  PyObject* name_ = nullptr;
  const PyGetSetDef* definition_ = nullptr;
};

const TensorAttribute& grad() {
  static const TensorAttribute attribute("grad");  // NOLINT: lives as long as the process
  return attribute;
}

/// The version of a class, which ends with a change; 0: it has none.
unsigned int version_of(PyTypeObject* type) noexcept {
#if PY_VERSION_HEX >= 0x030C0000
  PyUnstable_Type_AssignVersionTag(type);
#endif
  return type->tp_version_tag;
}

/// How objects of `type` have an attribute. Slots, and what C code computes, come before the
/// variables of an object (Python's data model, Invoking Descriptors); the rest is looked up.
AttributeReader reader_of(PyTypeObject* type, PyObject* name) noexcept {
  AttributeReader made{.version = version_of(type)};
  const PythonRef found =
      PythonRef::stolen(PyObject_GetAttr(reinterpret_cast<PyObject*>(type), name));
  PyErr_Clear();
  const bool slot = found && Py_IS_TYPE(found.get(), &PyMemberDescr_Type);
  const bool computed = found && Py_IS_TYPE(found.get(), &PyGetSetDescr_Type);
  if (type->tp_getattro != PyObject_GenericGetAttr || !(slot || computed) ||
      PyType_IsSubtype(type, PyDescr_TYPE(found.get())) == 0) {  // what its metaclass tells
    return made;
  }
  if (slot) {
    const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(found.get())->d_member;
    const bool object = member->type == T_OBJECT_EX || member->type == T_OBJECT;
    made.slot = object ? member->offset : 0;
  } else {
    const PyGetSetDef* definition = reinterpret_cast<PyGetSetDescrObject*>(found.get())->d_getset;
    made.computed = definition->get == nullptr ? nullptr : definition;  // nobody may read it
  }
  return made;
}

const TensorAttribute& requires_grad() {
  static const TensorAttribute attribute("requires_grad");  // NOLINT: lives as long as the process
  return attribute;
}

/// An attribute of an object, or null, where it has none; leaves no Python error set. Inlined,
/// since a call of it is 3% of the instructions of a comparison with many DTensors.
[[gnu::always_inline]] inline PythonRef attribute_of(PyObject* object, PyObject* name,
                                                     AttributeReader& reader) noexcept {
  if (reader.version == 0 || reader.version != Py_TYPE(object)->tp_version_tag) {
    reader = reader_of(Py_TYPE(object), name);
  }
  if (reader.slot != 0) {
    auto* slot = reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + reader.slot);
    if (*slot != nullptr) [[likely]] {  // else it is None, or there is none
      return PythonRef::to(*slot);
    }
  }
  if (reader.computed != nullptr && requires_grad().is(reader.computed)) {
    // Torch first asks a class that tensors are made of others with, in Python.
    return PythonRef::to(torch_api().requires_grad(object) ? Py_True : Py_False);
  }
  PyObject* value = reader.computed == nullptr
                        ? PyObject_GetAttr(object, name)
                        : reader.computed->get(object, reader.computed->closure);
  if (value == nullptr) {
    PyErr_Clear();
  }
  return PythonRef::stolen(value);
}

/// What runs when a leaf gets a gradient.
const std::array<TensorAttribute, 2>& hooks() {
  static const std::array<TensorAttribute, 2> attributes{
      TensorAttribute("_backward_hooks"), TensorAttribute("_post_accumulate_grad_hooks")};
  return attributes;
}

/// Whether a tensor says so of itself, or cannot say.
bool says(PyObject* tensor, PyObject* method) noexcept {
  const PythonRef value = PythonRef::stolen(PyObject_CallMethodNoArgs(tensor, method));
  if (!value) {
    PyErr_Clear();
  }
  return value.get() != Py_False;
}

/// Whether a tensor stands somewhere where it has to, and nowhere else. Under a transformation of
/// torch.func one has no memory of its own.
bool has_memory_like(PyObject* tensor, const TensorShape& shape) noexcept {
  return shape.empty || (torch_api().data(tensor) == nullptr) == shape.emptied;
}

/// Whether nothing can have changed since a tensor was found to have this shape.
bool has_seen_shape(PyObject* tensor, const TensorShape& shape) noexcept {
  const TorchApi& api = torch_api();
  return shape.has_seen &&
         std::memcmp(api.metadata(tensor), shape.seen.data(), api.metadata_bytes) == 0 &&
         api.requires_grad(tensor) == shape.requires_grad &&
         (!shape.asks_for_memory() || has_memory_like(tensor, shape));
}

/// `tensor` has it. Sizes and strides of many dimensions are not in the metadata, and what Python
/// has answered may not be true any more.
void remember(PyObject* tensor, const TensorShape& shape) noexcept {
  const TorchApi& api = torch_api();
  const char* start = api.metadata(tensor);
  const auto within = [&](Status (*get)(TensorHandle, std::int64_t**)) {
    std::int64_t* values = nullptr;
    const std::less_equal<const void*> in_order;
    return get(api.handle(tensor), &values) == 0 && in_order(start, values) &&
           in_order(values + shape.dimensions, start + api.metadata_bytes);
  };
  shape.has_seen = api.metadata_bytes != 0 && !shape.may_be_negated && !shape.may_be_conjugated &&
                   within(api.get_sizes) && within(api.get_strides);
  if (shape.has_seen) {
    std::memcpy(shape.seen.data(), start, api.metadata_bytes);
  }
}

bool has_shape(PyObject* tensor, const TensorShape& shape) noexcept {
  if (has_seen_shape(tensor, shape)) {
    return true;
  }
  const TorchApi& api = torch_api();
  const TensorHandle handle = api.handle(tensor);
  std::int32_t device = -1;
  std::int32_t index = -1;
  std::int64_t* values = nullptr;
  const std::int64_t* wanted = shape.extents.data();
  const std::size_t count = shape.dimensions;
  const bool same =
      api.dtype(tensor) == shape.dtype && api.dim(tensor) == shape.dimensions &&
      api.get_sizes(handle, &values) == 0 && std::equal(wanted, wanted + count, values) &&
      api.get_strides(handle, &values) == 0 &&
      std::equal(wanted + count, wanted + 2 * count, values) &&
      api.get_device_type(handle, &device) == 0 && device == shape.device_type &&
      api.get_device_index(handle, &index) == 0 && index == shape.device_index &&
      api.requires_grad(tensor) == shape.requires_grad &&
      !(shape.may_be_negated && says(tensor, names().is_neg)) &&
      !(shape.may_be_conjugated && says(tensor, names().is_conj)) && has_memory_like(tensor, shape);
  if (same) {
    remember(tensor, shape);
  }
  return same;
}

/// A number's value, if it is one of those that may_stand_in() speaks of.
std::optional<double> unremarkable(PyObject* object) noexcept {
  double value = 0;
  if (PyFloat_CheckExact(object)) {
    value = PyFloat_AS_DOUBLE(object);
  } else if (PyLong_CheckExact(object)) {
    int overflow = 0;
    const long long whole = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow != 0) {
      return std::nullopt;
    }
    value = static_cast<double>(whole);
  } else {
    return std::nullopt;
  }
  constexpr double kLargestRemarkable = 4;
  const bool remarkable =
      std::abs(value) <= kLargestRemarkable && std::trunc(2 * value) == 2 * value;
  return std::isfinite(value) && !remarkable ? std::optional(value) : std::nullopt;
}

}  // namespace

bool may_stand_in(PyObject* one, PyObject* other) noexcept {
  if (Py_TYPE(one) != Py_TYPE(other)) {
    return false;
  }
  const std::optional<double> left = unremarkable(one);
  const std::optional<double> right = unremarkable(other);
  return left && right && std::signbit(*left) == std::signbit(*right) &&
         (std::abs(*left) < 1) == (std::abs(*right) < 1);
}

bool Slot::set(PyObject* value) const {
  switch (owner) {
    case Owner::kDict:
      return PyDict_SetItem(container.get(), key.get(), value) == 0;
    case Owner::kList:
      return PyList_SetItem(container.get(), index, Py_NewRef(value)) == 0;
    case Owner::kAttribute:
      return PyObject_SetAttr(container.get(), key.get(), value) == 0;
  }
  return false;
}

/// One walk through a call, beside the tree.
class Structure::Walk {
 public:
  Walk(const Structure& structure, Found& found)
      : nodes_(structure.nodes_), found_(found), met_(structure.numbers_) {
    found_.leaves.clear();
    found_.leaves.reserve(structure.leaves_);
    found_.slots.clear();
    found_.slots.resize(structure.slots_);
    found_.objects.clear();
    found_.objects.resize(structure.objects_);
  }
  /// One that tells what it comes to.
  Walk(const Structure& structure, Found& found, Recorder& recorder) : Walk(structure, found) {
    recorder_ = &recorder;
  }
  /// One past what has not changed.
  Walk(const Structure& structure, Found& found, const Record& record) : Walk(structure, found) {
    record_ = &record;
    for (const void* line : record.lines) {
      __builtin_prefetch(line);
    }
    for (const auto& [number, object] : record.met) {
      met_[number] = PythonRef::to(object);
    }
  }

  bool admit_all(const std::vector<PyObject*>& roots) {
    const bool same =
        std::all_of(roots.begin(), roots.end(), [this](PyObject* root) { return admits(root); });
    found_.places = at_;
    return same;
  }

  /// A record is of no use any more: a whole comparison may admit what this has not.
  [[nodiscard]] bool is_unsure() const noexcept { return unsure_; }
  /// The place that had another object in a field than the record has.
  [[nodiscard]] std::optional<std::uint32_t> blamed() const noexcept { return blamed_; }

 private:
  bool admits(PyObject* object) {
    if (recorder_ == nullptr) [[likely]] {
      return is_same_leaf(nodes_[at_], object) ? ++at_ != 0 : compare(object);
    }
    return admits_recorded(object);
  }
  [[gnu::cold]] bool admits_recorded(PyObject* object) {
    const Recorder::Position outer =
        recorder_->enter(static_cast<std::uint32_t>(at_), nodes_[at_], object, below(at_, object));
    const bool same = compare(object);
    recorder_->leave(outer, static_cast<std::uint32_t>(at_));
    return same;
  }

  [[nodiscard]] Recorder::Below below(std::size_t at, PyObject* object) const noexcept {
    if (is_lasting(at, object)) {
      return Recorder::Below::kLasting;
    }
    return are_named(at, object) ? Recorder::Below::kNamed : Recorder::Below::kOther;
  }
  /// Whether it is a tuple of what the tree keeps alive, and of such tuples.
  [[nodiscard]] bool is_lasting(std::size_t at, PyObject* object) const noexcept {
    const Place& node = nodes_[at];
    if (node.kind != Place::Kind::kTuple || node.returned >= 0 || PyTuple_CheckExact(object) == 0 ||
        PyTuple_GET_SIZE(object) != node.children) {
      return false;
    }
    std::size_t child = at + 1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i, child = nodes_[child].end) {
      const Place& place = nodes_[child];
      PyObject* element = PyTuple_GET_ITEM(object, i);
      const bool kept = place.keeps(element) && place.returned < 0;
      if (!kept && !is_lasting(child, element)) {
        return false;
      }
    }
    return true;
  }
  /// Whether it is a function, or attributes of a class whose changes its version tells of.
  [[nodiscard]] bool are_named(std::size_t at, PyObject* object) const noexcept {
    const Place& node = nodes_[at];
    return (node.kind == Place::Kind::kFunction && PyFunction_Check(object) != 0) ||
           (node.kind == Place::Kind::kAttributes && version_of(Py_TYPE(object)) != 0);
  }
  static bool tells_of_gradients(const AttributeReader& reader) noexcept {
    return reader.computed != nullptr && requires_grad().is(reader.computed);
  }

  static Field field_of(PyObject* owner, Py_ssize_t offset, bool lasting) noexcept {
    return {owner, static_cast<std::int32_t>(offset), *in_field(owner, offset), lasting};
  }
  static PyObject* const* in_field(PyObject* owner, Py_ssize_t offset) noexcept {
    return reinterpret_cast<PyObject* const*>(reinterpret_cast<const char*>(owner) + offset);
  }

  /// What most places are, and needs nothing of a walk's: the very object, or a value as it was.
  static bool is_same_leaf(const Place& node, PyObject* object) noexcept {
    const bool fixed = node.kind == Place::Kind::kIs || node.kind == Place::Kind::kValue;
    return ((fixed && node.object.get() == object) || node.kind == Place::Kind::kAny) &&
           node.number < 0 && node.returned < 0;
  }

  bool compare(PyObject* object) {
    const Place& node = nodes_[at_++];
    if (node.number >= 0 && node.kind != Place::Kind::kSame) {
      met_[static_cast<std::size_t>(node.number)] = PythonRef::to(object);
    }
    if (node.returned >= 0) {
      found_.objects[static_cast<std::size_t>(node.returned)] = PythonRef::to(object);
    }
    switch (node.kind) {
      case Place::Kind::kAny:
        return true;
      case Place::Kind::kValue:
        return same_value(node.object.get(), object);
      case Place::Kind::kIs:
        return object == node.object.get();
      case Place::Kind::kSame:
        return object == met_[static_cast<std::size_t>(node.number)].get();
      case Place::Kind::kTuple:
        return is_of(node, object) && PyTuple_Check(object) &&
               PyTuple_GET_SIZE(object) == node.children && elements(node, object);
      case Place::Kind::kList:
        return is_of(node, object) && PyList_Check(object) &&
               PyList_GET_SIZE(object) == node.children && elements(node, object);
      case Place::Kind::kIterated:
        return is_of(node, object) && iterated(node, object);
      case Place::Kind::kDict:
        return is_of(node, object) && PyDict_Check(object) && items(node, nullptr, object);
      case Place::Kind::kInstance:
      case Place::Kind::kVariables:
        return is_of(node, object) && instance(node, object);
      case Place::Kind::kAttributes:
        return is_of(node, object) && attributes(node, object);
      case Place::Kind::kNames:
        return looked_up(node, object);
      case Place::Kind::kMethods:
        return methods(node, object);
      case Place::Kind::kFunction:
        return function(node, object);
      case Place::Kind::kEmpty:
        return object == nullptr;
      case Place::Kind::kBytes:
        return is_of(node, object) && same_bytes(node.object.get(), object);
      case Place::Kind::kReference:
        return reference(node, object);
      case Place::Kind::kTensor:
        return is_of(node, object) && has_shape(object, *node.shape) && tensor(node, object);
      case Place::Kind::kUnread:
        found_.leaves.emplace_back();
        return true;
      case Place::Kind::kGenerator:
        found_.leaves.push_back(PythonRef::to(object));
        return is_of(node, object);
      case Place::Kind::kNumber:
        found_.leaves.push_back(PythonRef::to(object));
        return may_stand_in(node.object.get(), object);
    }
    return false;
  }

  static bool is_of(PyObject* type, PyObject* object) noexcept {
    return object != nullptr && reinterpret_cast<PyObject*>(Py_TYPE(object)) == type;
  }
  static bool is_of(const Place& node, PyObject* object) noexcept {
    return is_of(node.type.get(), object);
  }

  void note(Slot::Owner owner, PyObject* container, PyObject* key, Py_ssize_t index) {
    const Place& node = nodes_[at_];
    if (node.slot >= 0) {
      found_.slots[static_cast<std::size_t>(node.slot)] =
          Slot{owner, PythonRef::to(container), PythonRef::to(key), index};
    }
  }

  /// Elements of a list or tuple. A comparison of values may run Python code, so sizes are looked
  /// at each time.
  bool elements(const Place& node, PyObject* object) {
    const bool list = PyList_Check(object) != 0;
    for (Py_ssize_t i = 0; i < static_cast<Py_ssize_t>(node.children); ++i) {
      if (i >= PySequence_Fast_GET_SIZE(object)) {
        return false;
      }
      if (list) {
        note(Slot::Owner::kList, object, nullptr, i);
      }
      const PythonRef element = PythonRef::to(PySequence_Fast_GET_ITEM(object, i));
      if (recorder_ != nullptr) [[unlikely]] {
        record_element(object, i, list);
      }
      if (!admits(element.get())) {
        return false;
      }
    }
    return true;
  }

  [[gnu::cold]] void record_element(PyObject* object, Py_ssize_t index, bool list) {
    PyObject** elements = PySequence_Fast_ITEMS(object);
    PyObject* start = list ? reinterpret_cast<PyObject*>(elements) : object;
    const auto offset =
        reinterpret_cast<const char*>(elements + index) - reinterpret_cast<const char*>(start);
    recorder_->reach(field_of(start, offset, !list));
  }

  bool iterated(const Place& node, PyObject* object) {
    const PythonRef iterator = PythonRef::stolen(PyObject_GetIter(object));
    std::uint32_t seen = 0;
    while (iterator) {
      const PythonRef element = PythonRef::stolen(PyIter_Next(iterator.get()));
      if (!element) {
        break;
      }
      if (seen == node.children || !admits(element.get())) {
        return false;
      }
      ++seen;
    }
    const bool ended = PyErr_Occurred() == nullptr;
    PyErr_Clear();
    return ended && seen == node.children;
  }

  /// The items of `dict`, which may be the __dict__ of `instance`.
  bool items(const Place& node, PyObject* instance, PyObject* dict) {
    const auto place = static_cast<std::uint32_t>(at_ - 1);
    if (record_ != nullptr && anchor_ < record_->anchors.size() &&
        record_->anchors[anchor_].place == place) {
      return unchanged(record_->anchors[anchor_++], dict);
    }
    if (recorder_ != nullptr) {
      recorder_->enter_items(place, node, instance, dict);
    }
    if (node.kind == Place::Kind::kVariables || node.kind == Place::Kind::kNames) {
      return found_by_keys(node, dict, dict, Slot::Owner::kDict);
    }
    if (node.children == 0) {
      return PyDict_GET_SIZE(dict) == 0;
    }
    return has_order_of_its_own(dict) ? ordered_items(node, dict) : plain_items(node, dict);
  }

  bool plain_items(const Place& node, PyObject* dict) {
    Py_ssize_t position = 0;
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    std::uint32_t seen = 0;
    while (PyDict_Next(dict, &position, &key, &value) != 0) {
      if (!item(node, dict, key, value, seen)) {
        return false;
      }
    }
    return seen == node.children;
  }

  /// In the order that an OrderedDict shows, which its dictionary does not know.
  bool ordered_items(const Place& node, PyObject* dict) {
    const PythonRef keys = PythonRef::stolen(PyODict_Type.tp_iter(dict));
    std::uint32_t seen = 0;
    while (keys) {
      const PythonRef key = PythonRef::stolen(PyIter_Next(keys.get()));
      PyObject* value = key ? PyDict_GetItemWithError(dict, key.get()) : nullptr;
      if (value == nullptr) {
        break;
      }
      if (!item(node, dict, key.get(), value, seen)) {
        return false;
      }
    }
    const bool ended = PyErr_Occurred() == nullptr;
    PyErr_Clear();
    return ended && seen == node.children;
  }

  bool item(const Place& node, PyObject* dict, PyObject* key, PyObject* value,
            std::uint32_t& seen) {
    if (seen == node.children) {
      return false;
    }
    PyObject* wanted = nodes_[at_].key.get();
    if (wanted == key && nodes_[at_].kind == Place::Kind::kAny) {
      ++seen;
      ++at_;
      return true;
    }
    const PythonRef kept_key = PythonRef::to(key);
    const PythonRef kept_value = PythonRef::to(value);
    if (wanted == nullptr) {  // a key that is no value has a place of its own
      ++seen;
      if (!admits(key)) {
        return false;
      }
    } else if (!same_value(wanted, key)) {
      return false;
    }
    ++seen;
    note(Slot::Owner::kDict, dict, key, 0);
    return admits(kept_value.get());
  }

  /// Whether everything below an anchor is the same. What is walked may run Python code, which may
  /// change anything; so all that pointers say is looked at first, and what is walked is held.
  bool unchanged(const Anchor& anchor, PyObject* dict) {
    const std::size_t first = pending_.size();
    bool same = dict == anchor.dict && !record_->stale() && is_as_it_was(anchor);
    for (std::size_t i = first; same && i < pending_.size(); ++i) {
      const Recheck& check = *pending_[i].check;
      PythonRef object = std::move(pending_[i].object);
      if (check.kind == Recheck::Kind::kSame) {
        same = met_[check.place].get() == check.object;
      } else if (check.seen >= 0 && is_of(check.other, object.get()) &&
                 is_seen(check, object.get())) {
        found_.leaves.push_back(std::move(object));
      } else if (walk_again(check, object.get())) {
        same = !record_->stale();
      } else {
        return false;
      }
    }
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(first), pending_.end());
    unsure_ = unsure_ || !same;
    at_ = anchor.end;
    return same;
  }

  /// Whether the checks of an anchor hold that run no Python code; the others are pending then.
  bool is_as_it_was(const Anchor& anchor) {
    bool same = true;
    for (const Recheck& check : anchor.checks) {
      __builtin_prefetch(&check + kPrefetchedRechecks);
      switch (check.kind) {
        case Recheck::Kind::kType:
          same = is_of(check.other, check.object);
          break;
        case Recheck::Kind::kVersion:
          same = is_of(check.other, check.object) &&
                 static_cast<std::int32_t>(Py_TYPE(check.object)->tp_version_tag) == check.number;
          break;
        case Recheck::Kind::kDict:
          same = has_dict(check.object, check.other);
          break;
        case Recheck::Kind::kSize:
          same = Py_SIZE(check.object) == check.number;
          break;
        case Recheck::Kind::kField:
          same = *in_field(check.object, check.number) == check.other;
          blamed_ = same ? blamed_ : check.place;
          break;
        case Recheck::Kind::kRequires:
          same = torch_api().requires_grad(check.object) == (check.number != 0);
          break;
        case Recheck::Kind::kMeet:
          met_[check.place] = PythonRef::to(check.object);
          break;
        case Recheck::Kind::kSame:
          pending_.push_back({&check, {}});
          break;
        case Recheck::Kind::kWalk: {
          const bool in_a_field = check.source == Recheck::Source::kField;
          PyObject* object = in_a_field ? *in_field(check.object, check.number) : check.object;
          same = object != nullptr;
          pending_.push_back({&check, PythonRef::to(object)});
          break;
        }
      }
      if (!same) {
        return false;
      }
    }
    return true;
  }

  /// Compares what a check is of with the tree.
  bool walk_again(const Recheck& check, PyObject* object) {
    at_ = check.place;
    if (check.source != Recheck::Source::kAttribute) {
      const bool same = compare(object);
      note_seen(check);
      return same;
    }
    const Place& node = nodes_[at_];
    const PythonRef value = attribute_of(object, node.key.get(), node.reader);
    return value ? admits(value.get()) : admits_nothing();
  }

  /// What most of a call is, and needs nothing of a walk's: a parameter as it was.
  [[nodiscard]] bool is_seen(const Recheck& check, PyObject* tensor) const noexcept {
    const TorchApi& api = torch_api();
    const char* seen =
        record_->seen.data() + static_cast<std::size_t>(check.seen) * api.metadata_bytes;
    return std::memcmp(api.metadata(tensor), seen, api.metadata_bytes) == 0 &&
           api.requires_grad(tensor) == check.requires_grad &&
           (!check.asks_for_memory || (api.data(tensor) == nullptr) == check.emptied);
  }

  /// A tensor has been found to be the same by more than its metadata.
  void note_seen(const Recheck& check) const noexcept {
    const std::size_t bytes = torch_api().metadata_bytes;
    if (check.seen >= 0 && nodes_[check.place].shape->has_seen) {
      std::memcpy(record_->seen.data() + static_cast<std::size_t>(check.seen) * bytes,
                  nodes_[check.place].shape->seen.data(), bytes);
    }
  }

  static bool has_dict(PyObject* object, PyObject* dict) noexcept {
    PyObject* const* found = _PyObject_GetDictPtr(object);
    return found != nullptr && *found == dict;
  }

  bool instance(const Place& node, PyObject* object) {
    const PythonRef dict = PythonRef::stolen(PyObject_GenericGetDict(object, nullptr));
    if (!dict) {
      PyErr_Clear();
      return false;
    }
    return items(node, object, dict.get());
  }

  bool attributes(const Place& node, PyObject* object) {
    for (std::uint32_t i = 0; i < node.children; ++i) {
      PyObject* key = nodes_[at_].key.get();
      const PythonRef value = attribute_of(object, key, nodes_[at_].reader);
      note(Slot::Owner::kAttribute, object, key, 0);
      if (recorder_ != nullptr) [[unlikely]] {
        record_attribute(object, value.get());
      }
      if (!(value ? admits(value.get()) : admits_nothing())) {
        return false;
      }
    }
    return true;
  }

  /// The next place is an attribute of `object`.
  [[gnu::cold]] void record_attribute(PyObject* object, PyObject* value) {
    const AttributeReader& reader = nodes_[at_].reader;
    const auto place = static_cast<std::uint32_t>(at_);
    if (Py_IS_TYPE(object, &PyMethod_Type)) {
      const bool function = value == PyMethod_GET_FUNCTION(object);
      const std::size_t offset =
          function ? offsetof(PyMethodObject, im_func) : offsetof(PyMethodObject, im_self);
      recorder_->reach(field_of(object, static_cast<Py_ssize_t>(offset), true));
    } else if (reader.slot != 0 && value != nullptr && *in_field(object, reader.slot) == value) {
      recorder_->reach(field_of(object, reader.slot, false));
    } else if (reader.slot != 0) {  // there is nothing, or None for it
      recorder_->see(place, field_of(object, reader.slot, false));
    } else if (tells_of_gradients(reader)) {
      recorder_->see_requires_grad(place, object, value == Py_True);
    } else if (value != nullptr) {
      recorder_->reach_attribute(object);
    } else {
      recorder_->see_no_attribute(place, object);
    }
  }

  /// The variables of a dictionary, or of a class itself.
  bool looked_up(const Place& node, PyObject* object) {
    if (PyType_Check(object) == 0) {
      return PyDict_Check(object) != 0 && items(node, nullptr, object);
    }
    const PythonRef dict = names_of_class(reinterpret_cast<PyTypeObject*>(object));
    return dict && found_by_keys(node, dict.get(), object, Slot::Owner::kAttribute);
  }

  /// CPython's own classes have it elsewhere since 3.12.
  static PythonRef names_of_class(PyTypeObject* type) noexcept {
#if PY_VERSION_HEX >= 0x030C0000
    return PythonRef::stolen(PyType_GetDict(type));
#else
    return PythonRef::to(type->tp_dict);
#endif
  }

  bool found_by_keys(const Place& node, PyObject* dict, PyObject* owning, Slot::Owner owner) {
    for (std::uint32_t i = 0; i < node.children; ++i) {
      PyObject* key = nodes_[at_].key.get();
      const PythonRef value = PythonRef::to(PyDict_GetItemWithError(dict, key));
      if (!value) {
        PyErr_Clear();
      }
      note(owner, owning, key, 0);
      if (!(value ? admits(value.get()) : admits_nothing())) {
        return false;
      }
    }
    return true;
  }

  /// Whether a class has these keys, of those that count.
  static bool has_keys(PyObject* dict, PyObject* keys_and_names) noexcept {
    PyObject* keys = PyTuple_GET_ITEM(keys_and_names, 0);
    PyObject* names = PyTuple_GET_ITEM(keys_and_names, 1);
    Py_ssize_t position = 0;
    Py_ssize_t seen = 0;
    PyObject* key = nullptr;
    while (dict != nullptr && PyDict_Next(dict, &position, &key, nullptr) != 0) {
      if (seen < PyTuple_GET_SIZE(keys) && same_value(PyTuple_GET_ITEM(keys, seen), key)) {
        ++seen;
      } else if (names == Py_None || is_special(key) || PySet_Contains(names, key) != 0) {
        PyErr_Clear();
        return false;
      }
    }
    return seen == PyTuple_GET_SIZE(keys);
  }

  static bool is_special(PyObject* name) noexcept {
    return PyUnicode_Check(name) && PyUnicode_GET_LENGTH(name) > 1 &&
           PyUnicode_READ_CHAR(name, 0) == '_' && PyUnicode_READ_CHAR(name, 1) == '_';
  }

  bool methods(const Place& node, PyObject* object) {
    if (object != node.object.get() || PyType_Check(object) == 0) {
      return false;
    }
    auto* type = reinterpret_cast<PyTypeObject*>(object);
    if (node.version != 0 && node.version == type->tp_version_tag) {
      at_ += node.children;  // which have none
      return true;
    }
    if (type->tp_mro != node.type.get() || !has_keys(names_of_class(type).get(), node.key.get()) ||
        !looked_up(node, object)) {
      return false;
    }
    node.version = version_of(type);
    return true;
  }

  bool admits_nothing() { return nodes_[at_++].kind == Place::Kind::kEmpty; }

  bool function(const Place& node, PyObject* object) {
    if (object == nullptr || !PyFunction_Check(object) ||
        PyFunction_GET_CODE(object) != node.object.get()) {
      return false;
    }
    PyObject* attributes = reinterpret_cast<PyFunctionObject*>(object)->func_dict;
    if (!node.type && attributes != nullptr && PyDict_GET_SIZE(attributes) != 0) {
      return false;
    }
    PyObject* closure = PyFunction_GET_CLOSURE(object);
    const Py_ssize_t cells = closure == nullptr ? 0 : PyTuple_GET_SIZE(closure);
    if (node.children != static_cast<std::uint32_t>(cells) + 2) {
      return false;
    }
    if (recorder_ != nullptr) [[unlikely]] {
      record_function(object);
    }
    for (Py_ssize_t i = 0; i < cells; ++i) {
      PyObject* cell = PyTuple_GET_ITEM(closure, i);
      const PythonRef content = PythonRef::stolen(PyCell_Get(cell));
      note(Slot::Owner::kAttribute, cell, names().cell_contents, 0);
      if (!in_field_of(cell, offsetof(PyCellObject, ob_ref), content.get())) {
        return false;
      }
    }
    PyObject* defaults = PyFunction_GET_DEFAULTS(object);
    PyObject* keyword = PyFunction_GET_KW_DEFAULTS(object);
    const auto or_none = [](PyObject* value) { return value == nullptr ? Py_None : value; };
    return in_field_of(object, offsetof(PyFunctionObject, func_defaults), or_none(defaults)) &&
           in_field_of(object, offsetof(PyFunctionObject, func_kwdefaults), or_none(keyword));
  }

  /// Compares what stands in a field; `content`: that, or what its absence means.
  bool in_field_of(PyObject* owner, std::size_t offset, PyObject* content) {
    if (recorder_ != nullptr) [[unlikely]] {
      record_field(field_of(owner, static_cast<Py_ssize_t>(offset), false), content);
    }
    return content != nullptr ? admits(content) : admits_nothing();
  }
  [[gnu::cold]] void record_field(const Field& field, PyObject* content) {
    if (field.content == content && content != nullptr) {
      recorder_->reach(field);
    } else {
      recorder_->see(static_cast<std::uint32_t>(at_), field);
    }
  }

  /// What a function is besides: its code, that it has no attributes, and its cells.
  [[gnu::cold]] void record_function(PyObject* object) {
    const auto place = static_cast<std::uint32_t>(at_ - 1);
    const auto see = [&](PyObject* owner, std::size_t offset, bool lasting) {
      recorder_->see(place, field_of(owner, static_cast<Py_ssize_t>(offset), lasting));
    };
    see(object, offsetof(PyFunctionObject, func_code), false);
    PyObject* attributes = reinterpret_cast<PyFunctionObject*>(object)->func_dict;
    if (!nodes_[place].type) {
      see(object, offsetof(PyFunctionObject, func_dict), false);
      recorder_->see_attributes(place, attributes);
    }
    see(object, offsetof(PyFunctionObject, func_closure), true);
    PyObject* closure = PyFunction_GET_CLOSURE(object);
    for (Py_ssize_t i = 0; closure != nullptr && i < PyTuple_GET_SIZE(closure); ++i) {
      see(closure, offsetof(PyTupleObject, ob_item) + static_cast<std::size_t>(i * kPointer), true);
    }
  }

  bool reference(const Place& node, PyObject* object) {
    PyObject* referent = nullptr;
    if (node.object) {
      if (object != node.object.get()) {
        return false;
      }
      if (PyContextVar_Get(object, nullptr, &referent) != 0) {
        PyErr_Clear();
      }
    } else {
      if (!is_of(node, object)) {
        return false;
      }
      referent = PyObject_CallNoArgs(object);  // None, where it has died
      if (referent == nullptr) {
        PyErr_Clear();
      }
    }
    const PythonRef kept = PythonRef::stolen(referent);
    return kept ? admits(kept.get()) : admits_nothing();
  }

  bool tensor(const Place& node, PyObject* object) {
    found_.leaves.push_back(PythonRef::to(object));
    if (node.object && !lacks(object, node.object.get())) [[unlikely]] {
      return false;
    }
    if (node.children == 0) {
      return true;
    }
    note(Slot::Owner::kAttribute, object, grad().name(), 0);
    const bool unread = nodes_[at_].kind == Place::Kind::kUnread;
    if (!(unread ? admits(Py_None) : admits_attribute(grad(), object))) {
      return false;
    }
    return std::all_of(hooks().begin(), hooks().end(), [&](const TensorAttribute& attribute) {
      return admits_attribute(attribute, object);
    });
  }

  static bool lacks(PyObject* object, PyObject* names) noexcept {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
      if (PyObject_HasAttr(object, PyTuple_GET_ITEM(names, i)) != 0) {
        return false;
      }
    }
    return true;
  }

  bool admits_attribute(const TensorAttribute& attribute, PyObject* tensor) {
    const PythonRef value = PythonRef::stolen(attribute.of(tensor));
    if (!value) {
      PyErr_Clear();
      return false;
    }
    return admits(value.get());
  }

  const std::vector<Place>& nodes_;
  Found& found_;
  std::vector<PythonRef> met_;
  std::size_t at_ = 0;
  Recorder* recorder_ = nullptr;
  const Record* record_ = nullptr;
  std::size_t anchor_ = 0;  ///< of `record_`: the next one
  bool unsure_ = false;
  std::optional<std::uint32_t> blamed_;
  struct Pending {
    const Recheck* check;
    PythonRef object;
  };
  std::vector<Pending> pending_;  ///< of the anchors that are looked at, each within the one before
};

Structure::Structure(std::vector<Place> nodes) : nodes_(std::move(nodes)) {
  struct Open {
    std::size_t place;
    std::uint32_t children;  ///< that are still to come
  };
  std::vector<Open> open;  // of the trees so far; each root begins one
  std::unordered_map<std::int32_t, std::int32_t> numbers;
  // Roots are new ones in each call, or belong to the callable alone, but for a module's variables;
  // and what a call writes itself changes in each.
  Strikes strikes(nodes_.size());
  for (std::size_t at = 0; at < nodes_.size(); ++at) {
    Place& node = nodes_[at];
    if (open.empty()) {
      ++roots_;
      strikes[at] = node.kind == Place::Kind::kNames ? 0 : kMostStrikes;
    } else {
      --open.back().children;
      const std::size_t above = open.back().place;
      if (node.slot >= 0) {
        strikes[above] = kMostStrikes;
      }
      if (nodes_[above].kind == Place::Kind::kMethods && node.children != 0) {
        throw std::invalid_argument("a method in a structure has places below it");
      }
    }
    open.push_back({at, node.children});
    while (!open.empty() && open.back().children == 0) {
      nodes_[open.back().place].end = at + 1;
      open.pop_back();
    }
    slots_ = std::max(slots_, static_cast<std::size_t>(node.slot + 1));
    objects_ = std::max(objects_, static_cast<std::size_t>(node.returned + 1));
    const bool leaf = node.kind == Place::Kind::kTensor || node.kind == Place::Kind::kUnread ||
                      node.kind == Place::Kind::kGenerator || node.kind == Place::Kind::kNumber;
    leaves_ += leaf ? 1 : 0;
    const bool needs_object = node.kind == Place::Kind::kValue || node.kind == Place::Kind::kIs ||
                              node.kind == Place::Kind::kFunction ||
                              node.kind == Place::Kind::kMethods ||
                              node.kind == Place::Kind::kBytes || node.kind == Place::Kind::kNumber;
    if (node.kind == Place::Kind::kMethods && !are_keys_and_names(node.key.get())) {
      throw std::invalid_argument("a class in a structure does not say which keys it has");
    }
    if (node.kind == Place::Kind::kTensor && node.object && !PyTuple_Check(node.object.get())) {
      throw std::invalid_argument("a tensor in a structure does not say which names it lacks");
    }
    if (node.kind == Place::Kind::kReference && node.children != 1) {
      throw std::invalid_argument("a reference of a structure does not say what it refers to");
    }
    if (node.kind == Place::Kind::kTensor && node.shape == nullptr) {
      throw std::invalid_argument("a place of a structure does not say which tensor must be there");
    }
    if ((needs_object && !node.object) || (node.kind == Place::Kind::kSame && node.number < 0)) {
      throw std::invalid_argument("a place of a structure does not say what must be there");
    }
    if (node.number >= 0) {  // counted without gaps from here on
      const auto next = static_cast<std::int32_t>(numbers.size());
      node.number = numbers.try_emplace(node.number, next).first->second;
    }
  }
  if (!open.empty()) {
    throw std::invalid_argument("a structure ends within a tree");
  }
  numbers_ = numbers.size();
  unchanged_ = std::make_unique<Unchanged>(std::move(strikes));
}

Structure::~Structure() = default;
Structure::Structure(Structure&& other) noexcept = default;

bool Structure::admits(const std::vector<PyObject*>& roots, Found& found) const {
  found.past_unchanged = false;
  return roots.size() == roots_ && Walk(*this, found).admit_all(roots);
}

bool Structure::admits_again(const std::vector<PyObject*>& roots, Found& found) const {
  if (roots.size() != roots_) {
    return false;
  }
  if (const std::shared_ptr<Record> record = unchanged_->usable()) {
    Walk walk(*this, found, *record);
    found.past_unchanged = walk.admit_all(roots);
    if (found.past_unchanged) {
      ++record->uses;
      return true;
    }
    if (!walk.is_unsure()) {
      return false;
    }
    if (const std::optional<std::uint32_t> place = walk.blamed()) {
      unchanged_->blame(*place);
    }
  }
  if (!admits(roots, found)) {
    return false;
  }
  unchanged_->renew(numbers_, [&](Recorder& recorder) {
    Found again;
    return Walk(*this, again, recorder).admit_all(roots);
  });
  return true;
}

int Structure::traverse(visitproc visit, void* arg) const {
  for (const Place& node : nodes_) {
    Py_VISIT(node.object.get());
    Py_VISIT(node.type.get());
    Py_VISIT(node.key.get());
  }
  return unchanged_->traverse(visit, arg);
}

}  // namespace pygraph::torch_bridge::callable
