// Streams, their capture, and what can be put on them.
#include "twin/entry.h"
#include "twin/state.h"

namespace pygraph::twin {
namespace {

bool is_legacy(CUstream stream) { return stream == nullptr || stream == CU_STREAM_LEGACY; }

bool is_special(CUstream stream) { return is_legacy(stream) || stream == CU_STREAM_PER_THREAD; }

/// Which captures forbid the calling thread what is unsafe while they last
/// (cuThreadExchangeStreamCaptureMode).
CUstreamCaptureMode& mode_of_thread() {
  thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return mode;
}

/// Work on the legacy stream waits for all blocking streams, so it cannot be put there while one
/// of them captures.
CUresult refuse_implicit_dependency() {
  CUresult code = CUDA_SUCCESS;
  for (auto& [handle, stream] : state().streams) {
    if (stream.status == CU_STREAM_CAPTURE_STATUS_ACTIVE &&
        (stream.flags & CU_STREAM_NON_BLOCKING) == 0) {
      invalidate(stream);
      code = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  return code;
}

CUresult refuse_capturing(Stream& stream) {
  switch (stream.status) {
    case CU_STREAM_CAPTURE_STATUS_ACTIVE:
      invalidate(stream);
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    case CU_STREAM_CAPTURE_STATUS_INVALIDATED:
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    default:
      return CUDA_SUCCESS;
  }
}

/// The nodes of a capture that nothing depends on must be where the origin stream stands: else a
/// stream that was forked did not join again.
bool joined(const Stream& origin) {
  State& now = state();
  std::unordered_set<CUgraphNode> leaves(now.graphs.at(origin.capture).nodes.begin(),
                                         now.graphs.at(origin.capture).nodes.end());
  for (const CUgraphNode node : now.graphs.at(origin.capture).nodes) {
    for (const CUgraphNode dependency : now.nodes.at(node).dependencies) {
      leaves.erase(dependency);
    }
  }
  for (const CUgraphNode tail : origin.tails) {
    leaves.erase(tail);
  }
  return leaves.empty();
}

/// No stream and no event takes part in the capture of `graph` any more.
void leave_capture(CUgraph graph) {
  for (auto& [handle, stream] : state().streams) {
    if (stream.capture == graph) {
      stream.status = CU_STREAM_CAPTURE_STATUS_NONE;
      stream.capture = nullptr;
      stream.tails.clear();
    }
  }
  for (auto& [handle, event] : state().events) {
    if (event.capture == graph) {
      event.capture = nullptr;
      event.tails.clear();
    }
  }
}

CUresult fill_async(CUdeviceptr to, unsigned int value, unsigned int size, std::size_t count,
                    CUstream stream) {
  if (count == 0) {
    return CUDA_SUCCESS;
  }
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = to;
  fill.value = value;
  fill.elementSize = size;
  fill.width = count;
  fill.height = 1;
  const Lock lock;
  const CUresult code = check_fill(fill);
  return code == CUDA_SUCCESS ? put(stream, fill) : code;
}

}  // namespace

void invalidate(Stream& stream) {
  for (auto& [handle, other] : state().streams) {
    if (other.capture == stream.capture && other.capture != nullptr) {
      other.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    }
  }
}

Stream* capturing(CUstream handle) {
  Stream* stream = find(state().streams, handle);
  return stream != nullptr && stream->status != CU_STREAM_CAPTURE_STATUS_NONE ? stream : nullptr;
}

CUresult put(CUstream handle, Work work) {
  if (is_special(handle)) {
    if (const CUresult code = is_legacy(handle) ? refuse_implicit_dependency() : CUDA_SUCCESS;
        code != CUDA_SUCCESS) {
      return code;
    }
  }
  Stream* stream = is_special(handle) ? nullptr : find(state().streams, handle);
  if (stream == nullptr && !is_special(handle)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (stream == nullptr || stream->status == CU_STREAM_CAPTURE_STATUS_NONE) {
    enqueue(std::make_shared<const WorkList>(1, std::make_shared<const Work>(std::move(work))));
    return CUDA_SUCCESS;
  }
  if (stream->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  if (auto* launch = std::get_if<KernelWork>(&work)) {
    add_padding_noise(*launch);
  }
  CUgraphNode added = nullptr;
  const CUresult code = add_node(stream->capture, stream->tails.data(), stream->tails.size(),
                                 std::move(work), &added);
  if (code == CUDA_SUCCESS) {
    stream->tails = {added};
  }
  return code;
}

CUresult refuse_while_capturing() {
  CUresult code = CUDA_SUCCESS;
  for (auto& [handle, stream] : state().streams) {
    if (const CUresult refusal = refuse_capturing(stream); refusal != CUDA_SUCCESS) {
      code = refusal;
    }
  }
  return code;
}

CUresult refuse_unsafe_call() {
  CUresult code = CUDA_SUCCESS;
  if (mode_of_thread() == CU_STREAM_CAPTURE_MODE_RELAXED) {
    return code;
  }
  for (auto& [handle, stream] : state().streams) {
    const bool others = mode_of_thread() == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                        stream.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    const bool own = stream.mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
                     stream.thread == std::this_thread::get_id();
    const bool governed = others || own;
    if (stream.status == CU_STREAM_CAPTURE_STATUS_ACTIVE && governed) {
      code = refuse_capturing(stream);
    }
  }
  return code;
}

CUresult refuse_on_capturing_stream(CUstream handle) {
  if (is_special(handle)) {
    return is_legacy(handle) ? refuse_implicit_dependency() : CUDA_SUCCESS;
  }
  Stream* stream = find(state().streams, handle);
  return stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : refuse_capturing(*stream);
}

namespace entry {

CUresult cuStreamCreate(CUstream* handle, unsigned int flags) {
  if (handle == nullptr || flags > CU_STREAM_NON_BLOCKING) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock;
  *handle = state().make_handle<CUstream>();
  state().streams[*handle].flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream handle) {
  const Lock lock;
  const auto stream = state().streams.find(handle);
  if (stream == state().streams.end()) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (CUgraph graph = stream->second.capture; graph != nullptr) {
    if (stream->second.origin) {
      leave_capture(graph);
      destroy_graph(graph);
    } else {
      invalidate(stream->second);
    }
  }
  state().streams.erase(stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) {
  {
    const Lock lock;
    if (const CUresult code = refuse_on_capturing_stream(handle); code != CUDA_SUCCESS) {
      return code;
    }
  }
  return drain();
}

CUresult cuStreamQuery(CUstream handle) {
  const Lock lock;
  const CUresult code = refuse_on_capturing_stream(handle);
  return code != CUDA_SUCCESS || state().queue.empty() ? code : CUDA_ERROR_NOT_READY;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
      *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::swap(*mode, mode_of_thread());
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  const Lock lock;
  if (is_special(handle)) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  Stream* stream = find(state().streams, handle);
  if (stream == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (stream->status != CU_STREAM_CAPTURE_STATUS_NONE) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  stream->status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  stream->mode = mode;
  stream->thread = std::this_thread::get_id();
  stream->capture = state().make_handle<CUgraph>();
  stream->origin = true;
  stream->tails.clear();
  state().graphs[stream->capture];
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  const Lock lock;
  if (graph == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *graph = nullptr;
  Stream* stream = find(state().streams, handle);
  if (stream == nullptr) {
    return is_special(handle) ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_INVALID_HANDLE;
  }
  if (stream->status == CU_STREAM_CAPTURE_STATUS_NONE) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  if (stream->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      stream->thread != std::this_thread::get_id()) {
    invalidate(*stream);
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  if (!stream->origin) {
    invalidate(*stream);
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  CUresult code = stream->status == CU_STREAM_CAPTURE_STATUS_ACTIVE
                      ? CUDA_SUCCESS
                      : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (code == CUDA_SUCCESS && !joined(*stream)) {
    code = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  }
  CUgraph captured = stream->capture;
  leave_capture(captured);
  if (code == CUDA_SUCCESS) {
    *graph = captured;
  } else {
    destroy_graph(captured);
  }
  return code;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  const Lock lock;
  if (status == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Stream* stream = find(state().streams, handle);
  if (stream == nullptr && !is_special(handle)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *status = stream == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE : stream->status;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id,
                                CUgraph* graph, const CUgraphNode** dependencies,
                                const CUgraphEdgeData** edge_data, std::size_t* count) {
  const Lock lock;
  const Stream* stream = find(state().streams, handle);
  if (status == nullptr || id != nullptr || dependencies != nullptr || edge_data != nullptr ||
      count != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;  // the twin gives the graph and nothing else
  }
  if (stream == nullptr && !is_special(handle)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *status = stream == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE : stream->status;
  if (graph != nullptr && *status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    *graph = stream->capture;
  }
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                        void** parameters, void** extra) {
  CUDA_KERNEL_NODE_PARAMS launch{};
  launch.func = function;
  launch.gridDimX = grid_x;
  launch.gridDimY = grid_y;
  launch.gridDimZ = grid_z;
  launch.blockDimX = block_x;
  launch.blockDimY = block_y;
  launch.blockDimZ = block_z;
  launch.sharedMemBytes = shared_bytes;
  launch.kernelParams = parameters;
  launch.extra = extra;
  const Lock lock;
  KernelWork work;
  const CUresult code = make_kernel_work(launch, work);
  return code == CUDA_SUCCESS ? put(stream, std::move(work)) : code;
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream stream) {
  return fill_async(to, value, 1, bytes, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, std::size_t words, CUstream stream) {
  return fill_async(to, value, 4, words, stream);
}

}  // namespace entry
}  // namespace pygraph::twin
