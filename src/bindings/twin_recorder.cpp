// Kernels of the twin whose work Python does: pygraph/twin/recorder.py launches them while
// capturing, and a replay comes back here, takes the GIL and calls the operation.
#include <nanobind/stl/string.h>

#include <bit>
#include <deque>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bindings.h"
#include "pygraph/twin.h"
#include "twin/recorded_kernel.h"
#include "twin/waiting.h"

namespace nb = nanobind;

namespace pygraph::bindings {
namespace {

using twin::KernelLayout;
namespace word = twin::word;

struct Operation {
  KernelLayout layout;
  CUfunction function;
  nb::object run;
};

/// All operations by number, and what the last failed one said. Guarded by the GIL; never
/// destroyed, because kernels live as long as the process.
struct Recorder {
  std::deque<Operation> operations;
  std::string error;
};

Recorder& recorder() {
  static Recorder& instance = *new Recorder;
  return instance;
}

nb::object to_python(char kind, std::uint64_t bits) {
  switch (kind) {
    case word::kNumber:
      return nb::float_(std::bit_cast<double>(bits));
    case word::kTruth:
      return nb::bool_(bits != 0);
    case word::kInteger:
      return nb::int_(std::bit_cast<std::int64_t>(bits));
    default:
      return nb::int_(bits);
  }
}

std::uint64_t to_bits(char kind, nb::handle value) {
  switch (kind) {
    case word::kNumber:
      return std::bit_cast<std::uint64_t>(nb::cast<double>(value));
    case word::kTruth:
      return nb::cast<bool>(value) ? 1 : 0;
    case word::kInteger:
      return std::bit_cast<std::uint64_t>(nb::cast<std::int64_t>(value));
    default:
      return nb::cast<std::uint64_t>(value);
  }
}

void call_operation(const Operation& operation, const std::byte* block) {
  std::vector<std::uint64_t> words(operation.layout.word_count());
  operation.layout.unpack(block, words);
  nb::list values;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (const char kind = operation.layout.kind(i); kind != word::kCoincident) {
      values.append(to_python(kind, words[i]));
    }
  }
  operation.run(values);
}

/// The host function of every such kernel. What it throws becomes CUDA_ERROR_LAUNCH_FAILED.
void run_operation(const twin::Launch& launch) {
  const nb::gil_scoped_acquire gil;
  Recorder& now = recorder();
  try {
    call_operation(now.operations.at(KernelLayout::operation(launch.block)), launch.block);
    return;
  } catch (const std::exception& error) {  // a Python exception dies here, with the GIL held
    now.error = error.what();
  }
  throw std::runtime_error("an operation of the recorder failed");
}

std::uint32_t register_operation(const std::string& name, const std::string& kinds,
                                 std::size_t alignment, nb::object run) {
  Recorder& now = recorder();
  KernelLayout layout(kinds, alignment);
  const CUfunction function = twin::register_kernel(name, layout.slots(), &run_operation);
  now.operations.push_back({std::move(layout), function, std::move(run)});
  return static_cast<std::uint32_t>(now.operations.size() - 1);
}

CUstream to_stream(std::uint64_t handle) {
  return reinterpret_cast<CUstream>(handle);  // NOLINT
}

void launch(std::uint64_t stream, std::uint32_t number, const nb::list& values) {
  const Operation& operation = recorder().operations.at(number);
  const KernelLayout& layout = operation.layout;
  if (values.size() != layout.word_count()) {
    throw std::invalid_argument("another number of values than of words");
  }
  std::vector<std::uint64_t> words;
  words.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    words.push_back(to_bits(layout.kind(i), values[i]));
  }
  std::vector<std::byte> block = layout.pack(number, words);
  // Both forms of launch occur: every other operation hands its block over as cuBLAS does.
  std::size_t bytes = block.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, block.data(), CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &bytes, CU_LAUNCH_PARAM_END};
  std::vector<void*> parameters;
  for (const ParameterSlot& slot : layout.slots()) {
    parameters.push_back(block.data() + slot.offset);
  }
  const bool packed = number % 2 == 1;
  const Driver& driver = twin::driver();
  driver.check(
      driver.api.cuLaunchKernel(operation.function, 1, 1, 1, 1, 1, 1, 0, to_stream(stream),
                                packed ? nullptr : parameters.data(), packed ? extra : nullptr),
      "cuLaunchKernel", "an operation of the recorder");
}

void synchronize() {
  const Driver& driver = twin::driver();
  const CUresult code = driver.api.cuCtxSynchronize();
  driver.check(code, "cuCtxSynchronize", recorder().error);
}

/// A thread that waits for another's launches must not hold the GIL, which these may need.
void wait_without_gil(void (*wait)(void*), void* context) {
  if (PyGILState_Check() == 0) {
    wait(context);
    return;
  }
  const nb::gil_scoped_release released;
  wait(context);
}

}  // namespace

void bind_twin_recorder(nb::module_& module) {
  twin::set_waiter(&wait_without_gil);
  module.def("twin_register_operation", &register_operation, nb::arg("name"), nb::arg("kinds"),
             nb::arg("alignment"), nb::arg("run"),
             "Makes `run` a kernel of the twin and returns its number. `kinds` names the words of "
             "its block (recorded_kernel.h); at a replay `run` gets their values as a list.");
  module.def("twin_launch_operation", &launch, nb::arg("stream"), nb::arg("number"),
             nb::arg("values"), "Launches an operation on a stream handle of the twin.");
  module.def(
      "twin_copy",
      [](std::uint64_t stream, std::uint64_t to, std::uint64_t from, std::size_t bytes) {
        const Driver& driver = twin::driver();
        driver.check(driver.api.cuMemcpyDtoDAsync(to, from, bytes, to_stream(stream)),
                     "cuMemcpyDtoDAsync");
      },
      nb::arg("stream"), nb::arg("to"), nb::arg("source"), nb::arg("bytes"));
  module.def(
      "twin_fill",
      [](std::uint64_t stream, std::uint64_t to, std::uint8_t value, std::size_t bytes) {
        const Driver& driver = twin::driver();
        driver.check(driver.api.cuMemsetD8Async(to, value, bytes, to_stream(stream)),
                     "cuMemsetD8Async");
      },
      nb::arg("stream"), nb::arg("to"), nb::arg("value"), nb::arg("bytes"));
  module.def("twin_any_order", &twin::Faults::any_order, nb::arg("seed"),
             "See twin.h, Faults::any_order.");
  module.def("twin_padding_noise", &twin::Faults::padding_noise, nb::arg("on"),
             "See twin.h, Faults::padding_noise.");
  module.def(
      "twin_synchronize", &synchronize,
      "Finishes everything launched on the twin. Raises DriverError when some of it failed.");
  module.def(
      "twin_last_error", [] { return std::exchange(recorder().error, {}); },
      "What the last failed operation said, and forgets it; '' when none failed.");
}

}  // namespace pygraph::bindings
