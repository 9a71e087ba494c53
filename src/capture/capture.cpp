#include "pygraph/capture.h"

#include <fmt/format.h>

#include <utility>

#include "extent.h"
#include "proof.h"
#include "pygraph/handles.h"
#include "pygraph/link.h"

namespace pygraph {
namespace {

/// A capture of a stream, which is over when this object goes, whatever happened in between.
class StreamCapture {
 public:
  StreamCapture(const Driver& driver, CUstream stream) : driver_(driver), stream_(stream) {
    driver.check(driver.api.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                 "cuStreamBeginCapture");
  }
  ~StreamCapture() {
    if (capturing_) {
      CUgraph graph = nullptr;
      driver_.api.cuStreamEndCapture(stream_, &graph);
      const GraphHandle unfinished(driver_, graph);
    }
  }
  StreamCapture(const StreamCapture&) = delete;
  StreamCapture& operator=(const StreamCapture&) = delete;

  GraphHandle end() {
    CUgraph graph = nullptr;
    driver_.check(driver_.api.cuStreamEndCapture(stream_, &graph), "cuStreamEndCapture",
                  "the captured work",
                  "it must not wait for the device, allocate memory of its own, or leave a stream "
                  "that it forked without joining it");
    capturing_ = false;
    return {driver_, graph};
  }

 private:
  const Driver& driver_;
  CUstream stream_;
  bool capturing_ = true;
};

/// The work, captured in one placement: its graph, and where its buffers and behind them its
/// scratch were.
struct Recorded {
  GraphHandle graph;
  std::vector<PhantomAllocation> places;
};

void check_request(const Driver& driver, CUstream stream, const std::vector<std::size_t>& buffers,
                   const Work& work, const CaptureOptions& options) {
  if (!work) {
    throw std::invalid_argument("capture: found no work, needed a function that launches it");
  }
  if (stream == nullptr || stream == CU_STREAM_LEGACY) {
    throw std::invalid_argument(
        "capture: found the default stream, which cannot be captured; needed another one");
  }
  CUstreamCaptureStatus status{};
  driver.check(driver.api.cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing");
  if (status != CU_STREAM_CAPTURE_STATUS_NONE) {
    throw std::invalid_argument(
        "capture: found a stream that is capturing already; needed one that is not");
  }
  for (const std::vector<CUdeviceptr>& addresses : options.proof) {
    if (addresses.size() != buffers.size()) {
      throw std::invalid_argument(
          fmt::format("capture: found a proof with {} addresses, needed one for each of {} buffers",
                      addresses.size(), buffers.size()));
    }
  }
}

CUdevice current_device(const Driver& driver) {
  CUdevice device = 0;
  driver.check(driver.api.cuCtxGetDevice(&device), "cuCtxGetDevice", "the current context",
               "make the stream's context current");
  return device;
}

Recorded record(const Driver& driver, CUstream stream, const std::vector<std::size_t>& buffers,
                const Work& work, PhantomSpace& space, Placement placement) {
  space.begin(placement);
  std::vector<CUdeviceptr> addresses;
  addresses.reserve(buffers.size());
  for (const std::size_t bytes : buffers) {
    addresses.push_back(space.allocate(bytes));
  }
  const WorkMemory memory(std::move(addresses),
                          [&](std::size_t bytes) { return space.allocate(bytes); });
  StreamCapture capture(driver, stream);
  work(stream, memory);
  GraphHandle graph = capture.end();
  return {std::move(graph), space.allocations()};
}

/// What the captures address, at its places in both. Throws UnsupportedGraph when the work asked
/// for other scratch the second time.
std::vector<LinkRegion> regions_of(const Recorded& a, const Recorded& b, std::size_t buffers) {
  if (a.places.size() != b.places.size()) {
    throw UnsupportedGraph(
        fmt::format("the work asked {} times for scratch when it was captured first and {} times "
                    "the second time; needed: the same each time",
                    a.places.size() - buffers, b.places.size() - buffers));
  }
  std::vector<LinkRegion> regions;
  regions.reserve(a.places.size());
  for (std::size_t i = 0; i < a.places.size(); ++i) {
    const std::size_t bytes = a.places[i].bytes;
    if (bytes != b.places[i].bytes) {
      throw UnsupportedGraph(
          fmt::format("scratch {}: the work asked for {} bytes when it was captured first and for "
                      "{} the second time; needed: the same each time",
                      i - buffers, bytes, b.places[i].bytes));
    }
    const RegionRole role = i < buffers ? RegionRole::kOwn : RegionRole::kScratch;
    regions.push_back({{a.places[i].address, b.places[i].address, bytes}, role, bytes});
  }
  return regions;
}

/// The node that a problem is about, with its kernel's name, to stand in front of the problem.
std::string name_of(const Driver& driver, const LinkedGraph& linked) {
  const std::optional<std::uint32_t> node = linked.table.problem_node;
  if (!node.has_value() || linked.image.nodes[*node].kind != NodeKind::kKernel) {
    return {};
  }
  return fmt::format("kernel {}: ", kernel_name(driver, linked.image.nodes[*node].shape));
}

void refuse_unsound(const Driver& driver, const LinkedGraph& linked) {
  if (!linked.table.sound()) {
    throw UnsupportedGraph(fmt::format(
        "two captures of the work differ in more than where its memory is: {}{}; needed: the same "
        "launches each time, and no address but those that the work was handed",
        name_of(driver, linked), linked.table.problems.front()));
  }
  if (linked.table.coincidences != 0) {
    throw UnsupportedGraph(
        "an address of memory of the first capture is there in the second, too; needed: work that "
        "keeps no address from one run to the next, as libraries keep their workspaces");
  }
  if (linked.image.nodes.empty()) {
    throw UnsupportedGraph(
        "the capture is empty: the work put nothing on the stream that it was handed");
  }
}

LinkedGraph link_checked(const Driver& driver, const Recorded& a, const Recorded& b,
                         const std::vector<LinkRegion>& regions, const PhantomSpace& space,
                         bool share_scratch) {
  LinkedGraph linked = link(driver, {.a = a.graph.get(),
                                     .b = b.graph.get(),
                                     .regions = regions,
                                     .phantom_begin = space.base(),
                                     .phantom_end = space.base() + space.reserved_bytes(),
                                     .options = {.share_scratch = share_scratch}});
  refuse_unsound(driver, linked);
  return linked;
}

CapturedWork into_program(const Driver& driver, LinkedGraph linked, std::size_t buffers) {
  const std::size_t region_count = linked.region_count();
  return {.program = {driver, std::move(linked.graph), std::move(linked.image), linked.relocations,
                      region_count},
          .buffers = buffers,
          .arena = linked.arena,
          .arena_bytes = linked.layout.bytes,
          .foreign = std::move(linked.table.foreign)};
}

}  // namespace

WorkMemory::WorkMemory(std::vector<CUdeviceptr> buffers, Allocate allocate)
    : buffers_(std::move(buffers)), allocate_(std::move(allocate)) {}

void CapturedWork::bind(std::span<const CUdeviceptr> addresses, CUdeviceptr arena_address) {
  if (addresses.size() != buffers) {
    throw std::invalid_argument(
        fmt::format("bind: found {} addresses, needed one for each of {} "
                    "buffers",
                    addresses.size(), buffers));
  }
  for (std::uint32_t buffer = 0; buffer < buffers; ++buffer) {
    program.bind(buffer, addresses[buffer]);
  }
  program.bind(arena, arena_address);
}

CapturedWork capture(const Driver& driver, CUstream stream, const std::vector<std::size_t>& buffers,
                     const Work& work, const CaptureOptions& options) {
  check_request(driver, stream, buffers, work, options);
  PhantomSpace space(driver, current_device(driver), options.phantom);

  // The first graph lives while the second is captured, or both allocate at the same addresses.
  const Recorded a = record(driver, stream, buffers, work, space, Placement::kA);
  const Recorded b = record(driver, stream, buffers, work, space, Placement::kB);

  const std::vector<LinkRegion> regions = regions_of(a, b, buffers.size());
  LinkedGraph linked = link_checked(driver, a, b, regions, space, options.share_scratch);
  check_extents(linked, regions, buffers.size());
  CapturedWork captured = into_program(driver, std::move(linked), buffers.size());

  for (const std::vector<CUdeviceptr>& addresses : options.proof) {
    prove(driver, stream, captured, work, buffers, addresses, space);
  }
  return captured;
}

}  // namespace pygraph
