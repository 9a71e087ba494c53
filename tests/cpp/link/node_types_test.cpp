// Events, host functions, kernel attributes and captures of several streams; what link() makes of
// them.
#include "graph_builder.h"

namespace pygraph {
namespace {

using testing::DeviceMemory;
using testing::GraphBuilder;
using testing::holds;
using testing::message_of;
using testing::Regions;
using testing::Runnable;

constexpr std::uint32_t kFloats = 64;
constexpr std::size_t kBytes = kFloats * sizeof(float);

class NodeTypes : public testing::OnBothDrivers {
 protected:
  const DriverApi& api() { return driver().api; }
  EventHandle make_event() {
    CUevent event = nullptr;
    driver().check(api().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    return {driver(), event};
  }
  StreamHandle make_stream() {
    CUstream stream = nullptr;
    driver().check(api().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return {driver(), stream};
  }
  DeviceMemory holding(float value) {
    DeviceMemory memory(driver(), kBytes);
    memory.write(std::vector<float>(kFloats, value));
    return memory;
  }
};

TEST_P(NodeTypes, ExternalEventsAreKept) {
  const EventHandle before = make_event();
  const EventHandle after = make_event();
  const Regions regions(driver(), 2, kBytes);
  for (const bool flattened : {false, true}) {
    LinkedGraph linked = regions.link([&](const std::vector<CUdeviceptr>& at) {
      GraphBuilder graph(bed());
      const CUgraphNode wait = graph.wait(before.get());
      const CUgraphNode kernel = graph.affine({at[1], at[0], 2, 1, kFloats}, {wait});
      graph.record(after.get(), {kernel});
      if (!flattened) {
        return graph.take();
      }
      GraphBuilder parent(bed());
      parent.child(graph);
      return parent.take();
    });
    ASSERT_TRUE(linked.table.sound()) << linked.table.problems[0];
    EXPECT_EQ(linked.image.count(NodeKind::kEventWait), 1U);
    EXPECT_EQ(linked.image.count(NodeKind::kEventRecord), 1U);
    Runnable runnable(bed(), std::move(linked));
    const DeviceMemory in = holding(3);
    const DeviceMemory out = holding(0);
    driver().check(api().cuEventRecord(before.get(), bed().stream()), "cuEventRecord");
    runnable.run(bed(), {in.address(), out.address()});
    EXPECT_TRUE(holds(out, 7));
  }
}

TEST_P(NodeTypes, CapturedExternalEventsAreRead) {
  const EventHandle event = make_event();
  const GraphHandle graph = bed().capture([&] {
    driver().check(api().cuStreamWaitEvent(bed().stream(), event.get(), CU_EVENT_WAIT_EXTERNAL),
                   "wait");
    driver().check(
        api().cuEventRecordWithFlags(event.get(), bed().stream(), CU_EVENT_RECORD_EXTERNAL),
        "record");
  });
  const Image image = read_image(driver(), graph.get());
  ASSERT_EQ(image.nodes.size(), 2U);
  EXPECT_EQ(image.nodes[0].kind, NodeKind::kEventWait);
  EXPECT_EQ(image.nodes[1].kind, NodeKind::kEventRecord);
  EXPECT_TRUE(image.nodes[0].words.empty());
}

TEST_P(NodeTypes, AnotherEventInTheProbeIsAProblem) {
  const EventHandle events[] = {make_event(), make_event()};
  const Regions regions(driver(), 0, 0);
  std::size_t next = 0;
  const LinkedGraph linked = regions.link([&](const std::vector<CUdeviceptr>&) {
    GraphBuilder graph(bed());
    graph.record(events[next++].get());
    return graph.take();
  });
  ASSERT_EQ(linked.table.problems.size(), 1U);
  EXPECT_NE(linked.table.problems[0].find("another event"), std::string::npos);
}

TEST_P(NodeTypes, HostFunctionsAreKeptOnlyWhereTheCallerSaysSo) {
  int calls[2] = {0, 0};
  std::size_t of_probe = 0;
  const auto make = [&](const std::vector<CUdeviceptr>& at) {
    GraphBuilder graph(bed());
    const CUgraphNode kernel = graph.affine({at[1], at[0], 1, 1, kFloats});
    graph.host([](void* data) { ++*static_cast<int*>(data); }, &calls[of_probe], {kernel});
    return graph.take();
  };
  const Regions regions(driver(), 2, kBytes);
  const std::string text = message_of<UnsupportedGraph>([&] { (void)regions.link(make); });
  EXPECT_NE(text.find("node 1 of the captured graph is a host function"), std::string::npos)
      << text;
  EXPECT_NE(text.find("cannot see"), std::string::npos) << text;

  const LinkOptions keep{.keep_host_functions = true};
  Runnable runnable(bed(), regions.link(make, {}, keep));
  const DeviceMemory in = holding(3);
  const DeviceMemory out = holding(0);
  runnable.run(bed(), {in.address(), out.address()});
  runnable.run(bed(), {in.address(), out.address()});
  EXPECT_EQ(calls[0], 2);
  EXPECT_TRUE(holds(out, 4));

  const LinkedGraph differs = regions.link(
      [&](const std::vector<CUdeviceptr>& at) {
        GraphHandle graph = make(at);
        of_probe = 1;
        return graph;
      },
      {}, keep);
  ASSERT_EQ(differs.table.problems.size(), 1U);
  EXPECT_NE(differs.table.problems[0].find("host function"), std::string::npos);
}

TEST_P(NodeTypes, AccessPolicyWindowsAreRefusedByName) {
  const DeviceMemory memory(driver(), kBytes);
  GraphBuilder graph(bed());
  const CUgraphNode kernel = graph.affine({memory.address(), memory.address(), 1, 1, kFloats});
  CUkernelNodeAttrValue value{};
  value.accessPolicyWindow.base_ptr = reinterpret_cast<void*>(memory.address());
  value.accessPolicyWindow.num_bytes = kBytes;
  value.accessPolicyWindow.hitRatio = 1;
  value.accessPolicyWindow.hitProp = CU_ACCESS_PROPERTY_PERSISTING;
  value.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_STREAMING;
  driver().check(api().cuGraphKernelNodeSetAttribute(
                     kernel, CU_KERNEL_NODE_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value),
                 "cuGraphKernelNodeSetAttribute");
  const std::string text =
      message_of<UnsupportedGraph>([&] { (void)read_image(driver(), graph.get()); });
  EXPECT_NE(text.find("access policy window"), std::string::npos) << text;
  EXPECT_NE(text.find("affine"), std::string::npos) << text;
}

TEST_P(NodeTypes, CapturesOfSeveralStreamsForkAndJoin) {
  const StreamHandle side = make_stream();
  const EventHandle fork = make_event();
  const EventHandle join = make_event();
  const auto make = [&](const std::vector<CUdeviceptr>& at) {
    return bed().capture([&] {
      bed().affine({at[1], at[0], 2, 0, kFloats});
      driver().check(api().cuEventRecord(fork.get(), bed().stream()), "cuEventRecord");
      driver().check(api().cuStreamWaitEvent(side.get(), fork.get(), 0), "cuStreamWaitEvent");
      driver().check(api().cuMemcpyDtoDAsync(at[2], at[1], kBytes, side.get()), "copy");
      bed().affine({at[3], at[1], 1, 1, kFloats});
      driver().check(api().cuEventRecord(join.get(), side.get()), "cuEventRecord");
      driver().check(api().cuStreamWaitEvent(bed().stream(), join.get(), 0), "cuStreamWaitEvent");
      bed().affine({at[4], at[2], 1, 5, kFloats});
    });
  };
  Regions regions(driver(), 5, kBytes);
  regions.scratch(1).scratch(2);
  LinkedGraph linked = regions.link(make);
  ASSERT_TRUE(linked.table.sound()) << linked.table.problems[0];
  ASSERT_EQ(linked.image.nodes.size(), 4U);
  EXPECT_EQ(linked.image.edges,
            (std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 1}, {0, 2}, {1, 3}, {2, 3}}));
  Runnable runnable(bed(), std::move(linked));
  const DeviceMemory in = holding(3);
  const DeviceMemory left = holding(0);
  const DeviceMemory out = holding(0);
  runnable.run(bed(), {in.address(), 0, 0, left.address(), out.address()});
  EXPECT_TRUE(holds(left, 7));
  EXPECT_TRUE(holds(out, 11));
  CUstreamCaptureStatus status{};
  driver().check(api().cuStreamIsCapturing(side.get(), &status), "cuStreamIsCapturing");
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_P(NodeTypes, AStreamThatDoesNotJoinBreaksTheCapture) {
  const StreamHandle side = make_stream();
  const EventHandle fork = make_event();
  const DeviceMemory memory = holding(0);
  const auto begin = [&] {
    driver().check(api().cuStreamBeginCapture(bed().stream(), CU_STREAM_CAPTURE_MODE_RELAXED),
                   "cuStreamBeginCapture");
    driver().check(api().cuEventRecord(fork.get(), bed().stream()), "cuEventRecord");
    driver().check(api().cuStreamWaitEvent(side.get(), fork.get(), 0), "cuStreamWaitEvent");
    driver().check(api().cuMemsetD8Async(memory.address(), 1, 4, side.get()), "fill");
  };
  CUgraph graph = nullptr;
  begin();
  EXPECT_EQ(api().cuStreamEndCapture(bed().stream(), &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  begin();
  EXPECT_EQ(api().cuStreamEndCapture(side.get(), &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  EXPECT_NE(api().cuStreamEndCapture(bed().stream(), &graph), CUDA_SUCCESS);
  bed().synchronize();
}

TEST_P(NodeTypes, AnEventFromOutsideBreaksTheCapture) {
  const EventHandle event = make_event();
  driver().check(api().cuEventRecord(event.get(), bed().stream()), "cuEventRecord");
  driver().check(api().cuStreamBeginCapture(bed().stream(), CU_STREAM_CAPTURE_MODE_RELAXED),
                 "cuStreamBeginCapture");
  EXPECT_EQ(api().cuStreamWaitEvent(bed().stream(), event.get(), 0),
            CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  CUgraph graph = nullptr;
  EXPECT_EQ(api().cuStreamEndCapture(bed().stream(), &graph),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

PYGRAPH_ON_BOTH_DRIVERS(NodeTypes);

}  // namespace
}  // namespace pygraph
