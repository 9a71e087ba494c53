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

PythonRef answer_of(PyObject* generator, PyObject* method) {
  PythonRef answer = PythonRef::stolen(PyObject_CallMethodNoArgs(generator, method));
  if (!answer) {
    refused(method);
  }
  return answer;
}

void tell(PyObject* generator, PyObject* method, PyObject* value) {
  const PythonRef done = PythonRef::stolen(
      value == nullptr ? nullptr : PyObject_CallMethodOneArg(generator, method, value));
  if (!done) {
    refused(method);
  }
}

std::uint64_t ask(PyObject* generator, PyObject* method) {
  const PythonRef answer = answer_of(generator, method);
  const std::uint64_t value = PyLong_AsUnsignedLongLongMask(answer.get());
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
  tell(generator, method,
       PythonRef::stolen(PyLong_FromLongLong(static_cast<long long>(offset))).get());
}

/// A tensor of bytes.
PythonRef state_of(PyObject* generator) {
  static PyObject* const method = interned("get_state");
  return answer_of(generator, method);
}

void set_state(PyObject* generator, PyObject* state) {
  static PyObject* const method = interned("set_state");
  tell(generator, method, state);
}

bool are_equal(PyObject* tensor, PyObject* other) {
  static PyObject* const method = interned("equal");
  const PythonRef answer = PythonRef::stolen(PyObject_CallMethodOneArg(tensor, method, other));
  PyErr_Clear();
  return answer.get() == Py_True;
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

RandomTurn::RandomTurn(std::vector<Drawn> drawn) : drawn_(std::move(drawn)) {
  for (const Drawn& each : drawn_) {
    if (each.by_address()) {
      drawn_by_address().push_back(each.generator.get());
    }
  }
}

void RandomTurn::close() noexcept {
  if (!std::exchange(open_, false)) {
    return;
  }
  std::vector<PyObject*>& known = drawn_by_address();
  for (const Drawn& drawn : drawn_) {
    if (drawn.by_address()) {
      known.erase(std::find(known.begin(), known.end(), drawn.generator.get()));
    }
  }
}

void RandomTurn::ran() {
  close();
  for (Drawn& drawn : drawn_) {
    if (drawn.by_address()) {
      drawn.left = state_of(drawn.generator.get());
      set_state(drawn.generator.get(), drawn.found.get());
    }
  }
}

bool RandomTurn::stands() const noexcept {
  try {
    return std::all_of(drawn_.begin(), drawn_.end(), [](const Drawn& drawn) {
      PyObject* generator = drawn.generator.get();
      return drawn.by_address()
                 ? are_equal(drawn.found.get(), state_of(generator).get())
                 : offset_of(generator) == drawn.offset && seed_of(generator) == drawn.seed;
    });
  } catch (const std::exception&) {
    return false;
  }
}

void RandomTurn::advance() {
  if (std::exchange(advanced_, true)) {
    return;
  }
  for (const Drawn& drawn : drawn_) {
    if (drawn.by_address()) {
      set_state(drawn.generator.get(), drawn.left.get());
    } else {
      set_offset(drawn.generator.get(), drawn.next);
    }
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

const LaunchLock& TensorProgram::RandomState::lock() {
  static const LaunchLock& instance = *new LaunchLock;
  return instance;
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

/// The generators and their states.
std::vector<RandomTurn::Drawn> TensorProgram::RandomState::look(const Arguments& arguments) const {
  using Drawn = RandomTurn::Drawn;
  std::vector<Drawn> found;
  found.reserve(spec_.draws.size());
  for (const Draw& draw : spec_.draws) {
    PyObject* generator =
        draw.argument == Draw::kDefault ? spec_.generator : arguments[draw.argument];
    Drawn drawn;
    drawn.generator = PythonRef::to(generator);
    if (draw.offset_region == kNoRegion) {
      drawn.found = state_of(generator);
    } else {
      drawn.seed = seed_of(generator);
      drawn.offset = offset_of(generator);
      drawn.next = drawn.offset + static_cast<std::uint64_t>(draw.increment);
    }
    found.push_back(std::move(drawn));
  }
  for (std::size_t i = 1; i < found.size(); ++i) {
    const Drawn& drawn = found[i];
    for (std::size_t j = 0; j < i && !drawn.by_address(); ++j) {
      const Drawn& other = found[j];
      if (!other.by_address() && drawn.seed == other.seed && drawn.offset == other.offset &&
          share_state(drawn.generator.get(), other.generator.get(), drawn.offset)) {
        throw CallRefused("two random generators of the call share one state");
      }
    }
  }
  return found;
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

std::shared_ptr<RandomTurn> TensorProgram::RandomState::set(const Arguments& arguments,
                                                            Chain& program, CUstream stream) {
  if (spec_.draws.empty()) {
    return nullptr;
  }
  std::vector<RandomTurn::Drawn> found = look(arguments);
  std::vector<std::uint32_t> words;
  words.reserve(kWords * spec_.draws.size());
  for (const RandomTurn::Drawn& drawn : found) {
    const std::uint64_t first = drawn.by_address() ? number_of(drawn.generator.get()) : drawn.seed;
    for (const std::uint64_t value : {first, drawn.offset}) {
      words.push_back(static_cast<std::uint32_t>(value));
      words.push_back(static_cast<std::uint32_t>(value >> 32U));
    }
  }
  Place& place = place_on(stream);
  fill(place, words);
  CUdeviceptr state = address_of(place.memory);
  for (const Draw& draw : spec_.draws) {
    if (draw.seed_region != kNoRegion) {
      program.bind(draw.seed_region, state);
    }
    if (draw.offset_region != kNoRegion) {
      program.bind(draw.offset_region, state + kOffsetAt);
    }
    state += kStateBytes;
  }
  return std::make_shared<RandomTurn>(std::move(found));
}

}  // namespace pygraph::torch_bridge
