// Events: marks that carry a capture from one stream to another, and events outside of all graphs
// that a graph records or waits for. The queue runs everything in launch order, so outside captures
// an event orders nothing that is not ordered already.
#include <algorithm>

#include "twin/entry.h"
#include "twin/state.h"

namespace pygraph::twin {
namespace {

CUresult add_event_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                        std::size_t count, CUevent event, CUgraphNodeType type) {
  const Lock lock;
  if (find(state().events, event) == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return add_node(graph, dependencies, count, EventWork{event, type}, node);
}

CUresult give_event(CUgraphNode node, CUevent* event, CUgraphNodeType type) {
  const Lock lock;
  const GraphNode* found = find(state().nodes, node);
  const auto* work = found == nullptr ? nullptr : std::get_if<EventWork>(&found->work);
  if (event == nullptr || work == nullptr || work->type != type) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *event = work->event;
  return CUDA_SUCCESS;
}

/// What waiting for an event that was recorded in a capture does to `stream`.
CUresult join(Stream& stream, const Event& event) {
  Stream* origin = nullptr;
  for (auto& [handle, other] : state().streams) {
    if (other.capture == event.capture && other.origin) {
      origin = &other;
    }
  }
  if (origin == nullptr) {
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  if (stream.status == CU_STREAM_CAPTURE_STATUS_NONE) {
    stream.status = origin->status;
    stream.mode = origin->mode;
    stream.thread = origin->thread;
    stream.capture = origin->capture;
    stream.origin = false;
    stream.tails = event.tails;
    return CUDA_SUCCESS;
  }
  if (stream.capture != event.capture) {
    invalidate(stream);
    invalidate(*origin);
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  for (const CUgraphNode node : event.tails) {
    if (!reaches(stream.tails, node)) {
      stream.tails.push_back(node);
    }
  }
  return CUDA_SUCCESS;
}

/// Of an event that was recorded in a capture nobody can say that it has passed.
CUresult refuse_captured(CUevent event) {
  const Event* found = find(state().events, event);
  if (found == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  return found->captured ? CUDA_ERROR_CAPTURED_EVENT : CUDA_SUCCESS;
}

}  // namespace

namespace entry {

CUresult cuEventCreate(CUevent* event, unsigned int) {
  if (event == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Lock lock;
  *event = state().make_handle<CUevent>();
  state().events[*event];
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  const Lock lock;
  return state().events.erase(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecordWithFlags(CUevent handle, CUstream stream_handle, unsigned int flags) {
  const Lock lock;
  Event* event = find(state().events, handle);
  if (event == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  Stream* stream = capturing(stream_handle);
  const bool external = (flags & CU_EVENT_RECORD_EXTERNAL) != 0;
  if (stream == nullptr) {
    if (external) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *event = Event{};
    return CUDA_SUCCESS;
  }
  if (external) {
    return put(stream_handle, EventWork{handle, CU_GRAPH_NODE_TYPE_EVENT_RECORD});
  }
  if (stream->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) {
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  *event = Event{stream->capture, stream->tails, true};
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  return entry::cuEventRecordWithFlags(event, stream, 0);
}

// The queue runs all that was launched, in order: an event has passed when nothing is left in it.
CUresult cuEventQuery(CUevent event) {
  const Lock lock;
  if (const CUresult code = refuse_captured(event); code != CUDA_SUCCESS) {
    return code;
  }
  return state().queue.empty() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
  {
    const Lock lock;
    if (const CUresult code = refuse_captured(event); code != CUDA_SUCCESS) {
      return code;
    }
  }
  return drain();
}

/// The twin's clock says nothing of a GPU's.
CUresult cuEventElapsedTime(float*, CUevent, CUevent) { return CUDA_ERROR_NOT_SUPPORTED; }

CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned int flags) {
  const Lock lock;
  const Event* event = find(state().events, handle);
  if (event == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  Stream* stream = capturing(stream_handle);
  if ((flags & CU_EVENT_WAIT_EXTERNAL) != 0) {
    return stream == nullptr ? CUDA_ERROR_INVALID_VALUE
                             : put(stream_handle, EventWork{handle, CU_GRAPH_NODE_TYPE_WAIT_EVENT});
  }
  if (event->capture == nullptr) {
    if (event->captured) {
      return CUDA_ERROR_CAPTURED_EVENT;  // of a capture that has ended
    }
    if (stream != nullptr) {  // a dependency on work outside the capture
      invalidate(*stream);
      return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    return CUDA_SUCCESS;
  }
  Stream* joining = find(state().streams, stream_handle);
  return joining == nullptr ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : join(*joining, *event);
}

CUresult cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph,
                                   const CUgraphNode* dependencies, std::size_t count,
                                   CUevent event) {
  return add_event_node(node, graph, dependencies, count, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                 std::size_t count, CUevent event) {
  return add_event_node(node, graph, dependencies, count, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* event) {
  return give_event(node, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
}

CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* event) {
  return give_event(node, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
}

}  // namespace entry
}  // namespace pygraph::twin
