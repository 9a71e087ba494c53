// A GEMM and a kernel, captured as a program and bound to other buffers at every call: checked
// against a plain run, and timed against the two ways that CUDA itself offers.
#include <array>

#include "compare.h"
#include "pygraph/capture.h"

using namespace pygraph;
using namespace replay;

// What the work addresses: three buffers of the caller, then scratch memory.
enum : std::uint32_t { kIn, kWeights, kOut, kHidden, kWorkspace };
constexpr std::uint32_t kSize = 64;  // matrices of 64 * 64 floats
constexpr std::size_t kBytes = sizeof(float) * kSize * kSize;
constexpr std::size_t kSizes[] = {kBytes, kBytes, kBytes, kBytes, Device::kWorkspaceBytes};

void work(const Device& device, const Addresses& at) {
  device.gemm(at[kHidden], at[kIn], at[kWeights], kSize);
  device.relu(at[kOut], at[kHidden], kSize * kSize);
}

/// The work as a program, proven in the given buffers.
CapturedWork capture_work(Device& device, const std::vector<Addresses>& proof) {
  const auto on_memory = [&](CUstream, const WorkMemory& at) {  // the device has one stream
    device.use_workspace(at.scratch(Device::kWorkspaceBytes));
    work(device, {at[kIn], at[kWeights], at[kOut], at.scratch(kBytes)});
  };
  return pygraph::capture(device.driver(), device.stream(), {kBytes, kBytes, kBytes}, on_memory,
                          {.proof = proof});
}

int main() try {
  Device device;
  const Buffers buffers(device, kSizes, kOut);  // real memory: two sets, to move between
  device.use_workspace(buffers.set(0)[kWorkspace]);
  // The plain run also loads every kernel, which a capture must not do.
  const auto expected = buffers.results([&](const Addresses& at) { work(device, at); });

  const auto own = [&](std::size_t set) {
    return Addresses(buffers.set(set).begin(), buffers.set(set).begin() + kHidden);
  };
  CapturedWork captured = capture_work(device, {own(0), own(1)});
  const Memory arena(device.driver(), captured.arena_bytes);

  std::printf("host time of a call whose buffers all moved; %s\n", device.name().c_str());
  buffers.compare("PyGraph: bind, launch", expected, [&](const Addresses& at) {
    captured.bind(std::array{at[kIn], at[kWeights], at[kOut]}, arena.address());
    captured.program.launch(device.stream());
  });
  device.use_workspace(buffers.set(0)[kWorkspace]);
  buffers.compare("CUDA: capture, cuGraphInstantiate, launch", expected,
                  [&](const Addresses& at) { launch_anew(device, capture(device, work, at)); });
  const Updated updated(device, capture(device, work, buffers.set(0)));
  buffers.compare("CUDA: capture, cuGraphExecUpdate, launch", expected,
                  [&](const Addresses& at) { updated.launch(capture(device, work, at)); });
} catch (const std::exception& error) {
  std::fprintf(stderr, "replay: %s\n", error.what());
  return 1;
}
