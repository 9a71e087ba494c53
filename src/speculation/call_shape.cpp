#include "call_shape.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace pygraph::torch_bridge::speculation {
namespace {

constexpr std::size_t kMostLeaves = 256;
constexpr int kDeepest = 4;

enum class Container : std::uint64_t { kTuple = 1, kList, kDict };

std::uint64_t token(Container kind, Py_ssize_t size) {
  return static_cast<std::uint64_t>(kind) << 32U | static_cast<std::uint64_t>(size);
}

/// A float of Python's, or one of NumPy's that Dynamo makes a tensor of.
bool is_float(PyObject* object) {
  const std::string_view type = Py_TYPE(object)->tp_name;
  return PyFloat_CheckExact(object) || type == "numpy.float64" || type == "numpy.float32";
}

/// Whether it is told by its value, which nobody can change.
bool is_value(PyObject* object) {
  return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) ||
         is_float(object) || PyUnicode_CheckExact(object);
}

/// NaN for what is no number after all.
double value_of(PyObject* number) noexcept {
  const double value = PyFloat_AsDouble(number);
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return std::numeric_limits<double>::quiet_NaN();
  }
  return value;
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

/// A tensor like a float's, with memory of its own. Null where torch makes none.
PythonRef cell_like(const TorchApi& api, PyObject* number) noexcept {
  TensorHandle made = nullptr;
  if (api.empty_strided(0, nullptr, nullptr, api.dtype(number), kCpuDevice, 0, &made) != 0) {
    return {};
  }
  const OwnedTensor owned(made);
  PythonRef wrapped = PythonRef::stolen(api.wrap(owned.get()));
  if (!wrapped) {
    PyErr_Clear();
  }
  return wrapped;
}

}  // namespace

std::optional<double> float_in(const TorchApi& api, PyObject* tensor) noexcept {
  if (!api.is_tensor(tensor) || !api.on_cpu(tensor) || api.dim(tensor) != 0) {
    return std::nullopt;
  }
  const void* data = api.data(tensor);
  const std::int32_t type = api.dtype(tensor);
  double wide = 0;
  float narrow = 0;
  if (data != nullptr && type == api.dtype_float64()) {
    std::memcpy(&wide, data, sizeof wide);
    return wide;
  }
  if (data != nullptr && type == api.dtype_float32()) {
    std::memcpy(&narrow, data, sizeof narrow);
    return narrow;
  }
  return std::nullopt;
}

void write_float(const TorchApi& api, PyObject* tensor, double value) noexcept {
  if (api.dtype(tensor) == api.dtype_float64()) {
    std::memcpy(api.data(tensor), &value, sizeof value);
  } else {
    const auto narrow = static_cast<float>(value);
    std::memcpy(api.data(tensor), &narrow, sizeof narrow);
  }
}

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
  if (varies) {
    return Py_TYPE(leaf) == Py_TYPE(value.get());
  }
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
    if (const auto found = place.find(given[i]); found != place.end()) {
      shape.sources_.emplace_back().leaf = found->second;
      shape.leaves_[static_cast<std::size_t>(found->second)].varies = !api.is_tensor(given[i]);
    } else if (std::optional<Source> source = shape.source_of(given[i], leaves)) {
      shape.sources_.push_back(std::move(*source));
    } else {
      return std::nullopt;
    }
  }
  shape.target_ = target;
  return shape;
}

std::optional<CallShape::Source> CallShape::source_of(PyObject* argument, const Leaves& leaves) {
  const TorchApi& api = torch_api();
  if (!api.is_tensor(argument)) {
    return std::nullopt;
  }
  Source source;
  source.constant = weak_reference(argument);
  source.object = argument;
  source.address = address_of(api.data(argument));
  if (const std::optional<double> value = float_in(api, argument)) {
    source.value = *value;
    source.cell = cell_like(api, argument);
    if (!source.cell) {
      return std::nullopt;
    }
    source.leaf = float_among(leaves, source.value);
    if (source.leaf >= 0) {
      leaves_[static_cast<std::size_t>(source.leaf)].varies = true;
    }
  }
  return source.constant ? std::optional(std::move(source)) : std::nullopt;
}

/// A float of the caller's with this value; negative if there is none. That it is this one is a
/// guess like the rest.
std::int32_t CallShape::float_among(const Leaves& leaves, double value) {
  const auto same = [&](const PythonRef& leaf) {
    return is_float(leaf.get()) && same_bits(value_of(leaf.get()), value);
  };
  const auto found = std::find_if(leaves.items.begin(), leaves.items.end(), same);
  return found == leaves.items.end() ? -1 : static_cast<std::int32_t>(found - leaves.items.begin());
}

bool CallShape::fits(const Leaves& leaves) const noexcept {
  bool same = leaves.structure == structure_ && leaves.items.size() == leaves_.size();
  for (std::size_t i = 0; same && i < leaves_.size(); ++i) {
    same = leaves_[i].admits(leaves.items[i].get());
  }
  return same;
}

Given CallShape::given(const Leaves& leaves) const {
  const TorchApi& api = torch_api();
  const std::size_t count = sources_.size();
  Given made;
  std::vector<PythonRef>& found = made.arguments;
  found.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kPrefetchDistance < count) {
      __builtin_prefetch(sources_[i + kPrefetchDistance].object);
    }
    const Source& source = sources_[i];
    PyObject* leaf =
        source.leaf < 0 ? nullptr : leaves.items[static_cast<std::size_t>(source.leaf)].get();
    if (leaf == nullptr) {
      found.push_back(object_of(source.constant.get()));
    } else if (!source.cell) {
      found.push_back(PythonRef::to(leaf));
      if (!api.is_tensor(leaf)) {
        made.numbers.push_back({.index = i});
      }
    } else {
      found.emplace_back();
    }
    if (!found.back()) {
      if (!source.cell) {
        return {};
      }
      const bool free = Py_REFCNT(source.cell.get()) == 1;  // no guess of another thread has it
      found.back() = free ? PythonRef::to(source.cell.get()) : cell_like(api, source.cell.get());
      if (!found.back()) {
        return {};
      }
      const double value = leaf == nullptr ? source.value : value_of(leaf);
      write_float(api, found.back().get(), value);
      made.numbers.push_back({.index = i, .value = value});
    }
  }
  auto number = made.numbers.cbegin();
  for (std::size_t i = 0; i < count; ++i) {
    if (i + 2 * kPrefetchDistance < count &&
        api.is_tensor(found[i + 2 * kPrefetchDistance].get())) {
      api.prefetch_tensor(found[i + 2 * kPrefetchDistance].get());
    }
    if (i + kPrefetchDistance < count && api.is_tensor(found[i + kPrefetchDistance].get())) {
      api.prefetch_storage(found[i + kPrefetchDistance].get());
    }
    const Source& source = sources_[i];
    if (number != made.numbers.cend() && number->index == i) {
      ++number;
    } else if (source.leaf < 0 && address_of(api.data(found[i].get())) != source.address) {
      return {};
    }
  }
  return made;
}

}  // namespace pygraph::torch_bridge::speculation
