#include "support.h"

namespace pygraph::testing {
namespace {

GraphHandle capture_chain(const Testbed& bed, const std::vector<CUdeviceptr>& at,
                          std::uint32_t floats) {
  return bed.capture([&] {
    for (std::size_t i = 0; i + 1 < at.size(); ++i) {
      bed.affine({at[i + 1], at[i], Chain::kScale, static_cast<float>(i), floats});
    }
  });
}

std::vector<CUdeviceptr> place(PhantomSpace& space, Placement placement, std::size_t regions,
                               std::size_t bytes) {
  space.begin(placement);
  std::vector<CUdeviceptr> at;
  for (std::size_t i = 0; i < regions; ++i) {
    at.push_back(space.allocate(bytes));
  }
  return at;
}

}  // namespace

Chain make_chain(const Testbed& bed, std::size_t nodes, std::uint32_t floats) {
  const std::size_t bytes = floats * sizeof(float);
  PhantomSpace space(bed.driver(), 0, small_phantom());
  const std::vector<CUdeviceptr> in_a = place(space, Placement::kA, nodes + 1, bytes);
  const std::vector<CUdeviceptr> in_b = place(space, Placement::kB, nodes + 1, bytes);
  std::vector<Region> regions;
  for (std::size_t i = 0; i <= nodes; ++i) {
    regions.push_back({in_a[i], in_b[i], bytes});
  }
  Chain chain{nodes, floats, capture_chain(bed, in_a, floats), {}, {}};
  const GraphHandle probe = capture_chain(bed, in_b, floats);
  chain.image = read_image(bed.driver(), chain.graph.get());
  chain.table = relocate(chain.image, read_image(bed.driver(), probe.get()), regions, space.base(),
                         space.base() + space.reserved_bytes());
  return chain;
}

std::vector<DeviceMemory> chain_memory(const Testbed& bed, const Chain& chain, float start) {
  std::vector<DeviceMemory> memory;
  for (std::size_t i = 0; i < chain.regions(); ++i) {
    memory.emplace_back(bed.driver(), chain.bytes());
  }
  memory.front().write(std::vector<float>(chain.floats, start));
  return memory;
}

void bind_all(Program& program, const std::vector<DeviceMemory>& memory) {
  for (std::size_t i = 0; i < memory.size(); ++i) {
    program.bind(static_cast<std::uint32_t>(i), memory[i].address());
  }
}

::testing::AssertionResult holds(const DeviceMemory& memory, float value) {
  const std::vector<float> found = memory.read<float>();
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] != value) {
      return ::testing::AssertionFailure()
             << "element " << i << " is " << found[i] << ", expected " << value;
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace pygraph::testing
