#include "call_shape.h"

#include <algorithm>
#include <unordered_map>

namespace pygraph::torch_bridge::speculation {
namespace {

constexpr std::size_t kMostLeaves = 256;
constexpr int kDeepest = 4;

enum class Container : std::uint64_t { kTuple = 1, kList, kDict };

std::uint64_t token(Container kind, Py_ssize_t size) {
  return static_cast<std::uint64_t>(kind) << 32U | static_cast<std::uint64_t>(size);
}

/// Whether it is told by its value, which nobody can change.
bool is_value(PyObject* object) {
  return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) ||
         PyFloat_CheckExact(object) || PyUnicode_CheckExact(object);
}

bool same_value(PyObject* one, PyObject* other) noexcept {
  if (one == other) {
    return true;
  }
  if (Py_TYPE(one) != Py_TYPE(other) || one == Py_None || PyBool_Check(one)) {
    return false;
  }
  const int equal = PyObject_RichCompareBool(one, other, Py_EQ);
  if (equal < 0) {
    PyErr_Clear();
  }
  return equal == 1;
}

/// A weak reference's object, or null.
PythonRef object_of(PyObject* weak) noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* object = nullptr;
  PyWeakref_GetRef(weak, &object);
  return PythonRef::stolen(object);
#else
  PyObject* object = PyWeakref_GetObject(weak);
  return object == Py_None ? PythonRef() : PythonRef::to(object);
#endif
}

PythonRef weak_reference(PyObject* object) noexcept {
  PythonRef weak = PythonRef::stolen(PyWeakref_NewRef(object, nullptr));
  if (!weak) {
    PyErr_Clear();
  }
  return weak;
}

}  // namespace

bool Leaves::add(PyObject* object, int depth) {
  const auto all = [&](PyObject* const* elements, Py_ssize_t count) {
    return std::all_of(elements, elements + count,
                       [&](PyObject* element) { return add(element, depth + 1); });
  };
  if (depth > kDeepest) {
    return false;
  }
  if (PyTuple_CheckExact(object)) {
    structure.push_back(token(Container::kTuple, PyTuple_GET_SIZE(object)));
    return all(PySequence_Fast_ITEMS(object), PyTuple_GET_SIZE(object));
  }
  if (PyList_CheckExact(object)) {
    structure.push_back(token(Container::kList, PyList_GET_SIZE(object)));
    return all(PySequence_Fast_ITEMS(object), PyList_GET_SIZE(object));
  }
  if (PyDict_CheckExact(object)) {
    structure.push_back(token(Container::kDict, PyDict_GET_SIZE(object)));
    Py_ssize_t position = 0;
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    while (PyDict_Next(object, &position, &key, &value) != 0) {
      if (!is_value(key)) {
        return false;
      }
      items.push_back(PythonRef::to(key));
      if (!add(value, depth + 1)) {
        return false;
      }
    }
    return true;
  }
  items.push_back(PythonRef::to(object));
  return items.size() <= kMostLeaves;
}

bool Leaves::read(PyObject* positional, PyObject* named) {
  items.clear();
  structure.clear();
  return add(positional, 0) && add(named, 0);
}

std::optional<CallShape::Expected> CallShape::Expected::of(PyObject* leaf,
                                                           const PlainTypes& plain) {
  Expected expected;
  if (is_value(leaf)) {
    expected.value = PythonRef::to(leaf);
    return expected;
  }
  if (std::find(plain.begin(), plain.end(), Py_TYPE(leaf)) == plain.end()) {
    return std::nullopt;
  }
  const TorchApi& api = torch_api();
  const TensorHandle handle = api.handle(leaf);
  const std::int64_t rank = api.dim(leaf);
  std::int64_t* sizes = nullptr;
  std::int64_t* strides = nullptr;
  if (rank < 0 || api.get_sizes(handle, &sizes) != 0 || api.get_strides(handle, &strides) != 0 ||
      api.get_device_type(handle, &expected.device_type) != 0 ||
      api.get_device_index(handle, &expected.device_index) != 0) {
    return std::nullopt;
  }
  expected.type = Py_TYPE(leaf);
  expected.dtype = api.dtype(leaf);
  expected.sizes.assign(sizes, sizes + rank);
  expected.strides.assign(strides, strides + rank);
  return expected;
}

bool CallShape::Expected::admits(PyObject* leaf) const noexcept {
  if (value) {
    return same_value(value.get(), leaf);
  }
  const TorchApi& api = torch_api();
  if (Py_TYPE(leaf) != type || api.dtype(leaf) != dtype ||
      api.dim(leaf) != static_cast<std::int64_t>(sizes.size())) {
    return false;
  }
  const TensorHandle handle = api.handle(leaf);
  std::int64_t* others = nullptr;
  const auto same = [&](Status status, const std::vector<std::int64_t>& values) {
    return status == 0 && std::equal(values.begin(), values.end(), others);
  };
  std::int32_t where = -1;
  std::int32_t index = -1;
  return same(api.get_sizes(handle, &others), sizes) &&
         same(api.get_strides(handle, &others), strides) &&
         api.get_device_type(handle, &where) == 0 && where == device_type &&
         api.get_device_index(handle, &index) == 0 && index == device_index &&
         // Without memory of its own, as under a transformation of torch.func.
         (api.data(leaf) != nullptr || std::find(sizes.begin(), sizes.end(), 0) != sizes.end());
}

std::optional<CallShape> CallShape::learn(const std::shared_ptr<Target>& target,
                                          PyObject* const* given, const Leaves& leaves,
                                          const PlainTypes& plain) {
  const TorchApi& api = torch_api();
  CallShape shape;
  shape.structure_ = leaves.structure;
  std::unordered_map<PyObject*, std::int32_t> place;
  for (const PythonRef& leaf : leaves.items) {
    std::optional<Expected> expected = Expected::of(leaf.get(), plain);
    if (!expected) {
      return std::nullopt;
    }
    place.emplace(leaf.get(), static_cast<std::int32_t>(shape.leaves_.size()));
    shape.leaves_.push_back(std::move(*expected));
  }
  for (Py_ssize_t i = 0; i < target->argument_count; ++i) {
    if (!api.is_tensor(given[i])) {
      return std::nullopt;
    }
    Source source;
    if (const auto found = place.find(given[i]); found != place.end()) {
      source.leaf = found->second;
    } else {
      source.constant = weak_reference(given[i]);
      source.object = given[i];
      source.address = address_of(api.data(given[i]));
      if (!source.constant) {
        return std::nullopt;
      }
    }
    shape.sources_.push_back(std::move(source));
  }
  shape.target_ = target;
  return shape;
}

bool CallShape::fits(const Leaves& leaves) const noexcept {
  bool same = leaves.structure == structure_ && leaves.items.size() == leaves_.size();
  for (std::size_t i = 0; same && i < leaves_.size(); ++i) {
    same = leaves_[i].admits(leaves.items[i].get());
  }
  return same;
}

std::vector<PythonRef> CallShape::arguments(const Leaves& leaves) const {
  const TorchApi& api = torch_api();
  const std::size_t count = sources_.size();
  std::vector<PythonRef> found;
  found.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kPrefetchDistance < count) {
      __builtin_prefetch(sources_[i + kPrefetchDistance].object);
    }
    const Source& source = sources_[i];
    found.push_back(source.leaf < 0
                        ? object_of(source.constant.get())
                        : PythonRef::to(leaves.items[static_cast<std::size_t>(source.leaf)].get()));
    if (!found.back()) {
      return {};
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (i + 2 * kPrefetchDistance < count) {
      api.prefetch_tensor(found[i + 2 * kPrefetchDistance].get());
    }
    if (i + kPrefetchDistance < count) {
      api.prefetch_storage(found[i + kPrefetchDistance].get());
    }
    if (sources_[i].leaf < 0 && address_of(api.data(found[i].get())) != sources_[i].address) {
      return {};
    }
  }
  return found;
}

}  // namespace pygraph::torch_bridge::speculation
