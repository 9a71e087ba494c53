// The twin's misbehaviour on demand, and the demonstration that uses it.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "pygraph/image.h"
#include "support.h"
#include "twin/demonstrate.h"
#include "twin/entry.h"
#include "twin/samples.h"

namespace pygraph {
namespace {

using twin::Faults;

class FaultsTest : public testing::OnTwin {
 protected:
  CUresult call() {
    int count = 0;
    return driver().api.cuDeviceGetCount(&count);
  }
  /// One capture of a kernel whose struct has padding.
  Node captured_add() {
    const GraphHandle graph = bed().capture(
        [&] { twin::samples::add(driver(), bed().stream(), twin::samples::AddArguments{}); });
    return read_image(driver(), graph.get()).nodes.at(0);
  }
};

TEST_F(FaultsTest, FailsOnceOnTheCallAskedFor) {
  Faults::fail("cuDeviceGetCount", CUDA_ERROR_SYSTEM_NOT_READY, 3);
  EXPECT_EQ(call(), CUDA_SUCCESS);
  EXPECT_EQ(call(), CUDA_SUCCESS);
  EXPECT_EQ(call(), CUDA_ERROR_SYSTEM_NOT_READY);
  EXPECT_EQ(call(), CUDA_SUCCESS);
}

TEST_F(FaultsTest, ALastingFailureStays) {
  Faults::fail("cuDeviceGetCount", CUDA_ERROR_UNKNOWN, 2, true);
  EXPECT_EQ(call(), CUDA_SUCCESS);
  EXPECT_EQ(call(), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(call(), CUDA_ERROR_UNKNOWN);
  Faults::reset();
  EXPECT_EQ(call(), CUDA_SUCCESS);
}

TEST_F(FaultsTest, ASlowCallTakesThatMuchLonger) {
  using std::chrono::milliseconds;
  const auto spent = [&] {
    const auto started = std::chrono::steady_clock::now();
    EXPECT_EQ(call(), CUDA_SUCCESS);
    return std::chrono::steady_clock::now() - started;
  };
  Faults::slow("cuDeviceGetCount", milliseconds(50));
  EXPECT_GE(spent(), milliseconds(50));
  Faults::fail("cuDeviceGetCount", CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(call(), CUDA_ERROR_UNKNOWN);
  EXPECT_GE(spent(), milliseconds(50));
  Faults::reset();
  EXPECT_LT(spent(), milliseconds(50));
  Faults::fail("cuDeviceGetCount", CUDA_ERROR_UNKNOWN, 2);  // the plan is looked at again
  EXPECT_LT(spent(), milliseconds(50));
  EXPECT_THROW(Faults::slow("cuNothing", milliseconds(1)), std::invalid_argument);
}

TEST_F(FaultsTest, AnAccessPolicyWindowThatCannotBeReadRefusesTheGraph) {
  Faults::fail("cuGraphKernelNodeGetAttribute", CUDA_ERROR_OUT_OF_MEMORY);
  std::string text;
  try {
    (void)captured_add();
  } catch (const DriverError& error) {
    text = error.what();
  }
  EXPECT_NE(text.find("cuGraphKernelNodeGetAttribute"), std::string::npos) << text;
  EXPECT_NE(text.find("node 0"), std::string::npos) << text;
  EXPECT_NE(text.find("OUT_OF_MEMORY"), std::string::npos) << text;
}

TEST_F(FaultsTest, ADriverThatKnowsNoAccessPolicyWindowsHasNone) {
  Faults::fail("cuGraphKernelNodeGetAttribute", CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_FALSE(captured_add().block.empty());
  Faults::fail("cuGraphKernelNodeGetAttribute", CUDA_ERROR_INVALID_VALUE);
  EXPECT_NE(testing::message_of<DriverError>([&] { (void)captured_add(); }).find("node 0"),
            std::string::npos);
}

TEST_F(FaultsTest, PlainNamesFindVersionedEntryPoints) {
  Faults::fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY);
  CUdeviceptr address = 0;
  EXPECT_EQ(driver().api.cuMemAlloc(&address, 64), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THROW(Faults::fail("cuMemAlloc_v2", CUDA_ERROR_OUT_OF_MEMORY), std::invalid_argument);
}

TEST_F(FaultsTest, ResetForgets) {
  Faults::fail("cuDeviceGetCount", CUDA_ERROR_UNKNOWN);
  Faults::reset();
  EXPECT_EQ(call(), CUDA_SUCCESS);
}

TEST_F(FaultsTest, EveryEntryPointCanFailAndIsThere) {
#define PYGRAPH_REQUIRED(name) EXPECT_NE(driver().api.name, nullptr) << #name;
#define PYGRAPH_OPTIONAL(name) EXPECT_NE(driver().api.name, nullptr) << #name;
#include "pygraph/driver_symbols.def"
  for (std::size_t i = 0; i < static_cast<std::size_t>(twin::Symbol::kCount); ++i) {
    EXPECT_NO_THROW(
        Faults::fail(twin::symbol_name(static_cast<twin::Symbol>(i)), CUDA_ERROR_UNKNOWN));
  }
  Faults::reset();
}

TEST_F(FaultsTest, PaddingNoiseChangesPaddingOnly) {
  const Node quiet = captured_add();
  EXPECT_EQ(std::memcmp(quiet.block.data(), captured_add().block.data(), quiet.block.size()), 0);
  Faults::padding_noise(true);
  const Node first = captured_add();
  const Node second = captured_add();
  Faults::padding_noise(false);
  const std::vector<std::uint32_t> with_padding = {0, 32};  // after `scale` and after `tag`
  for (const std::uint32_t offset : first.words) {
    const bool padded =
        std::find(with_padding.begin(), with_padding.end(), offset) != with_padding.end();
    EXPECT_EQ(first.word(offset) != second.word(offset), padded) << "word " << offset;
  }
}

TEST(Demonstration, TellsTheStory) {
  const twin::Census before = twin::census();
  const twin::Demonstration shown = twin::demonstrate();
  EXPECT_EQ(twin::census(), before);
  EXPECT_EQ(shown.nodes, 11U);
  EXPECT_EQ(shown.relocations, 28U);
  EXPECT_EQ(shown.coincidences, 1U);
  EXPECT_EQ(shown.noise, 7U) << "two words per struct by value, one in the packed block";
  EXPECT_EQ(shown.proof, "passed");
  EXPECT_TRUE(shown.moved_equal);
  EXPECT_GE(shown.arena_bytes, shown.lower_bound_bytes);
  EXPECT_GT(shown.lower_bound_bytes, 0U);
  EXPECT_GE(shown.lines.size(), 6U);
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_TRUE(twin::demonstrate().moved_equal);
  }
}

}  // namespace
}  // namespace pygraph
