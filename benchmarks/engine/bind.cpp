// What a call pays for addresses: none when nothing moved, one driver call per node that did.
#include "workload.h"

namespace pygraph::benchmarks {
namespace {

using benchmark::Counter;
using benchmark::State;

/// Comparing the addresses of regions that did not move.
void bind_unchanged(State& state) {
  const auto regions = static_cast<std::size_t>(state.range(0));
  Bound bound(chain(regions, regions));
  for ([[maybe_unused]] auto iteration : state) {
    for (std::size_t i = 0; i < regions; ++i) {
      bound.program().bind(static_cast<std::uint32_t>(i), bound.input(i, false));
    }
    benchmark::ClobberMemory();
  }
  state.counters["per_region"] =
      Counter(static_cast<double>(regions), Counter::kIsIterationInvariantRate | Counter::kInvert);
  state.SetLabel(driver_label());
}
BENCHMARK(bind_unchanged)->Arg(1)->Arg(8)->Arg(32)->Arg(128)->Arg(400);

/// Moving one region that so many nodes mention, and telling the driver.
void bind_and_update(State& state) {
  const auto nodes = static_cast<std::size_t>(state.range(0));
  Bound bound(fan(nodes));
  bool second = false;
  for ([[maybe_unused]] auto iteration : state) {
    second = !second;
    bound.program().bind(0, bound.input(0, second));
    bound.program().update();
  }
  state.counters["per_node"] =
      Counter(static_cast<double>(nodes), Counter::kIsIterationInvariantRate | Counter::kInvert);
  state.SetLabel(driver_label());
}
BENCHMARK(bind_and_update)->Arg(1)->Arg(16)->Arg(256);

/// The engine's own part of that: words rewritten and nodes marked, the driver not told.
void bind_only(State& state) {
  const auto nodes = static_cast<std::size_t>(state.range(0));
  Bound bound(fan(nodes));
  bool second = false;
  for ([[maybe_unused]] auto iteration : state) {
    second = !second;
    bound.program().bind(0, bound.input(0, second));
  }
  state.counters["per_node"] =
      Counter(static_cast<double>(nodes), Counter::kIsIterationInvariantRate | Counter::kInvert);
  state.SetLabel(driver_label());
}
BENCHMARK(bind_only)->Arg(1)->Arg(16)->Arg(256);

}  // namespace
}  // namespace pygraph::benchmarks
