// The streams of a graph's peers: a graph that works on several devices is launched on one stream,
// of its own device, and stands in the order of all of them.
#pragma once

#include "tensor_program.h"

namespace pygraph::torch_bridge {

/// For one call: what the launch stream is given behind join() runs behind all that the current
/// streams of the peers were given before it, and what these are given behind leave(), which is
/// called in the end whatever happens, runs behind all that the launch stream was given.
class TensorProgram::PeerStreams {
 public:
  PeerStreams(TensorProgram& program, CUstream stream) noexcept
      : program_(program), stream_(stream) {}
  ~PeerStreams() { leave(); }
  PeerStreams(const PeerStreams&) = delete;
  PeerStreams& operator=(const PeerStreams&) = delete;

  /// Behind the allocations of what follows: memory is free behind what its stream was given.
  /// Throws DriverError, std::runtime_error.
  void join() {
    if (!program_.peers_.empty()) [[unlikely]] {
      join_all();
    }
  }

  /// Where a peer cannot be told, waits for the end of all that was launched.
  void leave() noexcept {
    if (joined_) [[unlikely]] {
      leave_all();
    }
  }

 private:
  void join_all();
  void leave_all() noexcept;
  void make_events();

  TensorProgram& program_;
  CUstream stream_;
  bool joined_ = false;
};

}  // namespace pygraph::torch_bridge
