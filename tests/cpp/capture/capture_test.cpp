#include "pygraph/capture.h"

#include <array>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "pygraph/layout.h"
#include "support.h"

namespace pygraph {
namespace {

using testing::DeviceMemory;
using testing::holds;
using testing::message_of;

constexpr std::uint32_t kFloats = 200;
constexpr std::size_t kBytes = kFloats * sizeof(float);

::testing::AssertionResult says(const std::string& message, const std::string& part) {
  if (message.find(part) == std::string::npos) {
    return ::testing::AssertionFailure() << "\"" << part << "\" is not in: " << message;
  }
  return ::testing::AssertionSuccess();
}

/// What the tests of both drivers and those of the twin share.
template <typename Fixture>
class CaptureWorkOf : public Fixture {
 protected:
  [[nodiscard]] const DriverApi& api() const { return this->driver().api; }
  [[nodiscard]] CUstream stream() const { return this->bed().stream(); }

  [[nodiscard]] CapturedWork capture_of(const std::vector<std::size_t>& buffers, const Work& work,
                                        CaptureOptions options = {}) const {
    options.phantom = testing::small_phantom();
    return capture(this->driver(), stream(), buffers, work, options);
  }
  [[nodiscard]] std::string refusal(const std::vector<std::size_t>& buffers,
                                    const Work& work) const {
    return message_of<UnsupportedGraph>([&] { (void)capture_of(buffers, work); });
  }
  void affine(CUdeviceptr out, CUdeviceptr in, float scale, float shift,
              std::uint32_t count = kFloats) const {
    this->bed().affine({out, in, scale, shift, count});
  }
  [[nodiscard]] bool capturing() const {
    CUstreamCaptureStatus status{};
    this->driver().check(api().cuStreamIsCapturing(stream(), &status), "cuStreamIsCapturing");
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
  }
  /// Two scratch buffers, each needed for a while; buffers: in, between, out = 24 * in + 31.
  [[nodiscard]] Work chain() const {
    return [this](CUstream, const WorkMemory& at) {
      const CUdeviceptr first = at.scratch(kBytes);
      affine(first, at[0], 2, 1);
      affine(at[1], first, 3, 1);
      const CUdeviceptr second = at.scratch(kBytes);
      affine(second, at[1], 4, -1);
      affine(at[2], second, 1, 16);
    };
  }
};

class CaptureWork : public CaptureWorkOf<testing::OnBothDrivers> {
 protected:
  [[nodiscard]] std::string affine_name() const {
    return on_twin() ? "kernel sample_affine" : "kernel affine";
  }
  /// Memory for three buffers, the first full of `start`.
  [[nodiscard]] std::vector<DeviceMemory> memory(float start) const {
    std::vector<DeviceMemory> made;
    for (std::size_t i = 0; i < 3; ++i) {
      made.emplace_back(driver(), kBytes);
      made.back().write(std::vector<float>(kFloats, i == 0 ? start : -1));
    }
    return made;
  }
  static std::array<CUdeviceptr, 3> addresses(const std::vector<DeviceMemory>& memory) {
    return {memory[0].address(), memory[1].address(), memory[2].address()};
  }
};

TEST_P(CaptureWork, RunsWithAllBuffersAndScratchElsewhere) {
  CapturedWork captured = capture_of({kBytes, kBytes, kBytes}, chain());
  EXPECT_EQ(captured.arena_bytes, round_up(kBytes, 512)) << "the two are not needed at once";
  EXPECT_TRUE(captured.foreign.empty());
  for (const float start : {3.0F, -5.0F}) {
    const std::vector<DeviceMemory> buffers = memory(start);
    const DeviceMemory arena(driver(), captured.arena_bytes);
    captured.bind(addresses(buffers), arena.address());
    captured.program.launch(stream());
    bed().synchronize();
    EXPECT_TRUE(holds(buffers[0], start));
    EXPECT_TRUE(holds(buffers[1], 6 * start + 4));
    EXPECT_TRUE(holds(buffers[2], 24 * start + 31));
  }
}

TEST_P(CaptureWork, ScratchSharesNothingWhereThatIsAskedFor) {
  const CapturedWork captured =
      capture_of({kBytes, kBytes, kBytes}, chain(), {.share_scratch = false});
  EXPECT_EQ(captured.arena_bytes, 2 * round_up(kBytes, 512));
}

TEST_P(CaptureWork, WithoutScratchTheArenaNeedsNoMemory) {
  CapturedWork captured = capture_of(
      {kBytes, kBytes}, [&](CUstream, const WorkMemory& at) { affine(at[1], at[0], 2, 0); });
  EXPECT_EQ(captured.arena_bytes, 0U);
  const std::vector<DeviceMemory> buffers = memory(4);
  captured.bind(std::array{buffers[0].address(), buffers[1].address()}, 0);
  captured.program.launch(stream());
  bed().synchronize();
  EXPECT_TRUE(holds(buffers[1], 8));
}

TEST_P(CaptureWork, MemoryThatDoesNotMoveStaysAndIsReported) {
  const DeviceMemory weights(driver(), kBytes);
  weights.write(std::vector<float>(kFloats, 5));
  CapturedWork captured =
      capture_of({kBytes}, [&](CUstream, auto& at) { affine(at[0], weights.address(), 2, 0); });
  ASSERT_EQ(captured.foreign.size(), 1U);
  EXPECT_EQ(captured.foreign[0].address, weights.address());
  const DeviceMemory out(driver(), kBytes);
  captured.bind(std::array{out.address()}, 0);
  captured.program.launch(stream());
  bed().synchronize();
  EXPECT_TRUE(holds(out, 10));
}

TEST_P(CaptureWork, AStreamThatIsForkedAndJoinedTakesPart) {
  CUstream handle = nullptr;
  driver().check(api().cuStreamCreate(&handle, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const StreamHandle side(driver(), handle);
  std::array<EventHandle, 2> events;
  for (EventHandle& event : events) {
    CUevent made = nullptr;
    driver().check(api().cuEventCreate(&made, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    event = EventHandle(driver(), made);
  }
  const auto order = [&](CUstream before, CUstream after, const EventHandle& event) {
    driver().check(api().cuEventRecord(event.get(), before), "cuEventRecord");
    driver().check(api().cuStreamWaitEvent(after, event.get(), 0), "cuStreamWaitEvent");
  };
  bool join = true;
  const Work work = [&](CUstream on, const WorkMemory& at) {
    affine(at[1], at[0], 2, 0);
    order(on, side.get(), events[0]);
    driver().check(api().cuMemsetD8Async(at[2], 0, kBytes, side.get()), "cuMemsetD8Async");
    if (join) {
      order(side.get(), on, events[1]);
    }
  };
  EXPECT_EQ(capture_of({kBytes, kBytes, kBytes}, work).program.node_count(), 2U);
  join = false;
  const std::string message =
      message_of<DriverError>([&] { (void)capture_of({kBytes, kBytes, kBytes}, work); });
  EXPECT_TRUE(says(message, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"));
  EXPECT_TRUE(says(message, "without joining it"));
  EXPECT_FALSE(capturing());
}

TEST_P(CaptureWork, AnotherLaunchTheSecondTimeIsRefusedByName) {
  std::uint32_t runs = 0;
  const std::string shape = refusal({kBytes, kBytes}, [&](CUstream, const WorkMemory& at) {
    affine(at[1], at[0], 1, 0);
    affine(at[1], at[1], 2, 0, 100 + 100 * runs++);
  });
  EXPECT_TRUE(says(shape, affine_name() + ": node 1: the probe has another launch shape: 1 x 1 x "
                                          "1 blocks of 128 x 1 x 1 threads"));
  EXPECT_TRUE(says(shape, "2 x 1 x 1 blocks"));
  EXPECT_TRUE(says(shape, "needed: the same launches each time"));

  runs = 0;
  const std::string count = refusal({kBytes, kBytes}, [&](CUstream, const WorkMemory& at) {
    for (std::uint32_t i = 0; i <= runs; ++i) {
      affine(at[1], at[0], 1, 0);
    }
    ++runs;
  });
  EXPECT_TRUE(says(count, "capture A has 1 nodes, its probe 2"));
  EXPECT_FALSE(capturing());
}

TEST_P(CaptureWork, OtherScratchTheSecondTimeIsRefused) {
  std::size_t runs = 0;
  const auto size = [&](CUstream, const WorkMemory& at) {
    affine(at.scratch(16), at[0], 1, 0, 4);
    affine(at.scratch(kBytes * ++runs), at[0], 1, 0);
  };
  EXPECT_TRUE(says(refusal({kBytes}, size),
                   "scratch 1: the work asked for 800 bytes when it was captured first and "
                   "for 1600 the second time"));
  runs = 0;
  const auto count = [&](CUstream, const WorkMemory& at) {
    for (std::size_t i = 0; i <= runs; ++i) {
      (void)at.scratch(kBytes);
    }
    ++runs;
    affine(at[0], at[0], 1, 0);
  };
  EXPECT_TRUE(says(refusal({kBytes}, count),
                   "asked 1 times for scratch when it was captured "
                   "first and 2 times the second time"));
}

TEST_P(CaptureWork, AnAddressKeptFromTheFirstRunIsRefused) {
  CUdeviceptr kept = 0;
  const auto work = [&](CUstream, const WorkMemory& at) {
    const CUdeviceptr scratch = at.scratch(kBytes);
    kept = kept == 0 ? scratch : kept;
    affine(kept, at[0], 1, 0);
    affine(at[0], kept, 1, 0);
  };
  EXPECT_TRUE(says(refusal({kBytes}, work),
                   "an address of memory of the first capture is there in the second"));
}

TEST_P(CaptureWork, WorkThatPutsNothingOnTheStreamIsRefused) {
  EXPECT_TRUE(says(refusal({kBytes}, [](CUstream, const WorkMemory&) {}), "empty"));
}

TEST_P(CaptureWork, ABufferThatIsTooSmallIsRefused) {
  const auto fill = [&](std::size_t offset, std::size_t bytes) -> Work {
    return [this, offset, bytes](CUstream on, const WorkMemory& at) {
      driver().check(api().cuMemsetD8Async(at[0], 0, 16, on), "cuMemsetD8Async");
      driver().check(api().cuMemsetD8Async(at[1] + offset, 0, bytes, on), "cuMemsetD8Async");
    };
  };
  EXPECT_EQ(capture_of({16, 64}, fill(4, 60)).program.node_count(), 2U);
  EXPECT_TRUE(says(refusal({16, 64}, fill(4, 61)),
                   "node 1, a fill, takes bytes 4 to 65 of buffer 1, which has 64 bytes"));
  EXPECT_TRUE(says(refusal({16, 64}, fill(std::size_t{0} - 4, 8)), "takes bytes -4 to 4"));

  const auto copy = [&](CUstream on, const WorkMemory& at) {
    (void)at.scratch(8);
    const CUdeviceptr small = at.scratch(64);
    driver().check(api().cuMemcpyDtoDAsync(small, at[0], 128, on), "cuMemcpyDtoDAsync");
  };
  EXPECT_TRUE(says(refusal({128}, copy),
                   "node 0, a copy, takes bytes 0 to 128 of scratch 1, which has 64 bytes"));
  EXPECT_TRUE(says(refusal({64}, copy), "of buffer 0, which has 64 bytes"));

  const auto far = [&](CUstream, const WorkMemory& at) {
    affine(at[0] + kBytes + 65536, at[0], 1, 0);
  };
  EXPECT_TRUE(says(refusal({kBytes}, far), affine_name() + ": node 0 offset 0: the phantom "
                                                           "address"));
}

TEST_P(CaptureWork, ARowOfACopyThatReachesTooFarIsRefused) {
  // Three rows of 16 bytes, 64 apart, from row 1 on and byte 8: bytes 72 to 216.
  const auto rows = [&](CUstream on, const WorkMemory& at) {
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = at[0];
    copy.srcPitch = 64;
    copy.srcXInBytes = 8;
    copy.srcY = 1;
    copy.dstDevice = at[1];
    copy.dstPitch = 16;
    copy.WidthInBytes = 16;
    copy.Height = 3;
    driver().check(api().cuMemcpy2DAsync(&copy, on), "cuMemcpy2DAsync");
  };
  EXPECT_EQ(capture_of({216, 48}, rows).program.node_count(), 1U);
  EXPECT_TRUE(says(refusal({215, 48}, rows), "takes bytes 72 to 216 of buffer 0"));
  EXPECT_TRUE(says(refusal({216, 47}, rows), "takes bytes 0 to 48 of buffer 1"));
}

TEST_P(CaptureWork, MoreThanPhantomMemoryIsRefused) {
  EXPECT_THROW((void)capture_of({testing::small_phantom().reserve_bytes}, chain()),
               std::length_error);
  EXPECT_FALSE(capturing());
  const auto greedy = [](CUstream, const WorkMemory& at) {
    (void)at.scratch(testing::small_phantom().reserve_bytes);
  };
  EXPECT_THROW((void)capture_of({kBytes}, greedy), std::length_error);
  EXPECT_FALSE(capturing());
}

TEST_P(CaptureWork, WorkThatThrowsLeavesTheStreamAsItWas) {
  struct Refused {};
  for (int throwing = 1; throwing <= 2; ++throwing) {
    int runs = 0;
    const auto work = [&](CUstream, const WorkMemory& at) {
      affine(at.scratch(kBytes), at[0], 1, 0);
      if (++runs == throwing) {
        throw Refused();
      }
    };
    EXPECT_THROW((void)capture_of({kBytes}, work), Refused);
    EXPECT_FALSE(capturing());
  }
  bed().synchronize();
}

TEST_P(CaptureWork, WorkThatWaitsForTheDeviceIsRefused) {
  const auto work = [&](CUstream on, const WorkMemory& at) {
    affine(at[0], at[0], 1, 0);
    EXPECT_NE(api().cuStreamSynchronize(on), CUDA_SUCCESS);
  };
  const std::string message = message_of<DriverError>([&] { (void)capture_of({kBytes}, work); });
  EXPECT_TRUE(says(message, "must not wait for the device"));
  EXPECT_FALSE(capturing());
}

TEST_P(CaptureWork, ThreadsCaptureSideBySide) {
  const auto capture_often = [&] {
    const testing::Testbed own(GetParam());  // with a stream of its own, and the context current
    for (int i = 0; i < 20; ++i) {
      const CapturedWork captured = capture(own.driver(), own.stream(), {kBytes, kBytes},
                                            [&](CUstream, const WorkMemory& at) {
                                              const CUdeviceptr scratch = at.scratch(kBytes);
                                              own.affine({scratch, at[0], 2, 1, kFloats});
                                              own.affine({at[1], scratch, 3, 1, kFloats});
                                            },
                                            {.phantom = testing::small_phantom()});
      EXPECT_EQ(captured.program.node_count(), 2U);
    }
  };
  std::thread other(capture_often);
  capture_often();
  other.join();
}

TEST_P(CaptureWork, BadInputIsRefusedBeforeAnythingIsMade) {
  const auto message = [&](CUstream on, const Work& work, const CaptureOptions& options) {
    return message_of<std::invalid_argument>(
        [&] { (void)capture(driver(), on, {kBytes, kBytes, kBytes}, work, options); });
  };
  EXPECT_TRUE(says(message(stream(), {}, {}), "found no work"));
  EXPECT_TRUE(says(message(nullptr, chain(), {}), "found the default stream"));
  EXPECT_TRUE(says(message(stream(), chain(), {.proof = {{1, 2}}}),
                   "a proof with 2 addresses, needed one for each of 3 buffers"));

  driver().check(api().cuStreamBeginCapture(stream(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                 "cuStreamBeginCapture");
  EXPECT_TRUE(says(message(stream(), chain(), {}), "capturing already"));
  EXPECT_TRUE(capturing()) << "another's capture goes on";
  CUgraph graph = nullptr;
  driver().check(api().cuStreamEndCapture(stream(), &graph), "cuStreamEndCapture");
  const GraphHandle owner(driver(), graph);
}

TEST_P(CaptureWork, BindAndMemoryTakeAsManyAddressesAsThereAreBuffers) {
  CapturedWork captured = capture_of({kBytes, kBytes, kBytes}, chain());
  EXPECT_TRUE(says(
      message_of<std::invalid_argument>([&] { captured.bind(std::array<CUdeviceptr, 2>{}, 0); }),
      "found 2 addresses, needed one for each of 3 buffers"));
  const WorkMemory memory({1, 2}, {});
  EXPECT_EQ(memory[1], 2U);
  EXPECT_THROW((void)memory[2], std::out_of_range);
}

TEST_P(CaptureWork, AProofRunsBothAtEverySetAndLeavesTheProgramUnbound) {
  const std::vector<DeviceMemory> first = memory(3);
  const std::vector<DeviceMemory> second = memory(7);
  const auto set = [](const std::vector<DeviceMemory>& memory) {
    const std::array<CUdeviceptr, 3> all = addresses(memory);
    return std::vector<CUdeviceptr>(all.begin(), all.end());
  };
  int runs = 0;
  const Work counted = [&, work = chain()](CUstream on, const WorkMemory& at) {
    ++runs;
    work(on, at);
  };
  CapturedWork captured =
      capture_of({kBytes, kBytes, kBytes}, counted, {.proof = {set(first), set(second)}});
  EXPECT_EQ(runs, 4);
  EXPECT_TRUE(holds(first[2], 24 * 3 + 31));
  EXPECT_TRUE(holds(second[2], 24 * 7 + 31));
  EXPECT_THROW(captured.program.launch(stream()), std::logic_error);

  const std::vector<DeviceMemory> third = memory(1);
  const DeviceMemory arena(driver(), captured.arena_bytes);
  captured.bind(addresses(third), arena.address());
  captured.program.launch(stream());
  bed().synchronize();
  EXPECT_TRUE(holds(third[2], 24 + 31));
}

TEST_P(CaptureWork, AProofRunsOnTheSameBytesTwice) {
  // The work adds to what it finds: the program must not find what the work has left.
  const DeviceMemory sum(driver(), kBytes);
  sum.write(std::vector<float>(kFloats, 5));
  (void)capture_of({kBytes}, [&](CUstream, const WorkMemory& at) { affine(at[0], at[0], 1, 1); },
                   {.proof = {{sum.address()}}});
  EXPECT_TRUE(holds(sum, 6));
}

TEST_P(CaptureWork, AProofSeesANumberThatIsAnotherEachTime) {
  float runs = 0;
  const DeviceMemory in(driver(), kBytes);
  const DeviceMemory out(driver(), kBytes);
  in.write(std::vector<float>(kFloats, 1));
  const auto prove = [&] {
    (void)capture_of({kBytes, kBytes},
                     [&](CUstream, const WorkMemory& at) { affine(at[1], at[0], ++runs, 0); },
                     {.proof = {{in.address(), out.address()}}});
  };
  EXPECT_TRUE(says(message_of<ProofFailed>(prove), "buffer 1: the program left 0x"));
}

PYGRAPH_ON_BOTH_DRIVERS(CaptureWork);

/// What only the twin can be made to do.
class CaptureWorkOnTwin : public CaptureWorkOf<testing::OnTwin> {};

TEST_F(CaptureWorkOnTwin, AProofSeesAWriteToWhereTheWorkWasCaptured) {
  // out = 1, and a write through an address that no comparison recognises.
  const CUfunction hidden =
      twin::register_kernel("hidden_write", {{0, 8}, {8, 8}}, [](const twin::Launch& launch) {
        *reinterpret_cast<float*>(launch.parameter<CUdeviceptr>(0)) = 1;
        *reinterpret_cast<float*>(~launch.parameter<CUdeviceptr>(8)) = 2;
      });
  const DeviceMemory out(driver(), kBytes);
  const auto prove = [&] {
    (void)capture_of(
        {kBytes},
        [&](CUstream on, const WorkMemory& at) {
          CUdeviceptr to = at[0];
          CUdeviceptr encoded = ~at.scratch(kBytes);
          void* parameters[] = {&to, &encoded};
          driver().check(api().cuLaunchKernel(hidden, 1, 1, 1, 1, 1, 1, 0, on, parameters, nullptr),
                         "cuLaunchKernel");
        },
        {.proof = {{out.address()}}});
  };
  EXPECT_TRUE(says(message_of<ProofFailed>(prove), "memory that the work was captured with"));
}

TEST_F(CaptureWorkOnTwin, WhateverCallFailsNothingIsLeftBehind) {
  const DeviceMemory in(driver(), kBytes);
  const DeviceMemory between(driver(), kBytes);
  const DeviceMemory out(driver(), kBytes);
  const auto prove = [&] {
    (void)capture_of({kBytes, kBytes, kBytes}, chain(),
                     {.proof = {{in.address(), between.address(), out.address()}}});
  };
  twin::Faults::count_calls(true);
  prove();
  const std::map<std::string, std::uint64_t> calls = twin::Faults::calls();
  twin::Faults::count_calls(false);
  // What releases an object cannot be made up for, and what only asks has an answer for "unknown".
  const std::set<std::string> excepted = {
      "cuGraphDestroy", "cuGraphExecDestroy", "cuMemFree",     "cuMemUnmap",
      "cuMemRelease",   "cuMemAddressFree",   "cuFuncGetName", "cuPointerGetAttribute"};
  const twin::Census before = twin::census();
  std::size_t failed = 0;
  for (const auto& [symbol, count] : calls) {
    for (std::uint64_t nth = 1; nth <= count && !excepted.contains(symbol); ++nth) {
      twin::Faults::fail(symbol, CUDA_ERROR_OUT_OF_MEMORY, static_cast<int>(nth));
      EXPECT_THROW(prove(), DriverError) << symbol << ", call " << nth;
      twin::Faults::reset();
      EXPECT_FALSE(capturing()) << symbol << ", call " << nth;
      EXPECT_EQ(twin::census(), before) << symbol << ", call " << nth;
      ++failed;
    }
  }
  EXPECT_GT(failed, 50U);
}

}  // namespace
}  // namespace pygraph
