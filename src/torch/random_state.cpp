#include "random_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <utility>

namespace pygraph::torch_bridge {
namespace {

constexpr std::uint64_t kStateBytes = 16;  // seed and offset
constexpr std::uint64_t kOffsetAt = 8;
constexpr std::uint64_t kOffsetStep = 4;  // torch takes offsets that are multiples of it

/// What running calls draw from by address; guarded by the GIL, never destroyed.
std::vector<PyObject*>& drawn_by_address() {
  static std::vector<PyObject*>& instance = *new std::vector<PyObject*>;
  return instance;
}

std::uint64_t number_of(PyObject* object) noexcept {
  return reinterpret_cast<std::uint64_t>(object);  // NOLINT
}

[[noreturn]] void refused(PyObject* method) {
  PyErr_Clear();
  throw std::runtime_error(
      fmt::format("the random generator's {}() failed", PyUnicode_AsUTF8(method)));
}

PyObject* interned(const char* text) {
  PyObject* name = PyUnicode_InternFromString(text);
  if (name == nullptr) {
    PyErr_Clear();
    throw std::runtime_error("no memory for a name");
  }
  return name;
}

std::uint64_t ask(PyObject* generator, PyObject* method) {
  PyObject* answer = PyObject_CallMethodNoArgs(generator, method);
  if (answer == nullptr) {
    refused(method);
  }
  const std::uint64_t value = PyLong_AsUnsignedLongLongMask(answer);
  Py_DECREF(answer);
  if (PyErr_Occurred() != nullptr) {
    refused(method);
  }
  return value;
}

std::uint64_t seed_of(PyObject* generator) {
  static PyObject* const method = interned("initial_seed");
  return ask(generator, method);
}

std::uint64_t offset_of(PyObject* generator) {
  static PyObject* const method = interned("get_offset");
  return ask(generator, method);
}

void set_offset(PyObject* generator, std::uint64_t offset) {
  static PyObject* const method = interned("set_offset");
  PyObject* value = PyLong_FromLongLong(static_cast<long long>(offset));
  PyObject* done = value == nullptr ? nullptr : PyObject_CallMethodOneArg(generator, method, value);
  Py_XDECREF(value);
  if (done == nullptr) {
    refused(method);
  }
  Py_DECREF(done);
}

/// torch.device("cuda") for torch.device("cuda", 0); null, with an error set, for what is no
/// device.
PyObject* without_number(PyObject* device) {
  PyObject* type = PyObject_GetAttrString(device, "type");
  PyObject* made = type == nullptr
                       ? nullptr
                       : PyObject_CallOneArg(reinterpret_cast<PyObject*>(Py_TYPE(device)), type);
  Py_XDECREF(type);
  return made;
}

/// Whether two generators with the same seed and `offset` have their state in common.
bool share_state(PyObject* left, PyObject* right, std::uint64_t offset) {
  set_offset(left, offset + kOffsetStep);
  const bool moved = offset_of(right) != offset;
  set_offset(left, offset);
  return moved;
}

}  // namespace

PyObject* generator_of_calls(std::uint64_t address) noexcept {
  const std::vector<PyObject*>& known = drawn_by_address();
  const auto found = std::find_if(known.begin(), known.end(), [address](PyObject* generator) {
    return number_of(generator) == address;
  });
  return found == known.end() ? nullptr : *found;
}

TensorProgram::RandomState::Turn::~Turn() {
  for (const Drawn& drawn : drawn_) {
    if (drawn.by_address) {
      std::vector<PyObject*>& known = drawn_by_address();
      known.erase(std::find(known.begin(), known.end(), drawn.generator));
    }
    Py_DECREF(drawn.generator);
  }
}

TensorProgram::RandomState::RandomState(const Driver& driver, Device device,
                                        const std::vector<ArgumentSpec>& arguments, RandomSpec spec)
    : driver_(&driver), device_(device), spec_(std::move(spec)) {
  for (std::uint32_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].kind == ArgumentSpec::Kind::kGenerator) {
      if (arguments[i].value > i) {
        throw std::invalid_argument("a generator is the same as a later argument");
      }
      generators_.push_back({i, arguments[i].value});
    }
  }
  for (const Draw& draw : spec_.draws) {
    if (draw.argument != Draw::kDefault &&
        (draw.argument >= arguments.size() ||
         arguments[draw.argument].kind != ArgumentSpec::Kind::kGenerator)) {
      throw std::invalid_argument("a graph draws from an argument that is no random generator");
    }
  }
  torch_device_ = PyObject_GetAttrString(spec_.generator, "device");
  unnumbered_ = torch_device_ == nullptr ? nullptr : without_number(torch_device_);
  if (unnumbered_ == nullptr) {
    PyErr_Clear();
    Py_XDECREF(torch_device_);
    throw std::invalid_argument("the default generator is no torch.Generator");
  }
  Py_INCREF(spec_.generator);
}

TensorProgram::RandomState::~RandomState() {
  for (const Place& place : places_) {
    if (device_ == Device::kTwin) {
      std::free(place.memory);  // NOLINT
    } else {
      torch_api().raw_delete(place.memory);
    }
  }
  Py_DECREF(unnumbered_);
  Py_DECREF(torch_device_);
  Py_DECREF(spec_.generator);
}

int TensorProgram::RandomState::traverse(visitproc visit, void* arg) const {
  Py_VISIT(spec_.generator);
  Py_VISIT(torch_device_);
  Py_VISIT(unnumbered_);
  return 0;
}

bool TensorProgram::RandomState::accepts(const Arguments& arguments) const noexcept {
  return std::all_of(generators_.begin(), generators_.end(),
                     [&](const Generator& generator) { return accepts(arguments, generator); });
}

bool TensorProgram::RandomState::accepts(const Arguments& arguments,
                                         const Generator& generator) const {
  PyObject* object = arguments[generator.argument];
  if (generator.same_as < 0) {
    return object == spec_.generator;
  }
  if (generator.same_as != generator.argument) {
    return object == arguments[static_cast<std::size_t>(generator.same_as)];
  }
  if (object == spec_.generator || PyObject_TypeCheck(object, Py_TYPE(spec_.generator)) == 0) {
    return false;
  }
  for (const Generator& other : generators_) {
    if (other.argument < generator.argument && arguments[other.argument] == object) {
      return false;
    }
  }
  PyObject* device = PyObject_GetAttrString(object, "device");
  int same = device == nullptr ? -1 : PyObject_RichCompareBool(device, torch_device_, Py_EQ);
  if (same == 0) {
    same = PyObject_RichCompareBool(device, unnumbered_, Py_EQ);
  }
  Py_XDECREF(device);
  if (same < 0) {
    PyErr_Clear();
  }
  return same == 1;
}

TensorProgram::RandomState::Place& TensorProgram::RandomState::place_on(CUstream stream) {
  for (Place& place : places_) {
    if (place.stream == stream) {
      return place;
    }
  }
  const std::size_t bytes = kStateBytes * spec_.draws.size();
  void* memory = nullptr;
  if (device_ == Device::kTwin) {
    memory = std::malloc(bytes);  // NOLINT
  } else if (torch_api().raw_alloc(bytes, &memory) != 0) {
    memory = nullptr;
  }
  if (memory == nullptr) {
    throw MemoryShort("no memory for the state of a random generator");
  }
  return places_.emplace_back(
      Place{stream, memory, std::vector<std::uint32_t>(kWords * spec_.draws.size()), false});
}

/// Notes the generators and their states.
void TensorProgram::RandomState::look(const Arguments& arguments, Turn& turn) const {
  turn.drawn_.reserve(spec_.draws.size());
  for (const Draw& draw : spec_.draws) {
    PyObject* generator =
        draw.argument == Draw::kDefault ? spec_.generator : arguments[draw.argument];
    const bool by_address = draw.offset_region == kNoRegion;
    if (by_address) {
      drawn_by_address().push_back(generator);
    }
    Turn::Drawn& drawn = turn.drawn_.emplace_back(
        Turn::Drawn{Py_NewRef(generator), by_address, number_of(generator), 0});
    if (!by_address) {
      drawn.seed = seed_of(generator);
      drawn.offset = offset_of(generator);
    }
  }
  for (std::size_t i = 1; i < turn.drawn_.size(); ++i) {
    const Turn::Drawn& drawn = turn.drawn_[i];
    for (std::size_t j = 0; j < i && !drawn.by_address; ++j) {
      const Turn::Drawn& other = turn.drawn_[j];
      if (!other.by_address && drawn.seed == other.seed && drawn.offset == other.offset &&
          share_state(drawn.generator, other.generator, drawn.offset)) {
        throw CallRefused("two random generators of the call share one state");
      }
    }
  }
}

void TensorProgram::RandomState::fill(Place& place, const std::vector<std::uint32_t>& words) {
  std::size_t changed = place.filled ? 0 : words.size();
  for (std::size_t i = 0; i < words.size() && place.filled; ++i) {
    changed += words[i] == place.words[i] ? 0 : 1;
  }
  const CUdeviceptr base = address_of(place.memory);
  constexpr const char* kWhat = "the state of a random generator";
  if (changed > kMostFills) {
    driver_->check(
        driver_->api.cuMemcpyHtoDAsync(base, words.data(), 4 * words.size(), place.stream),
        "cuMemcpyHtoDAsync", kWhat);
    place.words = words;
  } else {
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (!place.filled || words[i] != place.words[i]) {
        driver_->check(driver_->api.cuMemsetD32Async(base + 4 * i, words[i], 1, place.stream),
                       "cuMemsetD32Async", kWhat);
        place.words[i] = words[i];
      }
    }
  }
  place.filled = true;
}

void TensorProgram::RandomState::set(const Arguments& arguments, Chain& program, CUstream stream,
                                     Turn& turn) {
  if (spec_.draws.empty()) {
    return;
  }
  look(arguments, turn);
  std::vector<std::uint32_t> words;
  words.reserve(kWords * turn.drawn_.size());
  for (const Turn::Drawn& drawn : turn.drawn_) {
    for (const std::uint64_t value : {drawn.seed, drawn.offset}) {
      words.push_back(static_cast<std::uint32_t>(value));
      words.push_back(static_cast<std::uint32_t>(value >> 32U));
    }
  }
  Place& place = place_on(stream);
  fill(place, words);
  CUdeviceptr state = address_of(place.memory);
  for (const Draw& draw : spec_.draws) {
    program.bind(draw.seed_region, state);
    if (draw.offset_region != kNoRegion) {
      program.bind(draw.offset_region, state + kOffsetAt);
    }
    state += kStateBytes;
  }
}

void TensorProgram::RandomState::advance(const Turn& turn) {
  for (std::size_t i = 0; i < turn.drawn_.size(); ++i) {
    const Turn::Drawn& drawn = turn.drawn_[i];
    if (!drawn.by_address) {
      set_offset(drawn.generator,
                 drawn.offset + static_cast<std::uint64_t>(spec_.draws[i].increment));
    }
  }
}

}  // namespace pygraph::torch_bridge
