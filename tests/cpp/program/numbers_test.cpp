// Host numbers written into the blocks of a program.
#include <vector>

#include "pygraph/program.h"
#include "support.h"

namespace pygraph {
namespace {

using testing::DeviceMemory;
using testing::holds;
using testing::message_of;

constexpr std::uint32_t kFloats = 64;
constexpr std::size_t kBytes = kFloats * sizeof(float);
constexpr std::uint32_t kScale = 16;  // of affine's block, in bytes
constexpr std::uint32_t kShift = 20;
constexpr std::uint32_t kCount = 24;

/// Two nodes, region 0 to 1 and 1 to 2: out = 2 * in + 1. Number 0 is the scale of both, number 1
/// the shift of the second, number 3 how many floats it writes; number 2 is nowhere.
class ProgramNumbers : public testing::OnBothDrivers {
 protected:
  static constexpr std::uint32_t kNowhere = 2;
  static constexpr std::uint32_t kLength = 3;

  void SetUp() override {
    OnBothDrivers::SetUp();
    if (IsSkipped()) {
      return;
    }
    for (int i = 0; i < 3; ++i) {
      memory_.emplace_back(driver(), kBytes);
      memory_.back().write(std::vector<float>(kFloats, 3));
    }
  }
  void TearDown() override {
    memory_.clear();
    OnBothDrivers::TearDown();
  }

  Program make(const std::vector<NumberWord>& words, std::size_t count = 4) {
    GraphHandle graph = bed().capture([&] {
      for (std::size_t i = 0; i < 2; ++i) {
        bed().affine({memory_[i + 1].address(), memory_[i].address(), 2, 1, kFloats});
      }
    });
    const Image image = read_image(driver(), graph.get());
    const std::vector<Relocation> relocations = {
        {0, 0, 1, 0}, {0, 8, 0, 0}, {1, 0, 2, 0}, {1, 8, 1, 0}};
    Program program(driver(), std::move(graph), image, relocations, 3, words, count);
    for (std::uint32_t i = 0; i < 3; ++i) {
      program.bind(i, memory_[i].address());
    }
    return program;
  }
  Program make() {
    return make({{0, kScale, 0, NumberEncoding::kFloat32},
                 {1, kScale, 0, NumberEncoding::kFloat32},
                 {1, kShift, 1, NumberEncoding::kFloat32},
                 {1, kCount, kLength, NumberEncoding::kInt32}});
  }
  void run(Program& program) {
    program.launch(bed().stream());
    bed().synchronize();
  }

  std::vector<DeviceMemory> memory_;
};

TEST_P(ProgramNumbers, AreWhatTheyWereSetTo) {
  Program program = make();
  EXPECT_EQ(program.number_count(), 4U);
  program.set_number(kNowhere, 9.0);
  program.set_number(kLength, std::int64_t{kFloats});
  for (const float scale : {2.0F, 0.5F, -3.0F}) {
    program.set_number(0, double{scale});
    program.set_number(1, std::int64_t{7});
    run(program);
    EXPECT_TRUE(holds(memory_[1], scale * 3 + 1));
    EXPECT_TRUE(holds(memory_[2], scale * (scale * 3 + 1) + 7)) << "an integer as a float";
  }
  memory_[2].write(std::vector<float>(kFloats, 0));
  program.set_number(kLength, std::int64_t{1});
  run(program);
  const std::vector<float> result = memory_[2].read<float>();
  EXPECT_EQ(result[0], -3.0F * (-3.0F * 3 + 1) + 7);
  EXPECT_EQ(result[1], 0);
}

TEST_P(ProgramNumbers, NodesAreDirtyWhereBitsChange) {
  Program program = make();
  program.set_number(0, 2.0);
  program.set_number(1, 1.0);
  program.set_number(kLength, std::int64_t{kFloats});
  run(program);
  const std::uint64_t updates = program.updates();
  program.set_number(0, 2.0);
  program.set_number(0, 2.0 + 1e-12);  // the same float
  program.set_number(1, std::int64_t{1});
  program.set_number(kNowhere, 5.0);
  EXPECT_EQ(program.dirty_nodes(), 0U);
  program.set_number(1, 5.0);
  EXPECT_EQ(program.dirty_nodes(), 1U);
  program.set_number(0, 5.0);
  EXPECT_EQ(program.dirty_nodes(), 2U);
  run(program);
  EXPECT_EQ(program.updates(), updates + 2);
  program.set_number(0, -0.0);
  run(program);
  program.set_number(0, 0.0);
  EXPECT_EQ(program.dirty_nodes(), 2U) << "equal, but not the same bits";
}

TEST_P(ProgramNumbers, UnsetOnesAreRefused) {
  Program program = make();
  program.set_number(0, 2.0);
  program.set_number(0, 3.0);
  program.set_number(1, 1.0);
  const std::string text = message_of<std::logic_error>([&] { program.launch(bed().stream()); });
  EXPECT_NE(text.find("1 host numbers that were never set"), std::string::npos) << text;
  program.set_number(kLength, std::int64_t{kFloats});
  EXPECT_NO_THROW(run(program)) << "a number that is nowhere need not be set";
}

TEST_P(ProgramNumbers, ThatDoNotFitAreRefusedAndNothingIsWritten) {
  Program program = make({{0, kScale, 0, NumberEncoding::kFloat32},
                          {1, kCount, 0, NumberEncoding::kInt32},
                          {1, 0, 1, NumberEncoding::kSmallInteger}});
  const std::string text =
      message_of<std::out_of_range>([&] { program.set_number(0, std::int64_t{1} << 40); });
  EXPECT_NE(text.find("host number 0 is 1099511627776, which its 4 bytes in node 1 cannot hold"),
            std::string::npos)
      << text;
  EXPECT_THROW(program.set_number(0, 2.5), std::out_of_range) << "an integer's words";
  EXPECT_THROW(program.set_number(1, std::int64_t{-1}), std::out_of_range);
  EXPECT_THROW(run(program), std::logic_error) << "still not set";
  Program other = make({{0, kScale, 0, NumberEncoding::kFloat32}});
  EXPECT_THROW(other.set_number(0, 1e39), std::out_of_range);
  other.set_number(0, 4.0);
  EXPECT_THROW(other.set_number(0, -1e39), std::out_of_range);
  run(other);
  EXPECT_TRUE(holds(memory_[1], 4 * 3 + 1)) << "what it was set to before";
}

TEST_P(ProgramNumbers, WordsOutsideTheirBlockAreRefused) {
  const auto refused = [&](const NumberWord& word) {
    EXPECT_THROW((void)make({word}), std::invalid_argument)
        << word.node << " " << word.offset << " " << word.number;
  };
  refused({2, 0, 0, NumberEncoding::kFloat32});            // no such node
  refused({0, 4096, 0, NumberEncoding::kFloat32});         // beyond the block
  refused({0, 28 + 4, 0, NumberEncoding::kFloat32});       // just beyond it
  refused({0, 2, 0, NumberEncoding::kFloat32});            // not aligned
  refused({0, kShift, 0, NumberEncoding::kFloat64});       // not aligned to 8 bytes
  refused({0, 0xFFFF'FFFC, 0, NumberEncoding::kFloat32});  // offset + 4 wraps around
  refused({0, kScale, 4, NumberEncoding::kFloat32});       // no such number
}

PYGRAPH_ON_BOTH_DRIVERS(ProgramNumbers);

}  // namespace
}  // namespace pygraph
