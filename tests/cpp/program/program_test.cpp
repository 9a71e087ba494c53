#include "pygraph/program.h"

#include <stdexcept>

#include "support.h"

namespace pygraph {
namespace {

using testing::bind_all;
using testing::Chain;
using testing::chain_memory;
using testing::DeviceMemory;
using testing::holds;
using testing::make_chain;
using testing::message_of;

class ProgramOnBoth : public testing::OnBothDrivers {};

TEST_P(ProgramOnBoth, RunsWhereItIsBoundAndAgainAfterMoving) {
  Chain chain = make_chain(bed(), 5);
  ASSERT_TRUE(chain.table.sound()) << chain.table.problems[0];
  EXPECT_EQ(chain.table.relocations.size(), 10U);
  Program program = chain.program(driver());
  for (const float start : {1.0F, -3.0F, 0.5F}) {
    const std::vector<DeviceMemory> memory = chain_memory(bed(), chain, start);
    bind_all(program, memory);
    program.launch(bed().stream());
    bed().synchronize();
    EXPECT_TRUE(holds(memory.back(), chain.expected(start)));
    EXPECT_TRUE(holds(memory.front(), start)) << "inputs are only read";
  }
}

TEST_P(ProgramOnBoth, EqualAddressIsNoWork) {
  Chain chain = make_chain(bed(), 5);
  Program program = chain.program(driver());
  const std::vector<DeviceMemory> memory = chain_memory(bed(), chain, 1);
  bind_all(program, memory);
  EXPECT_EQ(program.dirty_nodes(), 5U);
  program.launch(bed().stream());
  EXPECT_EQ(program.dirty_nodes(), 0U);
  EXPECT_EQ(program.updates(), 5U);
  bind_all(program, memory);
  EXPECT_EQ(program.dirty_nodes(), 0U);
  program.launch(bed().stream());
  EXPECT_EQ(program.updates(), 5U);
  bed().synchronize();
}

TEST_P(ProgramOnBoth, OnlyNodesThatMentionARegionBecomeDirty) {
  Chain chain = make_chain(bed(), 5);
  Program program = chain.program(driver());
  const std::vector<DeviceMemory> memory = chain_memory(bed(), chain, 1);
  bind_all(program, memory);
  program.launch(bed().stream());
  const DeviceMemory other(driver(), chain.bytes());

  program.bind(0, other.address());  // read by node 0
  EXPECT_EQ(program.dirty_nodes(), 1U);
  program.bind(2, other.address());  // written by node 1, read by node 2
  EXPECT_EQ(program.dirty_nodes(), 3U);
  program.bind(0, memory[0].address());
  EXPECT_EQ(program.dirty_nodes(), 3U) << "a node is dirty once";
  EXPECT_EQ(program.bound(2), other.address());
  program.update();
  EXPECT_EQ(program.updates(), 5U + 3U);
  program.launch(bed().stream());
  bed().synchronize();
  EXPECT_TRUE(holds(memory.back(), chain.expected(1)));
  EXPECT_TRUE(holds(other, 2 * (2 * 1.0F + 0) + 1)) << "the moved region was used";
}

TEST_P(ProgramOnBoth, UnboundRegionsAreRefused) {
  Chain chain = make_chain(bed(), 3);
  Program program = chain.program(driver());
  const std::vector<DeviceMemory> memory = chain_memory(bed(), chain, 1);
  EXPECT_THROW(program.launch(bed().stream()), std::logic_error);
  for (std::uint32_t region = 0; region < 3; ++region) {
    program.bind(region, memory[region].address());
  }
  const std::string text = message_of<std::logic_error>([&] { program.launch(bed().stream()); });
  EXPECT_NE(text.find("1 unbound"), std::string::npos) << text;
  program.bind(3, memory[3].address());
  EXPECT_NO_THROW(program.launch(bed().stream()));
  bed().synchronize();
  EXPECT_TRUE(holds(memory.back(), chain.expected(1)));
}

TEST_P(ProgramOnBoth, AfterUnbindingEveryRegionIsBoundAnew) {
  Chain chain = make_chain(bed(), 3);
  Program program = chain.program(driver());
  const std::vector<DeviceMemory> memory = chain_memory(bed(), chain, 1);
  for (std::size_t round = 0; round < 2; ++round) {
    memory.back().fill(0);
    bind_all(program, memory);
    program.launch(bed().stream());
    bed().synchronize();
    EXPECT_TRUE(holds(memory.back(), chain.expected(1)));
    program.unbind();
    EXPECT_EQ(program.bound(0), Program::kUnbound);
    EXPECT_THROW(program.launch(bed().stream()), std::logic_error);
    for (std::uint32_t region = 1; region < chain.regions(); ++region) {
      program.bind(region, memory[region].address());
    }
    EXPECT_THROW(program.launch(bed().stream()), std::logic_error) << "region 0 is not bound";
  }
}

TEST_P(ProgramOnBoth, AddressZeroIsABindingLikeAnyOther) {
  // Empty tensors have data pointer 0; their kernels do not touch it.
  const GraphHandle none = bed().capture([&] { bed().affine({512, 1024, 1, 0, 1}); });
  CUgraph clone = nullptr;
  driver().check(driver().api.cuGraphClone(&clone, none.get()), "cuGraphClone");
  const std::vector<Relocation> relocations = {{0, 0, 0, 0}, {0, 8, 1, 0}};
  GraphHandle graph(driver(), clone);
  const Image image = read_image(driver(), clone);
  Program program(driver(), std::move(graph), image, relocations, 2);
  const DeviceMemory memory(driver(), 64);
  program.bind(1, 0);
  program.bind(0, memory.address());
  for (int i = 0; i < 3; ++i) {
    program.bind(1, 0);
    program.bind(1, memory.address() + 4);
  }
  EXPECT_NO_THROW(program.launch(bed().stream()));
  bed().synchronize();
}

TEST_P(ProgramOnBoth, LaunchesInFlightKeepTheirBinding) {
  // Long enough that the GPU is still busy with the first launch when the second is bound.
  Chain chain = make_chain(bed(), 64, on_twin() ? 256 : 1U << 20);
  Program program = chain.program(driver());
  std::vector<DeviceMemory> memory = chain_memory(bed(), chain, 0);
  bind_all(program, memory);
  std::vector<DeviceMemory> starts;
  std::vector<DeviceMemory> ends;
  for (int i = 0; i < 8; ++i) {
    starts.emplace_back(driver(), chain.bytes());
    starts.back().write(std::vector<float>(chain.floats, static_cast<float>(i)));
    ends.emplace_back(driver(), chain.bytes());
  }
  for (std::size_t i = 0; i < starts.size(); ++i) {
    program.bind(0, starts[i].address());
    program.bind(static_cast<std::uint32_t>(chain.nodes), ends[i].address());
    program.launch(bed().stream());
  }
  bed().synchronize();
  for (std::size_t i = 0; i < starts.size(); ++i) {
    EXPECT_TRUE(holds(ends[i], chain.expected(static_cast<float>(i)))) << "launch " << i;
  }
}

TEST_P(ProgramOnBoth, AddendsAreKept) {
  // The kernel reads the second half of its input region and writes the second half of its output.
  constexpr std::uint32_t kFloats = 32;
  constexpr std::size_t kHalf = kFloats * sizeof(float);
  const DeviceMemory captured(driver(), 4 * kHalf);
  const CUdeviceptr in = captured.address();
  const CUdeviceptr out = in + 2 * kHalf;
  GraphHandle graph =
      bed().capture([&] { bed().affine({out + kHalf, in + kHalf, 1, 1, kFloats}); });
  const Image image = read_image(driver(), graph.get());
  const std::vector<Relocation> relocations = {{0, 0, 1, kHalf}, {0, 8, 0, kHalf}};
  Program program(driver(), std::move(graph), image, relocations, 2);
  const DeviceMemory from(driver(), 2 * kHalf);
  const DeviceMemory to(driver(), 2 * kHalf);
  std::vector<float> values(2 * std::size_t{kFloats}, 100);
  std::fill(values.begin() + kFloats, values.end(), 5.0F);
  from.write(values);
  to.write(std::vector<float>(2 * std::size_t{kFloats}, -1));
  program.bind(0, from.address());
  program.bind(1, to.address());
  program.launch(bed().stream());
  bed().synchronize();
  const std::vector<float> result = to.read<float>();
  EXPECT_EQ(result[kFloats - 1], -1);
  EXPECT_EQ(result[kFloats], 6);
  EXPECT_EQ(result.back(), 6);
}

TEST_P(ProgramOnBoth, CopiesAndFillsMoveToo) {
  const DeviceMemory captured(driver(), 192);
  const CUdeviceptr at = captured.address();
  GraphHandle graph = bed().capture([&] {
    driver().check(driver().api.cuMemsetD8Async(at, 0x21, 64, bed().stream()), "cuMemsetD8Async");
    driver().check(driver().api.cuMemcpyDtoDAsync(at + 64, at, 64, bed().stream()),
                   "cuMemcpyDtoDAsync");
  });
  const Image image = read_image(driver(), graph.get());
  const std::vector<Relocation> relocations = {{0, image.nodes[0].words[0], 0, 0},
                                               {1, image.nodes[1].words[0], 0, 0},
                                               {1, image.nodes[1].words[1], 1, 0}};
  Program program(driver(), std::move(graph), image, relocations, 2);
  const DeviceMemory first(driver(), 64);
  const DeviceMemory second(driver(), 64);
  captured.fill(0);
  program.bind(0, first.address());
  program.bind(1, second.address());
  program.launch(bed().stream());
  bed().synchronize();
  EXPECT_EQ(first.read<std::uint8_t>(), std::vector<std::uint8_t>(64, 0x21));
  EXPECT_EQ(second.read<std::uint8_t>(), std::vector<std::uint8_t>(64, 0x21));
  EXPECT_EQ(captured.read<std::uint8_t>(), std::vector<std::uint8_t>(192, 0));
}

TEST_P(ProgramOnBoth, CopiesMoveBetweenKindsOfMemory) {
  // cuMemAlloc's memory and mapped memory: the driver refuses such an update of a copy node, and
  // the program instantiates anew.
  const DeviceMemory plain(driver(), 128);
  PhantomSpace space(driver(), 0, testing::small_phantom());
  const CUdeviceptr mapped = space.allocate(64);
  GraphHandle graph = bed().capture([&] {
    driver().check(
        driver().api.cuMemcpyDtoDAsync(plain.address() + 64, plain.address(), 64, bed().stream()),
        "cuMemcpyDtoDAsync");
  });
  const Image image = read_image(driver(), graph.get());
  const std::vector<Relocation> relocations = {{0, image.nodes[0].words[0], 0, 0},
                                               {0, image.nodes[0].words[1], 1, 0}};
  Program program(driver(), std::move(graph), image, relocations, 2);
  std::uint8_t value = 1;
  for (const CUdeviceptr from : {plain.address(), mapped, plain.address()}) {
    driver().check(driver().api.cuMemsetD8(from, ++value, 64), "cuMemsetD8");
    program.bind(0, from);
    program.bind(1, plain.address() + 64);
    program.launch(bed().stream());
    bed().synchronize();
    EXPECT_EQ(plain.read<std::uint8_t>().back(), value);
  }
  if (on_twin()) {
    EXPECT_EQ(program.instantiations(), 3U);
  }
}

TEST_P(ProgramOnBoth, PackedBlocksMoveInEitherOrder) {
  const DeviceMemory captured(driver(), 64);
  for (const auto order :
       {testing::ParameterOrder::kPointerThenSize, testing::ParameterOrder::kSizeThenPointer}) {
    GraphHandle graph = bed().capture(
        [&] { bed().affine({captured.address() + 32, captured.address(), 3, 1, 8}, order); });
    const Image image = read_image(driver(), graph.get());
    Program program(driver(), std::move(graph), image,
                    std::vector<Relocation>{{0, 0, 1, 0}, {0, 8, 0, 0}}, 2);
    const DeviceMemory in(driver(), 32);
    const DeviceMemory out(driver(), 32);
    in.write(std::vector<float>(8, 2));
    program.bind(0, in.address());
    program.bind(1, out.address());
    program.launch(bed().stream());
    bed().synchronize();
    EXPECT_TRUE(holds(out, 7));
  }
}

TEST_P(ProgramOnBoth, SurvivesBeingMovedAsAnObject) {
  Chain chain = make_chain(bed(), 3);
  Program first = chain.program(driver());
  const std::vector<DeviceMemory> memory = chain_memory(bed(), chain, 4);
  bind_all(first, memory);
  Program second(std::move(first));
  second.launch(bed().stream());
  bed().synchronize();
  EXPECT_TRUE(holds(memory.back(), chain.expected(4)));
}

TEST_P(ProgramOnBoth, RelocationOutsideItsBlockIsRefused) {
  Chain chain = make_chain(bed(), 2);
  const auto refused = [&](const Relocation& relocation) {
    CUgraph clone = nullptr;
    driver().check(driver().api.cuGraphClone(&clone, chain.graph.get()), "cuGraphClone");
    GraphHandle graph(driver(), clone);
    const Image image = read_image(driver(), clone);
    const std::vector<Relocation> relocations = {relocation};
    EXPECT_THROW(Program(driver(), std::move(graph), image, relocations, 3), std::invalid_argument)
        << relocation.node << " " << relocation.offset << " " << relocation.region;
  };
  refused({2, 0, 0, 0});            // no such node
  refused({0, 4096, 0, 0});         // beyond the block
  refused({0, 4, 0, 0});            // between words
  refused({0, 0xFFFF'FFF8, 0, 0});  // offset + 8 wraps around
  refused({0, 0, 3, 0});            // no such region
}

TEST_P(ProgramOnBoth, TenThousandMovesLeaveNothing) {
  Chain chain = make_chain(bed(), 4);
  Program program = chain.program(driver());
  const std::vector<DeviceMemory> memory = chain_memory(bed(), chain, 2);
  const DeviceMemory other(driver(), chain.bytes());
  bind_all(program, memory);
  program.launch(bed().stream());
  bed().synchronize();
  std::size_t free_before = 0;
  std::size_t free_after = 0;
  std::size_t total = 0;
  driver().check(driver().api.cuMemGetInfo(&free_before, &total), "cuMemGetInfo");
  const twin::Census before = twin::census();
  for (int i = 0; i < 10'000; ++i) {
    program.bind(2, i % 2 == 0 ? other.address() : memory[2].address());
    program.launch(bed().stream());
    if (i % 50 == 0) {
      bed().synchronize();
    }
  }
  bed().synchronize();
  EXPECT_EQ(program.updates(), 4U + 2U * 10'000U);
  EXPECT_EQ(twin::census(), before);
  driver().check(driver().api.cuMemGetInfo(&free_after, &total), "cuMemGetInfo");
  EXPECT_GE(free_after + 64 * testing::kMiB, free_before);
  EXPECT_TRUE(holds(memory.back(), chain.expected(2)));
}

PYGRAPH_ON_BOTH_DRIVERS(ProgramOnBoth);

class ProgramFaults : public testing::OnTwin {};

TEST_F(ProgramFaults, RefusedNodeBreaksTheProgramAndIsNamed) {
  // The first update goes into the graph, later ones into its instantiated copy.
  for (const char* symbol : {"cuGraphKernelNodeSetParams", "cuGraphExecKernelNodeSetParams"}) {
    Chain chain = make_chain(bed(), 4);
    Program program = chain.program(driver());
    const std::vector<DeviceMemory> first = chain_memory(bed(), chain, 1);
    const std::vector<DeviceMemory> second = chain_memory(bed(), chain, 1);
    bind_all(program, first);
    if (symbol == std::string("cuGraphExecKernelNodeSetParams")) {
      program.update();
      bind_all(program, second);
    }
    twin::Faults::fail(symbol, CUDA_ERROR_INVALID_VALUE, 3);
    EXPECT_FALSE(program.broken());
    const std::string text = message_of<DriverError>([&] { program.launch(bed().stream()); });
    EXPECT_NE(text.find("node 2"), std::string::npos) << text;
    EXPECT_NE(text.find("sample_affine"), std::string::npos) << text;
    EXPECT_TRUE(program.broken());
    EXPECT_THROW(program.launch(bed().stream()), std::logic_error) << "never again";
  }
}

TEST_F(ProgramFaults, FailedInstantiationBreaksTheProgramAndLeavesNothing) {
  Chain chain = make_chain(bed(), 4);
  Program program = chain.program(driver());
  const std::vector<DeviceMemory> memory = chain_memory(bed(), chain, 1);
  bind_all(program, memory);
  twin::Faults::fail("cuGraphInstantiate", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THROW(program.launch(bed().stream()), DriverError);
  EXPECT_EQ(twin::census().execs, 0U);
  EXPECT_TRUE(program.broken());
}

TEST_F(ProgramFaults, FailedLaunchCanBeRepeated) {
  Chain chain = make_chain(bed(), 4);
  Program program = chain.program(driver());
  const std::vector<DeviceMemory> memory = chain_memory(bed(), chain, 1);
  bind_all(program, memory);
  twin::Faults::fail("cuGraphLaunch", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THROW(program.launch(bed().stream()), DriverError);
  EXPECT_FALSE(program.broken()) << "the exec holds a whole update";
  program.launch(bed().stream());
  bed().synchronize();
  EXPECT_TRUE(holds(memory.back(), chain.expected(1)));
}

}  // namespace
}  // namespace pygraph
