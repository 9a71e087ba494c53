// What a stream capture allows and what breaks it: on the twin as on the driver.
#include <thread>

#include "support.h"

namespace pygraph {
namespace {

using testing::DeviceMemory;

class Capture : public testing::OnBothDrivers {
 protected:
  const DriverApi& api() { return driver().api; }
  CUstream stream() { return bed().stream(); }

  CUstreamCaptureStatus status() {
    CUstreamCaptureStatus found{};
    driver().check(api().cuStreamIsCapturing(stream(), &found), "cuStreamIsCapturing");
    return found;
  }
  void begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) {
    driver().check(api().cuStreamBeginCapture(stream(), mode), "cuStreamBeginCapture");
  }
  /// The capture was invalidated, ends without a graph, and the stream works again.
  void expect_invalidated() {
    EXPECT_EQ(status(), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    CUgraph graph = nullptr;
    EXPECT_EQ(api().cuStreamEndCapture(stream(), &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(status(), CU_STREAM_CAPTURE_STATUS_NONE);
    EXPECT_EQ(api().cuStreamSynchronize(stream()), CUDA_SUCCESS);
  }
};

TEST_P(Capture, RecordsAndDoesNotRun) {
  const DeviceMemory memory(driver(), 64);
  memory.fill(0);
  const GraphHandle graph =
      bed().capture([&] { bed().affine({memory.address(), memory.address(), 0, 7, 16}); });
  bed().synchronize();
  EXPECT_TRUE(testing::holds(memory, 0));
  CUgraphExec exec = nullptr;
  driver().check(api().cuGraphInstantiate(&exec, graph.get(), 0), "cuGraphInstantiate");
  const ExecHandle owner(driver(), exec);
  driver().check(api().cuGraphUpload(exec, stream()), "cuGraphUpload");
  driver().check(api().cuGraphLaunch(exec, stream()), "cuGraphLaunch");
  bed().synchronize();
  EXPECT_TRUE(testing::holds(memory, 7));
}

TEST_P(Capture, SynchronisingTheStreamInvalidates) {
  begin();
  EXPECT_EQ(api().cuStreamSynchronize(stream()), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  expect_invalidated();
}

TEST_P(Capture, AskingWhetherTheStreamIsDoneInvalidates) {
  begin();
  EXPECT_EQ(api().cuStreamQuery(stream()), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  expect_invalidated();
}

TEST_P(Capture, AThreadThatIsRelaxedMayAllocateMeanwhile) {
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  ASSERT_EQ(api().cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  void* host = nullptr;
  EXPECT_EQ(api().cuMemAllocHost(&host, 64), CUDA_SUCCESS);
  EXPECT_EQ(api().cuMemFreeHost(host), CUDA_SUCCESS);
  EXPECT_EQ(api().cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(status(), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(api().cuMemAllocHost(&host, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  expect_invalidated();
}

TEST_P(Capture, SynchronisingTheContextInvalidates) {
  begin();
  EXPECT_EQ(api().cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  expect_invalidated();
}

TEST_P(Capture, AllocationInvalidatesUnlessRelaxed) {
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    begin(mode);
    CUdeviceptr address = 0;
    EXPECT_EQ(api().cuMemAlloc(&address, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_invalidated();
  }
  begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  { const DeviceMemory memory(driver(), 64); }
  CUgraph graph = nullptr;
  EXPECT_EQ(api().cuStreamEndCapture(stream(), &graph), CUDA_SUCCESS);
  const GraphHandle owner(driver(), graph);
}

TEST_P(Capture, PhantomMemoryMayBeMappedMeanwhile) {
  PhantomSpace space(driver(), 0, testing::small_phantom());
  const GraphHandle graph = bed().capture([&] {
    const CUdeviceptr address = space.allocate(8 * testing::kMiB);
    bed().affine({address, address, 1, 1, 16});
  });
  EXPECT_TRUE(graph);
}

TEST_P(Capture, BeginAndEndMustMatch) {
  CUgraph graph = nullptr;
  EXPECT_EQ(api().cuStreamEndCapture(stream(), &graph), CUDA_ERROR_ILLEGAL_STATE);
  begin();
  EXPECT_EQ(status(), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(api().cuStreamBeginCapture(stream(), CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_ERROR_ILLEGAL_STATE);
  CUresult elsewhere = CUDA_SUCCESS;
  std::thread([&] { elsewhere = api().cuStreamEndCapture(stream(), &graph); }).join();
  EXPECT_EQ(elsewhere, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  if (api().cuStreamEndCapture(stream(), &graph) == CUDA_SUCCESS) {
    api().cuGraphDestroy(graph);
  }
  EXPECT_EQ(status(), CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_P(Capture, LaterWorkOnABrokenCaptureIsRefused) {
  begin();
  (void)api().cuStreamSynchronize(stream());
  EXPECT_THROW(bed().affine({512, 512, 1, 1, 16}), DriverError);
  expect_invalidated();
}

PYGRAPH_ON_BOTH_DRIVERS(Capture);

class CaptureOnTwin : public testing::OnTwin {};

TEST_F(CaptureOnTwin, GraphLaunchIntoACaptureIsRefused) {
  const GraphHandle graph = bed().capture([&] { bed().affine({512, 512, 1, 1, 16}); });
  CUgraphExec exec = nullptr;
  driver().check(driver().api.cuGraphInstantiate(&exec, graph.get(), 0), "cuGraphInstantiate");
  const ExecHandle owner(driver(), exec);
  EXPECT_THROW((void)bed().capture([&] {
    EXPECT_EQ(driver().api.cuGraphLaunch(exec, bed().stream()),
              CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }),
               DriverError);
}

TEST_F(CaptureOnTwin, LegacyStreamDependsOnBlockingCaptures) {
  CUstream blocking = nullptr;
  driver().check(driver().api.cuStreamCreate(&blocking, CU_STREAM_DEFAULT), "cuStreamCreate");
  const StreamHandle owner(driver(), blocking);
  const DeviceMemory memory(driver(), 16);
  driver().check(driver().api.cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED),
                 "cuStreamBeginCapture");
  EXPECT_EQ(driver().api.cuMemsetD8Async(memory.address(), 0, 16, nullptr),
            CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CUgraph graph = nullptr;
  EXPECT_EQ(driver().api.cuStreamEndCapture(blocking, &graph),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(driver().api.cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST_F(CaptureOnTwin, WaitingForAnotherCaptureBreaksBoth) {
  const DriverApi& api = driver().api;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  driver().check(api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const StreamHandle stream_owner(driver(), stream);
  driver().check(api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  const EventHandle event_owner(driver(), event);
  for (CUstream each : {stream, bed().stream()}) {
    driver().check(api.cuStreamBeginCapture(each, CU_STREAM_CAPTURE_MODE_RELAXED),
                   "cuStreamBeginCapture");
  }
  driver().check(api.cuEventRecord(event, stream), "cuEventRecord");
  EXPECT_EQ(api.cuStreamWaitEvent(bed().stream(), event, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
  for (CUstream each : {stream, bed().stream()}) {
    CUgraph graph = nullptr;
    EXPECT_EQ(api.cuStreamEndCapture(each, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(graph, nullptr);
  }
}

TEST_F(CaptureOnTwin, DestroyingACapturingStreamDropsItsGraph) {
  const std::size_t graphs = twin::census().graphs;
  CUstream stream = nullptr;
  driver().check(driver().api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  driver().check(driver().api.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED),
                 "cuStreamBeginCapture");
  EXPECT_EQ(driver().api.cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(twin::census().graphs, graphs);
}

}  // namespace
}  // namespace pygraph
