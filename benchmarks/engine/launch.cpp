// What a call pays for its launch: CPU time, the device waited for outside the timing.
#include "workload.h"

namespace pygraph::benchmarks {
namespace {

using benchmark::State;

/// The device takes 0.8 ms for 1000 nodes, the clock stops after 2 us of host time: left to itself,
/// the library would fill its minimum of time with so many calls that each line took a minute.
void fix_iterations(benchmark::internal::Benchmark* benchmark) {
  benchmark->UseManualTime()->Iterations(2000)->Repetitions(3)->DisplayAggregatesOnly();
}

/// Program::launch with nothing to update.
void launch(State& state) {
  Bound bound(chain(static_cast<std::size_t>(state.range(0)), 1));
  time_calls(state, [&] { bound.program().launch(bed().stream()); });
  state.SetLabel(driver_label());
}
BENCHMARK(launch)->Arg(1)->Arg(100)->Arg(1000)->Apply(fix_iterations);

/// The driver's own call, which `launch` cannot beat.
void raw_launch(State& state) {
  Bound bound(chain(static_cast<std::size_t>(state.range(0)), 1));
  const Driver& driver = bed().driver();
  const CUgraphExec exec = bound.program().exec();
  time_calls(state, [&] {
    driver.check(driver.api.cuGraphLaunch(exec, bed().stream()), "cuGraphLaunch");
  });
  state.SetLabel(driver_label());
}
BENCHMARK(raw_launch)->Arg(1)->Arg(100)->Arg(1000)->Apply(fix_iterations);

/// A whole call of a 1000-node graph: all inputs bound, to where they are or to the other place.
void call(State& state, bool moves) {
  constexpr std::size_t kNodes = 1000;
  const auto inputs = static_cast<std::size_t>(state.range(0));
  Bound bound(chain(kNodes, inputs));
  bool second = false;
  time_calls(state, [&] {
    second = second != moves;
    for (std::size_t i = 0; i < inputs; ++i) {
      bound.program().bind(static_cast<std::uint32_t>(i), bound.input(i, second));
    }
    bound.program().launch(bed().stream());
  });
  state.SetLabel(driver_label());
}

void call_with_moved_inputs(State& state) { call(state, true); }
BENCHMARK(call_with_moved_inputs)->Arg(1)->Arg(10)->Arg(100)->Apply(fix_iterations);

void call_with_unmoved_inputs(State& state) { call(state, false); }
BENCHMARK(call_with_unmoved_inputs)->Arg(1)->Arg(10)->Arg(100)->Apply(fix_iterations);

}  // namespace
}  // namespace pygraph::benchmarks
