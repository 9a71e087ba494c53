// Copies and fills of every kind: relocated, or refused by name.
#include <numeric>

#include "graph_builder.h"

namespace pygraph {
namespace {

using testing::address_of;
using testing::DeviceMemory;
using testing::GraphBuilder;
using testing::Regions;
using testing::Runnable;

constexpr std::size_t kBytes = 4096;

class Copies : public testing::OnBothDrivers {
 protected:
  using Bytes = std::vector<std::uint8_t>;

  static Bytes counting(std::uint8_t first) {
    Bytes values(kBytes);
    std::iota(values.begin(), values.end(), first);
    return values;
  }
  DeviceMemory filled(std::uint8_t first) {
    DeviceMemory memory(driver(), kBytes);
    memory.write(counting(first));
    return memory;
  }
  DeviceMemory zeros() {
    DeviceMemory memory(driver(), kBytes);
    memory.fill(0);
    return memory;
  }
  static CUDA_MEMCPY3D flat(std::size_t bytes) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.WidthInBytes = bytes;
    copy.Height = 1;
    copy.Depth = 1;
    return copy;
  }
  Regions::Make copy_between(CUDA_MEMCPY3D copy, std::size_t from, std::size_t to) {
    return [this, copy, from, to](const std::vector<CUdeviceptr>& at) {
      CUDA_MEMCPY3D placed = copy;
      placed.srcDevice = at[from];
      placed.srcHost = reinterpret_cast<const void*>(at[from]);
      placed.dstDevice = at[to];
      placed.dstHost = reinterpret_cast<void*>(at[to]);
      GraphBuilder graph(bed());
      graph.copy(placed);
      return graph.take();
    };
  }
  /// What `copy` makes of a source that counts from `first` and a target of zeros.
  static Bytes expected(const CUDA_MEMCPY3D& copy, std::uint8_t first) {
    const Bytes from = counting(first);
    Bytes to(kBytes, 0);
    for (std::size_t z = 0; z < copy.Depth; ++z) {
      for (std::size_t y = 0; y < copy.Height; ++y) {
        for (std::size_t x = 0; x < copy.WidthInBytes; ++x) {
          to[((copy.dstZ + z) * copy.dstHeight + copy.dstY + y) * copy.dstPitch + copy.dstXInBytes +
             x] = from[((copy.srcZ + z) * copy.srcHeight + copy.srcY + y) * copy.srcPitch +
                       copy.srcXInBytes + x];
        }
      }
    }
    return to;
  }
  /// Runs at two places in turn: the second takes a new instantiation.
  void expect_moves(const CUDA_MEMCPY3D& copy) {
    const Regions regions(driver(), 2, kBytes);
    LinkedGraph linked = regions.link(copy_between(copy, 0, 1));
    ASSERT_TRUE(linked.table.sound()) << linked.table.problems[0];
    Runnable runnable(bed(), std::move(linked));
    std::vector<DeviceMemory> memory;
    for (const std::uint8_t first : {std::uint8_t{1}, std::uint8_t{7}}) {
      memory.push_back(filled(first));  // kept, so that the next is elsewhere
      memory.push_back(zeros());
      runnable.run(bed(), {memory[memory.size() - 2].address(), memory.back().address()});
      EXPECT_EQ(memory.back().read<std::uint8_t>(), expected(copy, first));
    }
    if (on_twin()) {
      EXPECT_EQ(runnable.program.instantiations(), 2U) << "only flat copies can be updated";
    }
  }
};

TEST_P(Copies, PitchedRowsMove) {
  CUDA_MEMCPY3D copy = flat(20);
  copy.Height = 5;
  copy.srcPitch = 64;
  copy.dstPitch = 32;
  copy.srcXInBytes = 8;
  copy.srcY = 2;
  copy.dstXInBytes = 4;
  copy.dstY = 1;
  expect_moves(copy);
}

TEST_P(Copies, BoxesMove) {
  CUDA_MEMCPY3D copy = flat(12);
  copy.Height = 3;
  copy.Depth = 4;
  copy.srcPitch = 16;
  copy.srcHeight = 6;
  copy.dstPitch = 32;
  copy.dstHeight = 4;
  copy.srcZ = 1;
  copy.dstZ = 2;
  expect_moves(copy);
}

TEST_P(Copies, CapturedRowsAndBoxesAreRead) {
  const DeviceMemory memory(driver(), 2 * kBytes);
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = memory.address();
  rows.dstDevice = memory.address() + kBytes;
  rows.srcPitch = rows.dstPitch = 64;
  rows.WidthInBytes = 32;
  rows.Height = 4;
  CUDA_MEMCPY3D boxes = flat(32);
  boxes.srcDevice = rows.srcDevice;
  boxes.dstDevice = rows.dstDevice;
  boxes.srcPitch = boxes.dstPitch = 64;
  boxes.srcHeight = boxes.dstHeight = 8;
  boxes.Height = 4;
  boxes.Depth = 2;
  const GraphHandle graph = bed().capture([&] {
    driver().check(driver().api.cuMemcpy2DAsync(&rows, bed().stream()), "cuMemcpy2DAsync");
    driver().check(driver().api.cuMemcpy3DAsync(&boxes, bed().stream()), "cuMemcpy3DAsync");
  });
  const Image image = read_image(driver(), graph.get());
  ASSERT_EQ(image.count(NodeKind::kMemcpy), 2U);
  for (const Node& node : image.nodes) {
    ASSERT_EQ(node.words.size(), 2U);
    EXPECT_EQ(node.word(node.words[0]), memory.address());
    EXPECT_EQ(node.word(node.words[1]), memory.address() + kBytes);
  }
}

TEST_P(Copies, AnotherPitchInTheProbeIsAProblem) {
  const Regions regions(driver(), 2, kBytes);
  std::size_t pitch = 64;
  const LinkedGraph linked = regions.link([&](const std::vector<CUdeviceptr>& at) {
    CUDA_MEMCPY3D copy = flat(16);
    copy.Height = 2;
    copy.srcPitch = copy.dstPitch = pitch;
    pitch += 64;
    return copy_between(copy, 0, 1)(at);
  });
  ASSERT_FALSE(linked.table.sound());
  EXPECT_NE(linked.table.problems[0].find("extent"), std::string::npos);
}

TEST_P(Copies, HostEndsMoveWithTheirRegion) {
  const Bytes in_a(kBytes, 1);
  const Bytes in_b(kBytes, 2);
  CUDA_MEMCPY3D copy = flat(kBytes);
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  Regions up(driver(), 1, kBytes);
  Runnable to_device(bed(),
                     up.host(in_a.data(), in_b.data(), kBytes).link(copy_between(copy, 1, 0)));
  copy = flat(kBytes);
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  Regions down(driver(), 1, kBytes);
  Runnable to_host(bed(),
                   down.host(in_a.data(), in_b.data(), kBytes).link(copy_between(copy, 0, 1)));
  const DeviceMemory memory = zeros();
  for (const std::uint8_t first : {std::uint8_t{3}, std::uint8_t{9}}) {
    const Bytes from = counting(first);
    Bytes to(kBytes, 0);
    to_device.run(bed(), {memory.address(), address_of(from.data())});
    to_host.run(bed(), {memory.address(), address_of(to.data())});
    EXPECT_EQ(to, from);
  }
  EXPECT_EQ(in_a, Bytes(kBytes, 1)) << "nothing was written where the capture was";
}

TEST_P(Copies, HostToHost) {
  const Bytes a(kBytes, 1);
  const Bytes b(kBytes, 2);
  Bytes target_a(kBytes, 1);
  Bytes target_b(kBytes, 2);
  CUDA_MEMCPY3D copy = flat(kBytes);
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  Regions regions(driver(), 0, 0);
  regions.host(a.data(), b.data(), kBytes).host(target_a.data(), target_b.data(), kBytes);
  Runnable runnable(bed(), regions.link(copy_between(copy, 0, 1)));
  const Bytes from = counting(5);
  Bytes to(kBytes, 0);
  runnable.run(bed(), {address_of(from.data()), address_of(to.data())});
  EXPECT_EQ(to, from);
}

TEST_P(Copies, HostMemoryThatNoRegionExplainsIsAProblem) {
  const Bytes same(kBytes, 1);
  Bytes target(kBytes, 1);
  const Regions regions(driver(), 1, kBytes);
  for (const bool reads : {true, false}) {
    const LinkedGraph linked = regions.link([&](const std::vector<CUdeviceptr>& at) {
      CUDA_MEMCPY3D copy = flat(kBytes);
      (reads ? copy.srcMemoryType : copy.dstMemoryType) = CU_MEMORYTYPE_HOST;
      std::vector<CUdeviceptr> places = at;
      places.push_back(address_of(reads ? same.data() : target.data()));
      return reads ? copy_between(copy, 1, 0)(places) : copy_between(copy, 0, 1)(places);
    });
    ASSERT_EQ(linked.table.problems.size(), 1U);
    const std::string& problem = linked.table.problems[0];
    EXPECT_NE(problem.find(reads ? "node 0 copies from host memory" : "copies to host memory"),
              std::string::npos)
        << problem;
    EXPECT_NE(problem.find("may be gone"), std::string::npos) << problem;
  }
}

TEST_P(Copies, KindsOfMemoryMayChange) {
  // A copy captured between host and device runs between any two, and the other way round.
  const Bytes a(kBytes, 1);
  const Bytes b(kBytes, 2);
  CUDA_MEMCPY3D copy = flat(kBytes);
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  Regions regions(driver(), 1, kBytes);
  Runnable runnable(bed(), regions.host(a.data(), b.data(), kBytes).link(copy_between(copy, 1, 0)));
  const DeviceMemory from = filled(11);
  const DeviceMemory to = zeros();
  const Bytes host_from = counting(40);
  Bytes host_to(kBytes, 0);
  runnable.run(bed(), {to.address(), from.address()});
  EXPECT_EQ(to.read<std::uint8_t>(), counting(11)) << "device to device";
  runnable.run(bed(), {to.address(), address_of(host_from.data())});
  EXPECT_EQ(to.read<std::uint8_t>(), counting(40)) << "host to device";
  runnable.run(bed(), {address_of(host_to.data()), from.address()});
  EXPECT_EQ(host_to, counting(11)) << "device to host";
  runnable.run(bed(), {address_of(host_to.data()), address_of(host_from.data())});
  EXPECT_EQ(host_to, counting(40)) << "host to host";
  runnable.run(bed(), {to.address(), from.address()});
  EXPECT_EQ(to.read<std::uint8_t>(), counting(11)) << "and back";
}

TEST_P(Copies, FillsOfRowsMove) {
  const Regions regions(driver(), 1, kBytes);
  Runnable runnable(bed(), regions.link([&](const std::vector<CUdeviceptr>& at) {
    GraphBuilder graph(bed());
    graph.fill_2d(at[0] + 256, 0x5A, 10, 4, 512);
    return graph.take();
  }));
  Bytes expected(kBytes, 0);
  for (std::size_t row = 0; row < 4; ++row) {
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(256 + row * 512), 10, 0x5A);
  }
  std::vector<DeviceMemory> memory;
  for (int i = 0; i < 2; ++i) {
    memory.push_back(zeros());
    runnable.run(bed(), {memory.back().address()});
    EXPECT_EQ(memory.back().read<std::uint8_t>(), expected);
  }
}

PYGRAPH_ON_BOTH_DRIVERS(Copies);

class CopiesOnTwin : public testing::OnTwin {};

TEST_F(CopiesOnTwin, ArraysAreRefusedByName) {
  GraphBuilder graph(bed());
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = reinterpret_cast<CUarray>(std::uintptr_t{0x1000});
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.WidthInBytes = copy.Height = copy.Depth = 1;
  graph.copy(copy);
  const std::string text =
      testing::message_of<UnsupportedGraph>([&] { (void)read_image(driver(), graph.get()); });
  EXPECT_NE(text.find("node 0"), std::string::npos) << text;
  EXPECT_NE(text.find("CUDA array"), std::string::npos) << text;
}

}  // namespace
}  // namespace pygraph
