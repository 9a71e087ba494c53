// What it costs to launch a graph in parts, and to find out where to cut it.
#include <algorithm>
#include <utility>
#include <vector>

#include "link/cut.h"
#include "pygraph/chain.h"
#include "workload.h"

namespace pygraph::benchmarks {
namespace {

using benchmark::State;

constexpr std::size_t kNodes = 1000;
constexpr std::size_t kInputs = 10;

/// A graph of 1000 nodes in so many parts of the same length, bound.
class Parts {
 public:
  explicit Parts(std::size_t parts)
      : memory_(bed().driver(), 512 * (workload_.regions() + kNodes)), chain_(make(parts)) {
    for (std::size_t region = 0; region < regions_; ++region) {
      chain_.bind(static_cast<std::uint32_t>(region), memory_.address() + 512 * region);
    }
    launch();
    bed().synchronize();
  }

  void launch() {
    for (std::size_t part = 0; part < chain_.size(); ++part) {
      chain_.launch(part, bed().stream());
    }
  }

 private:
  Chain make(std::size_t parts) {
    LinkedGraph linked = capture(workload_).link_all();
    regions_ = linked.region_count();
    for (std::size_t part = 1; part < parts; ++part) {
      linked.cuts.push_back(static_cast<std::uint32_t>(part * kNodes / parts));
    }
    std::vector<Program> programs;
    for (LinkedPart& part : take_apart(bed().driver(), std::move(linked))) {
      programs.emplace_back(bed().driver(), std::move(part.graph), std::move(part.image),
                            part.relocations, regions_);
    }
    return Chain(std::move(programs));
  }

  Workload workload_ = chain(kNodes, kInputs);
  twin::DeviceMemory memory_;
  std::size_t regions_ = 0;
  Chain chain_;
};

/// All parts of a call, nothing to update: 1 part is what an uncut graph pays.
void launch_parts(State& state) {
  Parts parts(static_cast<std::size_t>(state.range(0)));
  time_calls(state, [&] { parts.launch(); });
  state.SetLabel(driver_label());
}
BENCHMARK(launch_parts)
    ->Arg(1)
    ->Arg(4)
    ->Arg(12)
    ->UseManualTime()
    ->Iterations(2000)
    ->Repetitions(3)
    ->DisplayAggregatesOnly();

/// Where to cut a backward: activations that die one after the other, gradients that are born.
void find_cuts(State& state) {
  const auto nodes = static_cast<std::uint32_t>(state.range(0));
  std::vector<Tenant> tenants;
  for (std::uint32_t node = 0; node < nodes; ++node) {
    tenants.push_back({3000, 0, node, false});
    tenants.push_back({2000, node, nodes - 1, false});
    tenants.push_back({1000, node, std::min(node + 3, nodes - 1), true});
  }
  for ([[maybe_unused]] auto iteration : state) {
    benchmark::DoNotOptimize(choose_cuts(tenants, nodes, 20'000));
  }
  state.SetLabel("CPU only");
}
BENCHMARK(find_cuts)->Arg(1000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace pygraph::benchmarks
