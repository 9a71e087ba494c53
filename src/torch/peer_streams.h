// The streams of a graph's peers: a graph that works on several devices is launched on one stream,
// of its own device, and stands in the order of all of them.
#pragma once

#include "tensor_program.h"

namespace pygraph::torch_bridge {

/// For one call: what the launch stream is given behind join() runs behind all that the current
/// streams of the peers were given before it, and what these are given behind leave(), which is
/// called in the end whatever happens, runs behind all that the launch stream was given.
///
/// An event and the stream that it is recorded in must be of one context, and a default stream is
/// that of the current one (CUDA driver API, cuEventRecord; Stream Management).
class TensorProgram::PeerStreams {
 public:
  PeerStreams(TensorProgram& program, CUstream stream) noexcept
      : program_(program), stream_(stream) {}
  ~PeerStreams() { leave(); }
  PeerStreams(const PeerStreams&) = delete;
  PeerStreams& operator=(const PeerStreams&) = delete;

  /// Behind the allocations of what follows: memory is free behind what its stream was given.
  void join() {
    if (program_.peers_.empty()) [[likely]] {
      return;
    }
    const Driver& driver = *program_.driver_;
    make_events();
    for (std::size_t i = 0; i < program_.peers_.size(); ++i) {
      const CUevent arrival = program_.arrivals_[i].get();
      {
        const Current peer(program_, program_.peers_[i].context);
        driver.check(driver.api.cuEventRecord(arrival, stream_of(i)), "cuEventRecord",
                     "the stream of another device");
      }
      driver.check(driver.api.cuStreamWaitEvent(stream_, arrival, 0), "cuStreamWaitEvent",
                   "the stream of another device");
    }
    joined_ = true;
  }

  /// Where a peer cannot be told, the caller waits for the end of all that was launched.
  void leave() noexcept {
    if (!joined_) {
      return;
    }
    joined_ = false;
    const DriverApi& api = program_.driver_->api;
    bool told = api.cuEventRecord(program_.departure_.get(), stream_) == CUDA_SUCCESS;
    for (const Peer& peer : program_.peers_) {
      void* stream = nullptr;
      told = told && torch_api().current_stream(peer.index, &stream) == 0 &&
             api.cuCtxSetCurrent(peer.context) == CUDA_SUCCESS &&
             api.cuStreamWaitEvent(static_cast<CUstream>(stream), program_.departure_.get(), 0) ==
                 CUDA_SUCCESS;
    }
    api.cuCtxSetCurrent(program_.context_);
    if (!told) {
      api.cuStreamSynchronize(stream_);
    }
  }

 private:
  /// Makes a context current.
  class Current {
   public:
    Current(const TensorProgram& program, CUcontext context) : program_(program) {
      const Driver& driver = *program.driver_;
      driver.check(driver.api.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    }
    ~Current() { program_.driver_->api.cuCtxSetCurrent(program_.context_); }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const TensorProgram& program_;
  };

  void make_events() {
    const Driver& driver = *program_.driver_;
    const auto make = [&] {
      CUevent event = nullptr;
      driver.check(driver.api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate",
                   "the streams of several devices");
      return EventHandle(driver, event);
    };
    if (!program_.departure_) {
      program_.departure_ = make();
    }
    while (program_.arrivals_.size() < program_.peers_.size()) {
      const Current peer(program_, program_.peers_[program_.arrivals_.size()].context);
      program_.arrivals_.push_back(make());
    }
  }

  [[nodiscard]] CUstream stream_of(std::size_t peer) const {
    void* stream = nullptr;
    require(torch_api().current_stream(program_.peers_[peer].index, &stream), "current stream");
    return static_cast<CUstream>(stream);
  }

  TensorProgram& program_;
  CUstream stream_;
  bool joined_ = false;
};

}  // namespace pygraph::torch_bridge
