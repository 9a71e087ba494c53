// From work in C++ to a program, in one call.
//
// Work is a function that launches on a stream, with the addresses that it is handed. capture()
// runs it twice in stream captures, with all of its memory elsewhere in the second one, links the
// two (link.h) and returns a program that runs at any addresses:
//
//   CapturedWork gemm = capture(driver, stream, {in_bytes, out_bytes}, [&](CUstream on, auto& at) {
//     launch_gemm(on, at[1], at[0], at.scratch(workspace_bytes));
//   });
//   gemm.bind(std::array{in, out}, arena);  // `arena`: gemm.arena_bytes of device memory
//   gemm.program.launch(stream);
//
// Copies of results, host functions, host memory and numbers by value need link() itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <vector>

#include "pygraph/driver.h"
#include "pygraph/phantom.h"
#include "pygraph/program.h"
#include "pygraph/relocate.h"

namespace pygraph {

/// The memory of one run of some work: where its buffers are, and where its scratch comes from.
/// Valid while the work runs. Not thread-safe.
class WorkMemory {
 public:
  using Allocate = std::function<CUdeviceptr(std::size_t bytes)>;

  /// For a run without a capture, such as the one that loads all kernels: `allocate` gives memory
  /// that stays until the run is done.
  WorkMemory(std::vector<CUdeviceptr> buffers, Allocate allocate);

  /// Where buffer number `buffer` starts. Throws std::out_of_range.
  [[nodiscard]] CUdeviceptr operator[](std::size_t buffer) const { return buffers_.at(buffer); }

  /// `bytes` bytes, aligned to 512, that nobody needs once the work is done. Two captures of the
  /// same work ask for the same sizes in the same order.
  [[nodiscard]] CUdeviceptr scratch(std::size_t bytes) const { return allocate_(bytes); }

 private:
  std::vector<CUdeviceptr> buffers_;
  Allocate allocate_;
};

/// Puts all that it does on the given stream, or on streams that are forked from it and joined with
/// it again, and addresses no memory that moves but what it is handed. What it throws leaves
/// capture().
using Work = std::function<void(CUstream, const WorkMemory&)>;

/// A program for some work. Its regions are the buffers in the caller's order and, at `arena`, the
/// memory that all scratch was packed into. Not thread-safe: guard it. It owns none of the memory
/// that it is bound to. The driver must outlive it.
struct CapturedWork {
  Program program;
  std::size_t buffers;      ///< how many there are
  std::uint32_t arena;      ///< region of the program, to be bound to `arena_bytes` of memory
  std::size_t arena_bytes;  ///< may be 0: then nothing needs to be bound
  /// Addresses of device memory that are neither buffer nor scratch, the same in both captures:
  /// they stay as they are, and that memory must be there when the program runs.
  std::vector<ForeignWord> foreign;

  /// Binds buffer i to `addresses[i]`, and the arena, for launches to come. All are multiples of
  /// 512, as those are that the work was captured with: it may have chosen kernels by that. Throws
  /// std::invalid_argument where there are more or fewer addresses than buffers.
  void bind(std::span<const CUdeviceptr> addresses, CUdeviceptr arena_address);
};

/// The program did not do what the work does. what() says where that was seen.
class ProofFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct CaptureOptions {
  bool share_scratch = true;           ///< see LinkOptions
  PhantomSpace::Options phantom = {};  ///< how much the buffers and scratch together may be
  /// Device memory to prove the program in: any number of sets, each with an address per buffer,
  /// whose bytes are what the work is to run on. At each set the work runs as it is, and then the
  /// program on the same bytes, with poison in its arena and in all memory that it was captured
  /// with; what they leave in the buffers must be equal, byte by byte. Work that has another result
  /// each time (float atomics) cannot be proven like this. The sets hold results afterwards. None:
  /// no proof.
  std::vector<std::vector<CUdeviceptr>> proof = {};
};

/// Captures `work`, whose buffers have the given sizes in bytes, twice on `stream`, and links it.
/// Nothing runs, and no memory of those sizes is needed, unless a proof is asked for. Needs a
/// current context, that of the stream. The work must have run before, for a capture can neither
/// load modules nor make handles of libraries; while it is captured it must not wait for the
/// device.
///
/// Synchronous. `stream` is nobody else's meanwhile. Calls on different streams may run side by
/// side, but no other capture beside a proof, which waits for the whole context. Afterwards,
/// whatever happened, the stream is not capturing and all that was made for the captures is gone.
///
/// Throws std::invalid_argument for no work, for a stream that cannot be captured (the default one,
/// or one that is capturing) and for a proof with another number of addresses; UnsupportedGraph,
/// which names the node, what was found and what is needed, where the captures do not describe the
/// same work, hold what cannot be relocated, or are empty, and where a buffer is smaller than what
/// is copied or filled there; DriverError, also where a stream was not joined; std::length_error
/// where phantom memory is full; ProofFailed; what `work` throws.
CapturedWork capture(const Driver& driver, CUstream stream, const std::vector<std::size_t>& buffers,
                     const Work& work, const CaptureOptions& options = {});

}  // namespace pygraph
