// A GEMM and a kernel, captured twice in phantom memory, linked, and bound to other buffers at
// every call: checked against a plain run, and timed against the two ways that CUDA itself offers.
#include "compare.h"
#include "pygraph/link.h"
#include "pygraph/phantom.h"
#include "pygraph/program.h"

using namespace pygraph;
using namespace replay;

// Whatever the work addresses is a region: three buffers of the caller, then scratch memory.
enum : std::uint32_t { kIn, kWeights, kOut, kHidden, kWorkspace, kRegions };
constexpr std::uint32_t kSize = 64;  // matrices of 64 * 64 floats
constexpr std::size_t kBytes = sizeof(float) * kSize * kSize;
constexpr std::size_t kSizes[] = {kBytes, kBytes, kBytes, kBytes, Device::kWorkspaceBytes};

void work(const Device& device, const Addresses& at) {
  device.gemm(at[kHidden], at[kIn], at[kWeights], kSize);
  device.relu(at[kOut], at[kHidden], kSize * kSize);
}

LinkedGraph link_work(Device& device) {
  // Two captures, every region elsewhere in the second. Nothing runs, nothing needs memory.
  PhantomSpace phantom(device.driver(), 0);
  Addresses places[2];
  GraphHandle graphs[2];
  for (const Placement placement : {Placement::kA, Placement::kB}) {
    Addresses& at = places[static_cast<int>(placement)];
    phantom.begin(placement);
    for (const std::size_t bytes : kSizes) {
      at.push_back(phantom.allocate(bytes));
    }
    device.use_workspace(at[kWorkspace]);
    graphs[static_cast<int>(placement)] = capture(device, work, at);
  }
  // An address that moved along with its region is a relocation. Scratch is packed into an arena.
  std::vector<LinkRegion> regions;
  for (std::uint32_t i = 0; i < kRegions; ++i) {
    const RegionRole role = i < kHidden ? RegionRole::kOwn : RegionRole::kScratch;
    regions.push_back({{places[0][i], places[1][i], kSizes[i]}, role, kSizes[i]});
  }
  return link(device.driver(), {.a = graphs[0].get(),
                                .b = graphs[1].get(),
                                .regions = regions,
                                .phantom_begin = phantom.base(),
                                .phantom_end = phantom.base() + phantom.reserved_bytes()});
}

int main() try {
  Device device;
  const Buffers buffers(device, kSizes, kOut);  // real memory: two sets, to move between
  device.use_workspace(buffers.set(0)[kWorkspace]);
  // The plain run also loads every kernel, which a capture must not do.
  const auto expected = buffers.results([&](const Addresses& at) { work(device, at); });

  LinkedGraph linked = link_work(device);
  if (!linked.table.sound()) {
    throw std::runtime_error(linked.table.problems.front());
  }
  const Memory arena(device.driver(), linked.layout.bytes);
  Program program(device.driver(), std::move(linked.graph), std::move(linked.image),
                  linked.relocations, linked.region_count());
  program.bind(linked.arena, arena.address());

  std::printf("host time of a call whose buffers all moved; %s\n", device.name().c_str());
  buffers.compare("PyGraph: bind, launch", expected, [&](const Addresses& at) {
    for (const std::uint32_t region : {kIn, kWeights, kOut}) {
      program.bind(region, at[region]);
    }
    program.launch(device.stream());
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
