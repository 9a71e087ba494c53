// What compiling a graph costs on top of its two captures: phantom memory, reading, comparing,
// laying out.
#include "pygraph/layout.h"
#include "workload.h"

namespace pygraph::benchmarks {
namespace {

using benchmark::Counter;
using benchmark::State;

/// Handing out addresses that are mapped already, 500 per capture.
void phantom_allocate(State& state) {
  constexpr std::size_t kAllocations = 500;
  PhantomSpace space(bed().driver(), 0, {std::size_t{1} << 30, std::size_t{2} << 20});
  for ([[maybe_unused]] auto iteration : state) {
    space.begin(Placement::kA);
    for (std::size_t i = 0; i < kAllocations; ++i) {
      benchmark::DoNotOptimize(space.allocate(100'000));
    }
  }
  state.counters["per_allocation"] = Counter(static_cast<double>(kAllocations),
                                             Counter::kIsIterationInvariantRate | Counter::kInvert);
  state.SetLabel(driver_label());
}
BENCHMARK(phantom_allocate);

/// The first capture of a process: reserving, creating the block and mapping 8 GiB of addresses.
void phantom_map(State& state) {
  for ([[maybe_unused]] auto iteration : state) {
    PhantomSpace space(bed().driver(), 0, {std::size_t{1} << 36, std::size_t{64} << 20});
    benchmark::DoNotOptimize(space.allocate(std::size_t{8} << 30));
  }
  state.SetLabel(driver_label());
}
BENCHMARK(phantom_map)->Unit(benchmark::kMillisecond);

void read_nodes(State& state) {
  const Captures captures = capture(chain(static_cast<std::size_t>(state.range(0)), 10));
  for ([[maybe_unused]] auto iteration : state) {
    benchmark::DoNotOptimize(read_image(bed().driver(), captures.a.get()));
  }
  state.SetLabel(driver_label());
}
BENCHMARK(read_nodes)->Arg(1000)->Unit(benchmark::kMicrosecond);

void compare_captures(State& state) {
  const Captures captures = capture(chain(static_cast<std::size_t>(state.range(0)), 10));
  const Image a = read_image(bed().driver(), captures.a.get());
  const Image b = read_image(bed().driver(), captures.b.get());
  std::vector<Region> places;
  places.reserve(captures.regions.size());
  for (const LinkRegion& region : captures.regions) {
    places.push_back(region.place);
  }
  const CUdeviceptr begin = captures.space->base();
  const CUdeviceptr end = begin + captures.space->reserved_bytes();
  for ([[maybe_unused]] auto iteration : state) {
    benchmark::DoNotOptimize(relocate(a, b, places, begin, end));
  }
  state.SetLabel(driver_label());
}
BENCHMARK(compare_captures)->Arg(1000)->Unit(benchmark::kMicrosecond);

/// The order of the nodes and the places of as many buffers.
void lay_out_arena(State& state) {
  const auto nodes = static_cast<std::uint32_t>(state.range(0));
  const Captures captures = capture(chain(nodes, 10));
  const Image image = read_image(bed().driver(), captures.a.get());
  std::vector<Buffer> buffers;
  for (std::uint32_t i = 0; i + 1 < nodes; ++i) {
    buffers.push_back({std::size_t{512} * (1 + i * 7919 % 101), {i, i + 1}});
  }
  for ([[maybe_unused]] auto iteration : state) {
    benchmark::DoNotOptimize(lay_out(buffers, NodeOrder(image)));
  }
  state.SetLabel(driver_label());
}
BENCHMARK(lay_out_arena)->Arg(1000)->Arg(10000)->Unit(benchmark::kMicrosecond);

/// Everything between two captures and a program.
void link_graph(State& state) {
  const Captures captures = capture(chain(static_cast<std::size_t>(state.range(0)), 10));
  for ([[maybe_unused]] auto iteration : state) {
    benchmark::DoNotOptimize(captures.link_all());
  }
  state.SetLabel(driver_label());
}
BENCHMARK(link_graph)->Arg(1000)->Arg(3000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace pygraph::benchmarks
