// An event and the stream that it is recorded in must be of one context, and a default stream is
// that of the current one (CUDA driver API, cuEventRecord; Stream Management).
#include "peer_streams.h"

namespace pygraph::torch_bridge {
namespace {

/// Makes a context current, and another one when it goes.
class Current {
 public:
  Current(const Driver& driver, CUcontext context, CUcontext afterwards)
      : driver_(driver), afterwards_(afterwards) {
    driver.check(driver.api.cuCtxSetCurrent(context), "cuCtxSetCurrent");
  }
  ~Current() { driver_.api.cuCtxSetCurrent(afterwards_); }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Driver& driver_;
  CUcontext afterwards_;
};

EventHandle make_event(const Driver& driver) {
  CUevent event = nullptr;
  driver.check(driver.api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate",
               "the streams of several devices");
  return {driver, event};
}

CUstream stream_of(const Peer& peer) {
  void* stream = nullptr;
  require(torch_api().current_stream(peer.index, &stream), "current stream");
  return static_cast<CUstream>(stream);
}

}  // namespace

void TensorProgram::PeerStreams::make_events() {
  const Driver& driver = *program_.driver_;
  if (!program_.departure_) {
    program_.departure_ = make_event(driver);
  }
  while (program_.arrivals_.size() < program_.peers_.size()) {
    const Peer& peer = program_.peers_[program_.arrivals_.size()];
    const Current there(driver, peer.context, program_.context_);
    program_.arrivals_.push_back(make_event(driver));
  }
}

void TensorProgram::PeerStreams::join_all() {
  const Driver& driver = *program_.driver_;
  make_events();
  for (std::size_t i = 0; i < program_.peers_.size(); ++i) {
    const Peer& peer = program_.peers_[i];
    const CUevent arrival = program_.arrivals_[i].get();
    {
      const Current there(driver, peer.context, program_.context_);
      driver.check(driver.api.cuEventRecord(arrival, stream_of(peer)), "cuEventRecord",
                   "the stream of another device");
    }
    driver.check(driver.api.cuStreamWaitEvent(stream_, arrival, 0), "cuStreamWaitEvent",
                 "the stream of another device");
  }
  joined_ = true;
}

void TensorProgram::PeerStreams::leave_all() noexcept {
  joined_ = false;
  const DriverApi& api = program_.driver_->api;
  const CUevent departure = program_.departure_.get();
  bool told = api.cuEventRecord(departure, stream_) == CUDA_SUCCESS;
  for (const Peer& peer : program_.peers_) {
    void* stream = nullptr;
    told = told && torch_api().current_stream(peer.index, &stream) == 0 &&
           api.cuCtxSetCurrent(peer.context) == CUDA_SUCCESS &&
           api.cuStreamWaitEvent(static_cast<CUstream>(stream), departure, 0) == CUDA_SUCCESS;
  }
  api.cuCtxSetCurrent(program_.context_);
  if (!told) {
    api.cuStreamSynchronize(stream_);
  }
}

}  // namespace pygraph::torch_bridge
