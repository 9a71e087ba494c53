#include "twin/demonstrate.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "pygraph/link.h"
#include "pygraph/phantom.h"
#include "pygraph/program.h"
#include "pygraph/twin.h"
#include "twin/device_memory.h"
#include "twin/network.h"

namespace pygraph::twin {
namespace {

using network::Addresses;

constexpr unsigned char kPoison = 0xFF;  // a NaN, should anything read it

struct PaddingNoise {
  PaddingNoise() { Faults::padding_noise(true); }
  ~PaddingNoise() { Faults::padding_noise(false); }
  PaddingNoise(const PaddingNoise&) = delete;
  PaddingNoise& operator=(const PaddingNoise&) = delete;
};

StreamHandle make_stream(const Driver& driver) {
  CUstream stream = nullptr;
  driver.check(driver.api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  return {driver, stream};
}

/// Every piece in memory of its own; `round` chooses the arguments' contents.
std::vector<DeviceMemory> allocate_all(const Driver& driver, std::uint32_t round) {
  std::vector<DeviceMemory> memory;
  for (std::size_t piece = 0; piece < network::kPieces; ++piece) {
    memory.emplace_back(driver, network::bytes(piece));
    if (network::is_argument(piece)) {
      memory.back().write(network::contents(piece, round));
    }
  }
  return memory;
}

/// What the network gives when it is simply launched.
std::vector<float> without_graph(const Driver& driver, CUstream stream, std::uint32_t round) {
  const std::vector<DeviceMemory> memory = allocate_all(driver, round);
  Addresses at{};
  for (std::size_t piece = 0; piece < network::kPieces; ++piece) {
    at[piece] = memory[piece].address();
  }
  network::launch(driver, stream, at, 0);
  driver.check(driver.api.cuStreamSynchronize(stream), "cuStreamSynchronize");
  return memory[network::kOutput].read<float>();
}

/// Phantom addresses for all pieces in one placement.
Addresses place(PhantomSpace& space, Placement placement) {
  space.begin(placement);
  Addresses at{};
  for (std::size_t piece = 0; piece < network::kPieces; ++piece) {
    at[piece] = space.allocate(network::bytes(piece));
  }
  return at;
}

GraphHandle capture(const Driver& driver, CUstream stream, const Addresses& at,
                    std::uint64_t seed) {
  driver.check(driver.api.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
               "cuStreamBeginCapture");
  network::launch(driver, stream, at, seed);
  CUgraph graph = nullptr;
  driver.check(driver.api.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
  return {driver, graph};
}

bool same_bits(const std::vector<float>& left, const std::vector<float>& right) {
  return left.size() == right.size() &&
         std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0;
}

/// Binds the program to memory it has never seen, launches it and returns its output. The memory
/// is freed again: the next run cannot lean on it.
std::vector<float> run_elsewhere(const Driver& driver, CUstream stream, Program& program,
                                 const LinkedGraph& linked, std::uint32_t round) {
  std::vector<DeviceMemory> memory;
  for (std::size_t piece = 0; piece <= network::kOutput; ++piece) {
    memory.emplace_back(driver, network::bytes(piece));
    if (network::is_argument(piece)) {
      memory.back().write(network::contents(piece, round));
    }
    program.bind(static_cast<std::uint32_t>(piece), memory.back().address());
  }
  const DeviceMemory arena(driver, linked.layout.bytes);
  program.bind(linked.arena, arena.address());
  program.launch(stream);
  driver.check(driver.api.cuStreamSynchronize(stream), "cuStreamSynchronize");
  return memory[network::kOutput].read<float>();
}

std::size_t separate_bytes() {
  std::size_t sum = 0;
  for (std::size_t piece = 0; piece < network::kPieces; ++piece) {
    sum += network::is_scratch(piece) ? (network::bytes(piece) + 511) / 512 * 512 : 0;
  }
  return sum;
}

}  // namespace

Demonstration demonstrate() {
  Demonstration shown;
  const auto say = [&shown](std::string line) { shown.lines.push_back(std::move(line)); };
  const Driver& twin = driver();
  const StreamHandle stream = make_stream(twin);

  PhantomSpace space(twin, 0, {std::size_t{1} << 30, std::size_t{2} << 20});
  const Addresses in_a = place(space, Placement::kA);
  // The seed of the first kernel happens to equal the address of the input in capture A.
  const std::uint64_t seed = in_a[network::kInput];
  GraphHandle a;
  GraphHandle b;
  Addresses in_b{};
  {
    const PaddingNoise noise;
    a = capture(twin, stream.get(), in_a, seed);
    in_b = place(space, Placement::kB);
    b = capture(twin, stream.get(), in_b, seed);
  }

  std::vector<LinkRegion> regions;
  for (std::size_t piece = 0; piece < network::kPieces; ++piece) {
    const RegionRole role = network::is_scratch(piece) ? RegionRole::kScratch : RegionRole::kOwn;
    regions.push_back(
        {{in_a[piece], in_b[piece], network::bytes(piece)}, role, network::bytes(piece)});
  }
  LinkedGraph linked = link(twin, {.a = a.get(),
                                   .b = b.get(),
                                   .regions = regions,
                                   .phantom_begin = space.base(),
                                   .phantom_end = space.base() + space.reserved_bytes()});
  a.reset();
  b.reset();
  shown.nodes = linked.image.nodes.size();
  shown.relocations = linked.table.relocations.size();
  shown.coincidences = linked.table.coincidences;
  shown.noise = linked.table.noise;
  shown.arena_bytes = linked.layout.bytes;
  shown.lower_bound_bytes = linked.layout.lower_bound;
  say(fmt::format(
      "captured: a three-layer network, {} nodes ({} kernels, {} copy, {} fill), in "
      "phantom memory: {} regions, {} MiB of addresses, one block of {} MiB behind them",
      shown.nodes, linked.image.count(NodeKind::kKernel), linked.image.count(NodeKind::kMemcpy),
      linked.image.count(NodeKind::kMemset), regions.size(), space.reserved_bytes() >> 20,
      space.physical_bytes() >> 20));
  say(
      fmt::format("probed: the same work captured again with every region elsewhere; of {} words "
                  "compared, {} moved with a region and are relocations",
                  linked.table.words, shown.relocations));
  say(
      fmt::format("left alone: {} number that only looks like an address, {} words of "
                  "uninitialised padding",
                  shown.coincidences, shown.noise));
  if (!linked.table.sound()) {
    shown.proof = linked.table.problems.front();
    say("not linked: " + shown.proof);
    return shown;
  }
  say(
      fmt::format("laid out: scratch needs an arena of {} bytes (apart it would take {}; what must "
                  "live at once: {})",
                  shown.arena_bytes, separate_bytes(), shown.lower_bound_bytes));

  Program program(twin, std::move(linked.graph), linked.image, linked.relocations,
                  linked.region_count());
  space.poison(kPoison);
  const bool equal = same_bits(run_elsewhere(twin, stream.get(), program, linked, 0),
                               without_graph(twin, stream.get(), 0));
  const bool untouched = space.intact(kPoison);
  shown.proven = equal && untouched;
  shown.proof = !equal      ? "the result differs from the uncaptured launches"
                : untouched ? "passed"
                            : "a stray write reached the captured addresses";
  say(fmt::format("proof on third addresses, the captured ones poisoned: {}", shown.proof));

  shown.moved_equal = equal;
  for (std::uint32_t round = 1; round <= 2; ++round) {
    const bool same = same_bits(run_elsewhere(twin, stream.get(), program, linked, round),
                                without_graph(twin, stream.get(), round));
    shown.moved_equal = shown.moved_equal && same && space.intact(kPoison);
    say(fmt::format("moved all memory, new inputs (round {}): {}", round,
                    same ? "equal, bit for bit" : "DIFFERENT"));
  }
  say(fmt::format("{} node updates were pushed for {} launches; nothing was copied",
                  program.updates(), 3));
  return shown;
}

}  // namespace pygraph::twin
