#include "workload.h"

#include <chrono>
#include <string>

namespace pygraph::benchmarks {
namespace {

using twin::Testbed;

constexpr int kCallsInFlight = 50;

Testbed::Kind kind() {
  return Testbed::problem(Testbed::Kind::kReal).empty() ? Testbed::Kind::kReal
                                                        : Testbed::Kind::kTwin;
}

GraphHandle capture_at(const Workload& workload, const std::vector<CUdeviceptr>& at) {
  return bed().capture([&] {
    for (std::size_t i = 0; i < workload.nodes; ++i) {
      bed().affine({at[workload.inputs + i], at[workload.reads(i)], 1, 1, kFloats});
    }
  });
}

std::vector<CUdeviceptr> place(PhantomSpace& space, Placement placement, std::size_t regions) {
  space.begin(placement);
  std::vector<CUdeviceptr> at;
  for (std::size_t i = 0; i < regions; ++i) {
    at.push_back(space.allocate(kBytes));
  }
  return at;
}

}  // namespace

const Testbed& bed() {
  static const Testbed& ready = *new Testbed(kind());  // outlives every static that uses it
  return ready;
}

const std::string& driver_label() {
  static const std::string label = [] {
    const Capabilities& found = bed().driver().capabilities;
    return kind() == Testbed::Kind::kTwin
               ? std::string("CPU twin")
               : "real driver, CUDA " + std::to_string(found.version / 1000) + "." +
                     std::to_string(found.version % 1000 / 10);
  }();
  return label;
}

Workload fan(std::size_t nodes) {
  return {nodes, 1, [](std::size_t) { return std::size_t{0}; }};
}

Workload chain(std::size_t nodes, std::size_t inputs) {
  return {nodes, inputs, [inputs](std::size_t i) { return i < inputs ? i : inputs + i - 1; }};
}

Captures capture(const Workload& workload) {
  Captures made;
  made.space = std::make_unique<PhantomSpace>(
      bed().driver(), 0, PhantomSpace::Options{std::size_t{1} << 30, std::size_t{2} << 20});
  const auto in_a = place(*made.space, Placement::kA, workload.regions());
  made.a = capture_at(workload, in_a);
  const auto in_b = place(*made.space, Placement::kB, workload.regions());
  made.b = capture_at(workload, in_b);
  for (std::size_t i = 0; i < workload.regions(); ++i) {
    const RegionRole role = i < workload.inputs ? RegionRole::kOwn : RegionRole::kScratch;
    made.regions.push_back({{in_a[i], in_b[i], kBytes}, role, kBytes});
  }
  return made;
}

LinkedGraph Captures::link_all() const {
  return link(bed().driver(), {.a = a.get(),
                               .b = b.get(),
                               .regions = regions,
                               .phantom_begin = space->base(),
                               .phantom_end = space->base() + space->reserved_bytes()});
}

Bound::Bound(const Workload& workload)
    : memory_(bed().driver(), workload.regions() * kStride),
      other_(bed().driver(), workload.regions() * kStride) {
  LinkedGraph linked = capture(workload).link_all();
  program_ = std::make_unique<Program>(bed().driver(), std::move(linked.graph), linked.image,
                                       linked.relocations, linked.region_count());
  for (std::size_t i = 0; i < workload.inputs; ++i) {
    program_->bind(static_cast<std::uint32_t>(i), input(i, false));
  }
  program_->bind(linked.arena, input(workload.inputs, false));
  program_->launch(bed().stream());
  bed().synchronize();
}

void time_calls(benchmark::State& state, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  int calls = 0;
  for ([[maybe_unused]] auto iteration : state) {
    const Clock::time_point start = Clock::now();
    call();
    state.SetIterationTime(std::chrono::duration<double>(Clock::now() - start).count());
    if (++calls % kCallsInFlight == 0) {
      bed().synchronize();
    }
  }
  bed().synchronize();
}

}  // namespace pygraph::benchmarks
