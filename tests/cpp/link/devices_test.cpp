// Graphs that work on two devices.
#include <array>

#include "graph_builder.h"
#include "support.h"

namespace pygraph {
namespace {

using testing::DeviceMemory;
using testing::GraphBuilder;
using testing::message_of;

constexpr std::size_t kBytes = 256;

class Devices : public testing::OnTwin {
 protected:
  void SetUp() override {
    OnTwin::SetUp();
    for (CUdevice device = 0; device < 2; ++device) {
      driver().check(driver().api.cuDevicePrimaryCtxRetain(&contexts_[device], device),
                     "cuDevicePrimaryCtxRetain");
      driver().check(driver().api.cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
    }
  }
  [[nodiscard]] CUcontext context(std::size_t device) const { return contexts_[device]; }
  [[nodiscard]] std::span<const CUcontext> contexts() const { return contexts_; }

  static CUDA_MEMCPY3D copy(CUdeviceptr to, CUdeviceptr from) {
    CUDA_MEMCPY3D params{};
    params.srcMemoryType = params.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    params.srcDevice = from;
    params.dstDevice = to;
    params.WidthInBytes = kBytes;
    params.Height = params.Depth = 1;
    return params;
  }

 private:
  std::array<CUcontext, 2> contexts_{};
};

/// Regions 0 and 3 are the graph's own device's, 1 and 2 the other's; 1 and 3 are scratch.
class OnTwoDevices : public Devices {
 protected:
  static constexpr std::array<std::uint32_t, 4> kDevice = {0, 1, 1, 0};

  /// A copy from one region to another one.
  struct Step {
    std::size_t to;
    std::size_t from;
  };

  /// Region 1 is filled, and what was copied is copied on.
  LinkedGraph linked(PhantomSpace& space, const std::vector<Step>& steps,
                     const std::vector<CopyOut>& copies = {}, bool cut = false) {
    std::array<std::vector<CUdeviceptr>, 2> at;
    std::array<GraphHandle, 2> graphs;
    for (const Placement placement : {Placement::kA, Placement::kB}) {
      const auto which = static_cast<std::size_t>(placement);
      space.begin(placement);
      for (std::size_t i = 0; i < kDevice.size(); ++i) {
        at[which].push_back(space.allocate(kBytes));
      }
      GraphBuilder graph(bed());
      CUgraphNode last = graph.fill_2d(at[which][1], 7, kBytes, 1, 0);
      for (const auto& [to, from] : steps) {
        last = graph.copy(copy(at[which][to], at[which][from]), {last});
      }
      graphs[which] = graph.take();
    }
    constexpr auto kScratch = RegionRole::kScratch;
    const std::array<RegionRole, 4> roles = {cut ? RegionRole::kSpent : RegionRole::kOwn, kScratch,
                                             cut ? RegionRole::kFresh : RegionRole::kOwn, kScratch};
    std::vector<LinkRegion> regions;
    for (std::size_t i = 0; i < kDevice.size(); ++i) {
      regions.push_back({.place = {at[0][i], at[1][i], kBytes},
                         .role = roles[i],
                         .used_bytes = kBytes,
                         .device = kDevice[i]});
    }
    LinkRequest request{.a = graphs[0].get(),
                        .b = graphs[1].get(),
                        .regions = regions,
                        .copies = copies,
                        .phantom_begin = space.base(),
                        .phantom_end = space.base() + space.reserved_bytes(),
                        .contexts = contexts()};
    request.options.peak_slack = cut ? 1 : request.options.peak_slack;
    return link(driver(), request);
  }
  LinkedGraph linked(PhantomSpace& space, const std::vector<CopyOut>& copies = {}) {
    return linked(space, {{2, 1}, {3, 0}, {2, 3}}, copies);
  }
};

TEST_F(OnTwoDevices, CopiesRunWhereTheyReadAndFillsWhereTheyWrite) {
  PhantomSpace space(driver(), 0, testing::small_phantom());
  const LinkedGraph made = linked(space, {{.region = 1, .bytes = kBytes}});
  ASSERT_TRUE(made.table.sound());
  std::vector<CUcontext> found;
  for (const Node& node : made.image.nodes) {
    found.push_back(node.shape.context);
  }
  EXPECT_EQ(found,
            (std::vector<CUcontext>{context(1), context(1), context(0), context(0), context(1)}));
}

TEST_F(OnTwoDevices, EachHasItsScratch) {
  PhantomSpace space(driver(), 0, testing::small_phantom());
  LinkedGraph made = linked(space);
  ASSERT_EQ(made.pieces(), (std::vector<std::size_t>{512, 512}));
  EXPECT_EQ(made.layout.devices, (std::vector<std::uint32_t>{0, 1}));

  Program program(driver(), std::move(made.graph), made.image, made.relocations,
                  made.region_count());
  space.poison(0xFF);
  const DeviceMemory in(driver(), kBytes);
  const DeviceMemory arenas(driver(), 1024);
  program.bind(made.arena, arenas.address());
  program.bind(made.arena + 1, arenas.address() + 512);
  in.fill(3);
  program.bind(0, in.address());
  for (int call = 0; call < 2; ++call) {
    const DeviceMemory out(driver(), kBytes);
    program.bind(2, out.address());
    program.launch(bed().stream());
    bed().synchronize();
    EXPECT_EQ(out.read<std::uint8_t>(), std::vector<std::uint8_t>(kBytes, 3));
    const std::vector<std::uint8_t> scratch = arenas.read<std::uint8_t>();
    EXPECT_EQ(scratch[0], 3U) << "of the graph's own device";
    EXPECT_EQ(scratch[512], 7U) << "of the other";
  }
  EXPECT_EQ(program.instantiations(), 1U);
  EXPECT_TRUE(space.intact(0xFF));
}

TEST_F(OnTwoDevices, ItIsOnePart) {
  PhantomSpace space(driver(), 0, testing::small_phantom());
  // The argument is spent before the result is there: on one device they would be cut apart.
  EXPECT_TRUE(linked(space, {{3, 0}, {1, 3}, {2, 1}}, {}, true).cuts.empty());
}

TEST_F(Devices, ACopyIsUpdatedInItsOwnContext) {
  const DeviceMemory memory(driver(), 4 * kBytes);
  for (const auto& [own, instantiations] :
       {std::pair{context(1), 1U}, std::pair{reinterpret_cast<CUcontext>(this), 2U}}) {
    GraphBuilder graph(bed());
    graph.copy(copy(memory.address() + kBytes, memory.address()));
    Image image = read_image(driver(), graph.get());
    image.nodes[0].shape.context = own;
    const std::vector<Relocation> relocations = {{0, image.nodes[0].words[0], 0, 0}};
    Program program(driver(), graph.take(), std::move(image), relocations, 1);
    for (const std::size_t place : {0U, 2U}) {
      program.bind(0, memory.address() + place * kBytes);
      program.launch(bed().stream());
      bed().synchronize();
    }
    EXPECT_EQ(program.instantiations(), instantiations)
        << "a context that there is not is refused, and the graph made anew";
  }
}

TEST_F(Devices, GraphsThatAreMadeAnewAreRefused) {
  const DeviceMemory memory(driver(), 2 * kBytes);
  GraphBuilder child(bed());
  child.fill(memory.address());
  GraphBuilder graph(bed());
  graph.child(child);
  LinkRequest request{.a = graph.get(), .b = graph.get()};
  EXPECT_TRUE(link(driver(), request).table.sound());
  request.contexts = contexts();
  const std::string message = message_of<UnsupportedGraph>([&] { (void)link(driver(), request); });
  EXPECT_NE(message.find("several devices"), std::string::npos) << message;
}

TEST_F(Devices, PhantomMemoryAdmitsThemBeforeAndAfterItIsMapped) {
  PhantomSpace space(driver(), 0, testing::small_phantom());
  space.allocate(kBytes);
  space.admit(1);
  space.admit(1);
  const CUdeviceptr far = space.borrow(8 * testing::kMiB, 1);
  driver().check(driver().api.cuMemsetD8(far, 1, 8 * testing::kMiB), "cuMemsetD8");
  EXPECT_EQ(space.allocations()[0].device, 0);
  EXPECT_EQ(space.allocations()[1].device, 1);
  const std::string message = message_of<DriverError>([&] { space.admit(7); });
  EXPECT_NE(message.find("device 7"), std::string::npos) << message;
  space.give_back(far);
}

}  // namespace
}  // namespace pygraph
