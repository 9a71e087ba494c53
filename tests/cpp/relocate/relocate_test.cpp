// Images are built by hand here: the comparison needs no driver.
#include "pygraph/relocate.h"

#include <cstring>

#include "support.h"

namespace pygraph {
namespace {

using testing::message_of;

constexpr CUdeviceptr kPhantom = 0x7000'0000'0000;
constexpr CUdeviceptr kPhantomEnd = kPhantom + 0x1'0000'0000;
constexpr CUdeviceptr kPlaceB = 0x8000'0000;

/// The regions of most tests: two, displaced by different amounts.
const std::vector<Region> kRegions = {{kPhantom + 0x1000, kPhantom + kPlaceB + 0x2000, 0x100},
                                      {kPhantom + 0x5000, kPhantom + kPlaceB + 0x8000, 0x200}};

Node node_of(const std::vector<std::uint64_t>& words) {
  Node node;
  node.kind = NodeKind::kKernel;
  node.form = ParameterForm::kPacked;
  node.block.resize(words.size() * 8);
  std::memcpy(node.block.data(), words.data(), node.block.size());
  for (std::uint32_t i = 0; i < words.size(); ++i) {
    node.words.push_back(8 * i);
  }
  return node;
}

Image image_of(const std::vector<std::vector<std::uint64_t>>& nodes) {
  Image image;
  for (const auto& words : nodes) {
    image.nodes.push_back(node_of(words));
  }
  for (std::uint32_t i = 1; i < nodes.size(); ++i) {
    image.edges.emplace_back(i - 1, i);
  }
  return image;
}

LinkTable compare(const std::vector<std::vector<std::uint64_t>>& a,
                  const std::vector<std::vector<std::uint64_t>>& b,
                  const std::vector<Region>& regions = kRegions) {
  return relocate(image_of(a), image_of(b), regions, kPhantom, kPhantomEnd);
}

TEST(Relocate, WordsThatMoveWithTheirRegion) {
  const Region& first = kRegions[0];
  const Region& second = kRegions[1];
  const LinkTable table = compare({{first.a, 42, second.a + 0x10}, {second.a}},
                                  {{first.b, 42, second.b + 0x10}, {second.b}});
  ASSERT_TRUE(table.sound());
  EXPECT_EQ(table.relocations,
            (std::vector<Relocation>{{0, 0, 0, 0}, {0, 16, 1, 0x10}, {1, 0, 1, 0}}));
  EXPECT_EQ(table.words, 4U);
  EXPECT_EQ(table.coincidences, 0U);
  EXPECT_EQ(table.noise, 0U);
}

TEST(Relocate, RegionsMayStandInAnyOrder) {
  const std::vector<Region> reversed(kRegions.rbegin(), kRegions.rend());
  const LinkTable table = compare({{kRegions[0].a}}, {{kRegions[0].b}}, reversed);
  EXPECT_EQ(table.relocations, (std::vector<Relocation>{{0, 0, 1, 0}}));
}

TEST(Relocate, OnePastTheEndBelongsToTheRegionThatEnds) {
  const Region& region = kRegions[0];
  const LinkTable table = compare({{region.a + region.bytes}}, {{region.b + region.bytes}});
  EXPECT_EQ(table.relocations, (std::vector<Relocation>{{0, 0, 0, 0x100}}));
}

TEST(Relocate, StartOfARegionIsNotTheEndOfItsNeighbour) {
  const std::vector<Region> touching = {{kPhantom, kPhantom + 0x2000, 0x100},
                                        {kPhantom + 0x100, kPhantom + 0x5000, 0x100}};
  const LinkTable table = compare({{kPhantom + 0x100}}, {{kPhantom + 0x5000}}, touching);
  EXPECT_EQ(table.relocations, (std::vector<Relocation>{{0, 0, 1, 0}}));
}

TEST(Relocate, EmptyRegionIsItsStart) {
  const std::vector<Region> empty = {{kPhantom, kPhantom + 0x2000, 0}};
  EXPECT_EQ(compare({{kPhantom}}, {{kPhantom + 0x2000}}, empty).relocations.size(), 1U);
}

TEST(Relocate, WordsALittleBesideTheRegionTheyMoveWith) {
  const Region& region = kRegions[1];
  const std::uint64_t before = region.a - 0x30;
  const std::uint64_t behind = region.a + region.bytes + 0x800;
  const LinkTable table =
      compare({{before, behind}}, {{before + region.b - region.a, behind + region.b - region.a}});
  ASSERT_TRUE(table.sound());
  EXPECT_EQ(table.relocations, (std::vector<Relocation>{{0, 0, 1, -0x30}, {0, 8, 1, 0xa00}}));
  // Too far, or not moved by that region's displacement.
  const std::uint64_t far = region.a + region.bytes + 0x1001;
  EXPECT_FALSE(compare({{far}}, {{far + region.b - region.a}}).sound());
  EXPECT_FALSE(compare({{before}}, {{before + kRegions[0].b - kRegions[0].a}}).sound());
}

/// A kernel in array form with parameters of these sizes, one after the other.
Image with_parameters(const std::vector<std::uint64_t>& words,
                      const std::vector<std::uint32_t>& sizes) {
  Image image = image_of({words});
  Node& node = image.nodes.front();
  node.form = ParameterForm::kArray;
  std::uint32_t offset = 0;
  for (const std::uint32_t size : sizes) {
    node.parameters.push_back({offset, size});
    offset += size;
  }
  return image;
}

TEST(Relocate, OldAddressesInThePaddingOfAStructAreNoise) {
  const std::uint64_t stale = kPhantom + 0x4000'0000;
  const auto compared = [&](const std::vector<std::uint32_t>& sizes) {
    return relocate(with_parameters({kRegions[0].a, stale, 5}, sizes),
                    with_parameters({kRegions[0].b, stale + kPlaceB, 5}, sizes), kRegions, kPhantom,
                    kPhantomEnd);
  };
  const LinkTable in_struct = compared({24});
  EXPECT_TRUE(in_struct.sound());
  EXPECT_EQ(in_struct.noise, 1U);
  EXPECT_EQ(in_struct.strays, 1U);
  EXPECT_EQ(in_struct.relocations.size(), 1U);
  // A parameter of 8 bytes has no padding: what it holds is used.
  EXPECT_FALSE(compared({8, 8, 8}).sound());
  EXPECT_FALSE(compare({{stale}}, {{stale + kPlaceB}}).sound());  // packed: nothing is known
}

TEST(Relocate, NoiseIsToldWordByWord) {
  constexpr std::uint64_t kLeft = 0x12'3456'7800'0001;
  constexpr std::uint64_t kRight = 0x12'3456'7800'0002;
  const IsDeviceMemory is_device_memory = [](CUdeviceptr address) { return address == kLeft; };
  const auto certain = [&](const Image& a, const Image& b) {
    const LinkTable table = relocate(a, b, kRegions, 0, 0, is_device_memory);
    EXPECT_TRUE(table.sound());
    EXPECT_EQ(table.noise_words.size(), 1U);
    EXPECT_EQ(table.noise, 1U);
    const NoiseWord& word = table.noise_words.front();
    EXPECT_EQ(word, (NoiseWord{0, 8, a.nodes[0].word(8), b.nodes[0].word(8), word.certain}));
    return word.certain;
  };
  const auto in_array = [&](const std::vector<std::uint32_t>& sizes) {
    return certain(with_parameters({1, kLeft, 2}, sizes), with_parameters({1, kRight, 2}, sizes));
  };
  EXPECT_TRUE(in_array({8, 8, 8}));
  EXPECT_TRUE(in_array({8, 4, 4, 8}));
  EXPECT_FALSE(in_array({24})) << "a struct may have padding there";
  EXPECT_FALSE(in_array({8})) << "behind all parameters";
  EXPECT_FALSE(in_array({8, 1, 7, 8})) << "an object without members";
  // One block: only addresses tell that a word is used.
  EXPECT_FALSE(certain(image_of({{1, kLeft}}), image_of({{1, kRight}})));
  const std::uint64_t far = kLeft + 8;
  const IsDeviceMemory both = [&](CUdeviceptr address) { return address >= kLeft; };
  EXPECT_TRUE(relocate(image_of({{kLeft}}), image_of({{far}}), kRegions, 0, 0, both)
                  .noise_words.front()
                  .certain);
}

TEST(Relocate, CoincidenceIsLeftAlone) {
  const LinkTable table = compare({{kRegions[0].a + 8}}, {{kRegions[0].a + 8}});
  EXPECT_TRUE(table.sound());
  EXPECT_TRUE(table.relocations.empty());
  EXPECT_EQ(table.coincidences, 1U);
}

TEST(Relocate, NumbersThatDoNotChangeAreNothing) {
  const LinkTable table = compare({{7, 0, ~0ULL}}, {{7, 0, ~0ULL}});
  EXPECT_TRUE(table.sound());
  EXPECT_TRUE(table.relocations.empty());
  EXPECT_EQ(table.coincidences + table.noise, 0U);
}

TEST(Relocate, PaddingThatChangesIsNoise) {
  const LinkTable table =
      compare({{0x1234'0000'0001, kRegions[0].a}}, {{0x9999'0000'0001, kRegions[0].b}});
  EXPECT_TRUE(table.sound());
  EXPECT_EQ(table.noise, 1U);
  EXPECT_EQ(table.relocations.size(), 1U);
}

TEST(Relocate, AddressThatMovesWithAnotherRegionIsAProblem) {
  const LinkTable table = compare({{kRegions[0].a}}, {{kRegions[1].b}});
  ASSERT_FALSE(table.sound());
  EXPECT_NE(table.problems[0].find("node 0 offset 0"), std::string::npos) << table.problems[0];
}

TEST(Relocate, AddressThatMovesByAnotherAmountIsAProblem) {
  EXPECT_FALSE(compare({{kRegions[0].a + 8}}, {{kRegions[0].b + 16}}).sound());
}

TEST(Relocate, PhantomWordOutsideEveryRegionIsAProblem) {
  const CUdeviceptr stray = kPhantom + 0x3000;
  EXPECT_FALSE(compare({{stray}}, {{stray + kPlaceB}}).sound());
  EXPECT_TRUE(compare({{kPhantomEnd}}, {{kPhantomEnd + 1}}).sound()) << "just outside: noise";
}

TEST(Relocate, DifferentStructureIsAProblem) {
  const auto refused = [](const Image& a, const Image& b) {
    const LinkTable table = relocate(a, b, kRegions, kPhantom, kPhantomEnd);
    return !table.sound() && table.relocations.empty();
  };
  const Image one = image_of({{1, 2}});
  EXPECT_TRUE(refused(one, image_of({{1, 2}, {3}}))) << "another count";
  EXPECT_TRUE(refused(one, image_of({{1}}))) << "another block size";

  Image changed = one;
  changed.nodes[0].kind = NodeKind::kMemset;
  EXPECT_TRUE(refused(one, changed)) << "another kind";
  changed = one;
  changed.nodes[0].form = ParameterForm::kArray;
  EXPECT_TRUE(refused(one, changed)) << "another form";
  changed = one;
  changed.nodes[0].shape.grid[1] = 5;
  EXPECT_TRUE(refused(one, changed)) << "another grid";
  changed = one;
  changed.nodes[0].shape.shared_bytes = 5;
  EXPECT_TRUE(refused(one, changed)) << "another shared memory";

  Image chain = image_of({{1}, {1}, {1}});
  Image fork = chain;
  fork.edges = {{0, 1}, {0, 2}};
  EXPECT_TRUE(refused(chain, fork)) << "other edges";
}

TEST(Relocate, ChangedSizeOfACopyIsAProblem) {
  CUDA_MEMCPY3D copy{};
  copy.srcDevice = kRegions[0].a;
  copy.dstDevice = kRegions[1].a;
  copy.WidthInBytes = 64;
  const auto image = [](const CUDA_MEMCPY3D& params) {
    Image made;
    Node node;
    node.kind = NodeKind::kMemcpy;
    node.form = ParameterForm::kStruct;
    node.block.resize(sizeof params);
    std::memcpy(node.block.data(), &params, sizeof params);
    node.words = {offsetof(CUDA_MEMCPY3D, srcDevice), offsetof(CUDA_MEMCPY3D, dstDevice)};
    made.nodes.push_back(node);
    return made;
  };
  CUDA_MEMCPY3D moved = copy;
  moved.srcDevice = kRegions[0].b;
  moved.dstDevice = kRegions[1].b;
  EXPECT_TRUE(relocate(image(copy), image(moved), kRegions, kPhantom, kPhantomEnd).sound());
  moved.WidthInBytes = 32;
  EXPECT_FALSE(relocate(image(copy), image(moved), kRegions, kPhantom, kPhantomEnd).sound());
}

TEST(Relocate, ForeignWordsAreAskedForOncePerNumber) {
  constexpr CUdeviceptr kConstant = 0x1234'5678'0000;
  std::vector<CUdeviceptr> asked;
  const auto is_device_memory = [&](CUdeviceptr address) {
    asked.push_back(address);
    return address == kConstant;
  };
  const std::vector<std::vector<std::uint64_t>> words = {
      {kConstant, 42, 0x7777'0000'0000, 0xFFFF, ~0ULL, kPhantom + 0x9000},
      {kRegions[0].a + 8, kConstant, 0x1'0000, 1ULL << 57}};
  const LinkTable table =
      relocate(image_of(words), image_of(words), kRegions, kPhantom, kPhantomEnd, is_device_memory);
  EXPECT_TRUE(table.sound());
  EXPECT_EQ(table.foreign, (std::vector<ForeignWord>{{0, 0, kConstant}, {1, 8, kConstant}}));
  EXPECT_EQ(asked, (std::vector<CUdeviceptr>{kConstant, 0x7777'0000'0000, 0x1'0000}));
  EXPECT_EQ(table.coincidences, 1U);
  EXPECT_TRUE(
      relocate(image_of(words), image_of(words), kRegions, kPhantom, kPhantomEnd).foreign.empty())
      << "nobody to ask";
}

TEST(Relocate, UnifiedEndsOutsideDeviceMemoryAreHostMemory) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = 0x5000'0000;
  copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.dstDevice = 0x6000'0000;
  Node node;
  node.kind = NodeKind::kMemcpy;
  node.form = ParameterForm::kStruct;
  node.block.resize(sizeof copy);
  std::memcpy(node.block.data(), &copy, sizeof copy);
  node.words = {offsetof(CUDA_MEMCPY3D, srcDevice), offsetof(CUDA_MEMCPY3D, dstDevice)};
  Image image;
  image.nodes.push_back(node);
  const LinkTable table = relocate(image, image, kRegions, kPhantom, kPhantomEnd,
                                   [](CUdeviceptr at) { return at == 0x6000'0000; });
  ASSERT_EQ(table.problems.size(), 1U);
  EXPECT_NE(table.problems[0].find("copies from host memory at 0x50000000"), std::string::npos)
      << table.problems[0];
  EXPECT_EQ(table.foreign.size(), 1U);
}

TEST(Relocate, EdgesThatStartEarlyMustAgree) {
  Image a = image_of({{1}, {2}});
  const Image b = a;
  a.programmatic = a.edges;
  EXPECT_FALSE(relocate(a, b, kRegions, kPhantom, kPhantomEnd).sound());
}

TEST(Relocate, OverlapIsRefusedByName) {
  const auto overlap = [](const std::vector<Region>& regions) {
    return message_of<std::invalid_argument>([&] { (void)compare({{1}}, {{1}}, regions); });
  };
  const std::string in_a =
      overlap({{0x9000, 0x100, 8}, {0x1000, 0x2000, 0x100}, {0x10ff, 0x3000, 0x100}});
  EXPECT_NE(in_a.find("regions 1 and 2"), std::string::npos) << in_a;
  EXPECT_NE(in_a.find("capture A"), std::string::npos) << in_a;
  const std::string in_b = overlap({{0x1000, 0x2000, 0x100}, {0x1100, 0x2080, 0x100}});
  EXPECT_NE(in_b.find("capture B"), std::string::npos) << in_b;
  EXPECT_NO_THROW((void)compare({{1}}, {{1}}, {{0x1000, 0x2000, 0x100}, {0x1100, 0x3000, 1}}));
}

TEST(Relocate, WithoutRegions) {
  EXPECT_TRUE(compare({{1, 2}}, {{1, 2}}, {}).sound());
  EXPECT_FALSE(compare({{kPhantom}}, {{kPhantom + kPlaceB}}, {}).sound());
  EXPECT_TRUE(compare({}, {}, {}).sound()) << "no nodes either";
}

}  // namespace
}  // namespace pygraph
