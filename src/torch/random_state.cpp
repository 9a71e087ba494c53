#include "random_state.h"

#include <stdexcept>
#include <string>

namespace pygraph::torch_bridge {
namespace {

constexpr std::uint64_t kStateBytes = 16;  // seed and offset
constexpr std::uint64_t kOffsetAt = 8;

[[noreturn]] void refused(const char* method) {
  PyErr_Clear();
  throw std::runtime_error(std::string("the random generator's ") + method + "() failed");
}

}  // namespace

GraphCall::RandomState::RandomState(const Driver& driver, const RandomSpec& spec)
    : driver_(&driver), spec_(spec) {
  Py_INCREF(spec_.generator);
}

GraphCall::RandomState::~RandomState() {
  for (const Place& place : places_) {
    torch_api().raw_delete(place.memory);
  }
  Py_DECREF(spec_.generator);
}

int GraphCall::RandomState::traverse(visitproc visit, void* arg) const {
  Py_VISIT(spec_.generator);
  return 0;
}

std::uint64_t GraphCall::RandomState::ask(const char* method) const {
  PyObject* answer = PyObject_CallMethod(spec_.generator, method, nullptr);
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

GraphCall::RandomState::Place& GraphCall::RandomState::place_on(CUstream stream) {
  for (Place& place : places_) {
    if (place.stream == stream) {
      return place;
    }
  }
  void* memory = nullptr;
  if (torch_api().raw_alloc(kStateBytes, &memory) != 0) {
    throw MemoryShort("no memory for the state of a random generator");
  }
  return places_.emplace_back(Place{stream, memory, {}, false});
}

void GraphCall::RandomState::set(Chain& program, CUstream stream) {
  const std::uint64_t seed = ask("initial_seed");
  offset_ = ask("get_offset");
  Place& place = place_on(stream);
  const CUdeviceptr base = address_of(place.memory);
  const std::array<std::uint32_t, kWords> words = {
      static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U),
      static_cast<std::uint32_t>(offset_), static_cast<std::uint32_t>(offset_ >> 32U)};
  for (std::size_t i = 0; i < kWords; ++i) {
    if (!place.filled || words[i] != place.words[i]) {
      driver_->check(driver_->api.cuMemsetD32Async(base + 4 * i, words[i], 1, stream),
                     "cuMemsetD32Async", "the state of a random generator");
      place.words[i] = words[i];
    }
  }
  place.filled = true;
  program.bind(spec_.seed_region, base);
  program.bind(spec_.offset_region, base + kOffsetAt);
}

void GraphCall::RandomState::advance() {
  const std::uint64_t next = offset_ + static_cast<std::uint64_t>(spec_.increment);
  PyObject* done =
      PyObject_CallMethod(spec_.generator, "set_offset", "L", static_cast<long long>(next));
  if (done == nullptr) {
    refused("set_offset");
  }
  Py_DECREF(done);
}

}  // namespace pygraph::torch_bridge
