#include "tensor_program.h"

#include "call_scope.h"
#include "peer_streams.h"
#include "python_ref.h"
#include "random_state.h"
#include "staging.h"
#include "timeline.h"
#include "workspaces.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "pygraph/layout.h"

namespace pygraph::torch_bridge {
namespace {

/// A number on the host is read and written as `value`.
template <typename Spec>
void require_small(const Spec& spec, bool is_number) {
  if (is_number && spec.bytes > sizeof spec.value) {
    throw std::invalid_argument(fmt::format(
        "a number on the host has {} bytes; at most {} are served", spec.bytes, sizeof spec.value));
  }
}

void require_computable(const ArgumentSpec& spec) {
  const std::uint64_t bytes = spec.computed.size() * sizeof(double);
  if (bytes != 0 && bytes != spec.bytes) {
    throw std::invalid_argument(fmt::format("{} numbers are computed for an argument of {} bytes",
                                            spec.computed.size(), spec.bytes));
  }
}

/// Whether a staged argument is to be brought to the device.
bool is_on_host(const TorchApi& api, PyObject* argument) noexcept {
  return PyLong_CheckExact(argument) || api.on_cpu(argument);
}

/// Callers do not look at the memory of every argument: its storage may have been freed.
void require_memory(const ArgumentSpec& spec, CUdeviceptr address, std::size_t index) {
  if (address == 0 && spec.bytes != 0) [[unlikely]] {
    throw CallRefused(fmt::format("argument {} has no memory", index));
  }
}

/// The twin runs what was launched when it is waited for. A wait that was refused has run nothing,
/// and launched work must not stay behind: it is waited for once more.
void finish_on_twin(const Driver& driver, CUstream stream) {
  const CUresult code = driver.api.cuStreamSynchronize(stream);
  if (code == CUDA_SUCCESS) {
    return;
  }
  const CUresult again = driver.api.cuStreamSynchronize(stream);
  const bool ran = code == CUDA_ERROR_LAUNCH_FAILED || code == CUDA_ERROR_ILLEGAL_ADDRESS ||
                   code == CUDA_ERROR_MISALIGNED_ADDRESS;
  driver.check(ran ? code : again, "cuStreamSynchronize", "the launched graph");
}

/// Memory of the twin is the host's, given back at once and not in stream order: whichever way a
/// call ends, nothing of it may still be queued when its memory goes.
class NothingQueued {
 public:
  NothingQueued(const Driver& driver, TensorProgram::Device device, CUstream stream)
      : driver_(device == TensorProgram::Device::kTwin ? &driver : nullptr), stream_(stream) {}
  ~NothingQueued() {
    if (driver_ != nullptr && driver_->api.cuStreamSynchronize(stream_) != CUDA_SUCCESS) {
      driver_->api.cuStreamSynchronize(stream_);  // the first may have been refused
    }
  }
  NothingQueued(const NothingQueued&) = delete;
  NothingQueued& operator=(const NothingQueued&) = delete;

 private:
  const Driver* driver_;
  CUstream stream_;
};

/// Whichever way a call ends, the caller's memory is its own again.
class Settled {
 public:
  explicit Settled(Staging* staging) noexcept : staging_(staging) {}
  ~Settled() {
    if (staging_ != nullptr) {
      staging_->settle();
    }
  }
  Settled(const Settled&) = delete;
  Settled& operator=(const Settled&) = delete;

 private:
  Staging* staging_;
};

}  // namespace

/// An argument that this call replaces by a copy: less aligned than what was captured (`copy` owns
/// the memory), or of the kind that is always copied.
struct TensorProgram::Borrowed {
  std::size_t index;
  OwnedTensor copy;
  CUdeviceptr original;
  CUdeviceptr replacement;
  std::uint64_t bytes;
  bool mutated;
};

TensorProgram::TensorProgram(Specification given)
    : driver_(&given.driver),
      program_(std::move(given.program)),
      device_(given.device),
      device_index_(given.device_index),
      peers_(std::move(given.peers)),
      arguments_(std::move(given.arguments)),
      blocks_(std::move(given.blocks)),
      results_(std::move(given.results)),
      fetched_(std::move(given.fetched)),
      unwritten_(std::move(given.unwritten)),
      whole_of_block_(blocks_.size(), -1),
      arena_(std::move(given.arena)),
      random_(given.random.generator == nullptr
                  ? nullptr
                  : std::make_unique<RandomState>(*driver_, device_, arguments_,
                                                  std::move(given.random))),
      numbers_(std::move(given.numbers)) {
  driver_->check(driver_->api.cuCtxGetCurrent(&context_), "cuCtxGetCurrent");
  for (const FetchedResult& fetched : fetched_) {
    if (fetched.index >= results_.size()) {
      throw std::invalid_argument(
          fmt::format("result {} is fetched; there are {}", fetched.index, results_.size()));
    }
  }
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    require_small(arguments_[i], arguments_[i].kind == ArgumentSpec::Kind::kNumber);
    plain_.push_back(arguments_[i].is_plain() ? arguments_[i].region : kNoRegion);
    writes_arguments_ = writes_arguments_ || arguments_[i].mutated;
    has_static_memory_ = has_static_memory_ || (arguments_[i].kind == ArgumentSpec::Kind::kCopied &&
                                                arguments_[i].bytes != 0);
    if (arguments_[i].staged) {
      staged_.push_back(i);
    }
    require_computable(arguments_[i]);
    computed_ += arguments_[i].computed.size();
    for (const Formula& formula : arguments_[i].computed) {
      note_formula(formula);
    }
  }
  note_numbers();
  has_static_memory_ =
      has_static_memory_ || std::any_of(blocks_.begin(), blocks_.end(),
                                        [](const OutputBlock& block) { return block.source != 0; });
  for (const ResultSpec& result : results_) {
    require_small(result, result.kind == ResultSpec::Kind::kNumber);
  }
  for (std::size_t i = 0; i < results_.size(); ++i) {
    Py_XINCREF(results_[i].object);
    if (results_[i].kind == ResultSpec::Kind::kWhole) {
      whole_of_block_[results_[i].index] = static_cast<std::int32_t>(i);
    }
  }
}

TensorProgram::~TensorProgram() {
  for (const ResultSpec& result : results_) {
    Py_XDECREF(result.object);
  }
}

int TensorProgram::traverse(visitproc visit, void* arg) const {
  for (const ResultSpec& result : results_) {
    Py_VISIT(result.object);
  }
  return random_ == nullptr ? 0 : random_->traverse(visit, arg);
}

CallScope TensorProgram::scope() const { return {*driver_, device_, device_index_, context_}; }

void TensorProgram::copy(CUdeviceptr to, CUdeviceptr from, std::uint64_t bytes,
                         CUstream stream) const {
  driver_->check(driver_->api.cuMemcpyDtoDAsync(to, from, bytes, stream), "cuMemcpyDtoDAsync",
                 fmt::format("{} bytes of an argument or output", bytes));
}

void TensorProgram::fill(CUdeviceptr to, int value, std::uint64_t bytes, CUstream stream) const {
  if (value >= 0 && bytes != 0) {
    driver_->check(
        driver_->api.cuMemsetD8Async(to, static_cast<unsigned char>(value), bytes, stream),
        "cuMemsetD8Async", "the arena or an output");
  }
}

/// A call that sees a copy in place of argument `index` must not tell: where the argument shares
/// memory with one that the graph writes, or is written and shares memory with any, it would.
void TensorProgram::refuse_visible_copy(const Arguments& arguments, std::size_t index) const {
  if (!writes_arguments_) {
    return;
  }
  const TorchApi& api = torch_api();
  const CUdeviceptr first = address_of(api.data(arguments[index]));
  const CUdeviceptr start = first - arguments_[index].front;
  const CUdeviceptr end = first + arguments_[index].bytes;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    const ArgumentSpec& other = arguments_[i];
    if (i == index || other.bytes == 0 || other.staged ||
        !(other.mutated || arguments_[index].mutated)) {
      continue;
    }
    const CUdeviceptr address = address_of(api.data(arguments[i]));
    if (address - other.front < end && start < address + other.bytes) {
      throw CallRefused(fmt::format(
          "argument {} would be copied, and shares memory that is written with argument {}", index,
          i));
    }
  }
}

/// Brings the arguments that are on the host to the device, in a block that the call owns.
/// A call whose copies fill static memory, or read it behind the launch: it waits for the last one
/// of its program, which may be on another stream.
class TensorProgram::InTurn {
 public:
  InTurn(TensorProgram& program, CUstream stream)
      : program_(program.has_static_memory_ ? &program : nullptr), stream_(stream) {
    if (program_ == nullptr) [[likely]] {
      return;
    }
    const Driver& driver = *program.driver_;
    if (program.last_call_) {
      driver.check(driver.api.cuStreamWaitEvent(stream, program.last_call_.get(), 0),
                   "cuStreamWaitEvent", "the call before");
      return;
    }
    CUevent event = nullptr;
    driver.check(driver.api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate",
                 "calls in turn");
    program.last_call_ = EventHandle(driver, event);
  }
  ~InTurn() {
    if (program_ == nullptr) [[likely]] {
      return;
    }
    const DriverApi& api = program_->driver_->api;
    if (api.cuEventRecord(program_->last_call_.get(), stream_) != CUDA_SUCCESS) {
      api.cuStreamSynchronize(stream_);
    }
  }
  InTurn(const InTurn&) = delete;
  InTurn& operator=(const InTurn&) = delete;

 private:
  TensorProgram* program_;
  CUstream stream_;
};

OwnedTensor TensorProgram::stage(const Arguments& arguments, Staging& staging, CUstream stream) {
  const TorchApi& api = torch_api();
  std::vector<std::int64_t> integers(staged_.size());
  std::vector<double> computed;
  computed.reserve(computed_);  // pieces point into it
  const auto number = [&](std::uint32_t index) { return formula_number(arguments, index); };
  std::vector<Staging::Piece> pieces;
  std::vector<std::uint32_t> regions;
  pieces.reserve(staged_.size());
  regions.reserve(staged_.size());
  std::uint64_t total = 0;
  for (std::size_t n = 0; n < staged_.size(); ++n) {
    PyObject* argument = arguments[staged_[n]];
    const ArgumentSpec& spec = arguments_[staged_[n]];
    if (!is_on_host(api, argument)) {
      continue;
    }
    void* host = &integers[n];
    if (PyLong_CheckExact(argument)) {
      int overflow = 0;  // accepts() has looked
      integers[n] = PyLong_AsLongLongAndOverflow(argument, &overflow);
    } else if (!spec.computed.empty()) {
      host = computed.data() + computed.size();
      for (const Formula& formula : spec.computed) {
        computed.push_back(formula.evaluate(number));
      }
    } else {
      host = api.data(argument);
      require_memory(spec, address_of(host), staged_[n]);
    }
    pieces.push_back({host, total, spec.bytes});
    regions.push_back(spec.region);
    total += round_up(spec.bytes, Staging::kAlignment);
    statistics_.bytes_staged += spec.bytes;
  }
  if (pieces.empty()) {
    return {};
  }
  OwnedTensor block = bytes(total);
  const CUdeviceptr start = data_of(block);
  for (std::size_t n = 0; n < pieces.size(); ++n) {
    pieces[n].device += start;
    program_.bind(regions[n], pieces[n].device);
  }
  staging.bring(pieces, stream);
  return block;
}

void TensorProgram::bind_arguments(const Arguments& arguments, const Trial& trial, CUstream stream,
                                   std::vector<Borrowed>& borrowed, PeerStreams& peers) {
  const TorchApi& api = torch_api();
  const auto borrow = [&](Borrowed argument) {
    peers.join();
    copy(argument.replacement, argument.original, argument.bytes, stream);
    statistics_.bytes_copied += argument.bytes;
    ++statistics_.copies;
    borrowed.push_back(std::move(argument));
  };
  const auto hint = [&](std::size_t i, auto prefetch) {
    if (i < plain_.size() && plain_[i] != kNoRegion) {
      (api.*prefetch)(arguments[i]);
    }
  };
  bool patient = false;
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    hint(i + 2 * kPrefetchDistance, &TorchApi::prefetch_tensor);
    hint(i + kPrefetchDistance, &TorchApi::prefetch_storage);
    CUdeviceptr address = 0;
    if (plain_[i] != kNoRegion) {
      address = address_of(api.data(arguments[i]));
      if (address == program_.bound(plain_[i])) [[likely]] {
        continue;
      }
    }
    const ArgumentSpec& spec = arguments_[i];
    if (spec.kind == ArgumentSpec::Kind::kPatched) {
      if (plain_[i] == kNoRegion) {
        if (spec.staged && is_on_host(api, arguments[i])) {
          continue;
        }
        address = address_of(api.data(arguments[i]));
        if (address == program_.bound(spec.region)) {
          continue;
        }
      }
      require_memory(spec, address, i);
      if (spec.copied_to != 0 && stream == nullptr && trial.poison < 0) [[unlikely]] {
        program_.bind(spec.region, spec.copied_to);
        borrow({i, OwnedTensor(), address, spec.copied_to, spec.bytes, false});
        continue;
      }
      if ((address & spec.alignment_mask) == 0) [[likely]] {
        program_.bind(spec.region, address);
        continue;
      }
      if (trial.poison < 0 && spec.less_aligned(address)) {
        if (patience_ == 0) {
          throw CallRefused(fmt::format("argument {} is less aligned than captured", i));
        }
        patient = true;
      }
      refuse_visible_copy(arguments, i);
      const std::uint64_t front = round_up(spec.front, kArenaAlignment);
      OwnedTensor aligned = bytes(front + spec.bytes, spec.device);
      const CUdeviceptr replacement = data_of(aligned) + front;
      program_.bind(spec.region, replacement);
      borrow({i, std::move(aligned), address - spec.front, replacement - spec.front,
              spec.front + spec.bytes, spec.mutated});
    } else if (spec.kind == ArgumentSpec::Kind::kCopied && spec.bytes != 0) {
      refuse_visible_copy(arguments, i);
      address = address_of(api.data(arguments[i]));
      require_memory(spec, address, i);
      borrow({i, OwnedTensor(), address, spec.address, spec.bytes, spec.mutated});
    }
  }
  patience_ -= patient && patience_ > 0 ? 1 : 0;
}

std::vector<std::size_t> TensorProgram::copyable() const {
  std::vector<std::size_t> nodes(arguments_.size());
  for (std::size_t i = 0; i < arguments_.size() && !writes_arguments_ && peers_.empty(); ++i) {
    const ArgumentSpec& spec = arguments_[i];
    if (spec.kind == ArgumentSpec::Kind::kPatched && !spec.staged && !spec.guarded &&
        spec.front == 0 && spec.bytes != 0) {
      nodes[i] = program_.nodes_of(spec.region);
    }
  }
  return nodes;
}

void TensorProgram::copy_arguments(const std::vector<std::uint32_t>& indices) {
  const std::vector<std::size_t> nodes = copyable();
  for (const std::uint32_t index : indices) {
    if (index >= nodes.size() || nodes[index] == 0) {
      throw std::invalid_argument(fmt::format("argument {} cannot be copied", index));
    }
  }
  std::vector<OwnedTensor> copies;
  copies.reserve(indices.size());
  const CallScope scope = this->scope();
  for (const std::uint32_t index : indices) {
    copies.push_back(bytes(arguments_[index].bytes, arguments_[index].device));
  }
  for (ArgumentSpec& spec : arguments_) {
    spec.copied_to = 0;
  }
  for (std::size_t n = 0; n < indices.size(); ++n) {
    arguments_[indices[n]].copied_to = data_of(copies[n]);
  }
  copies_ = std::move(copies);
}

void TensorProgram::copy_behind(const std::vector<OwnedTensor>& blocks,
                                const std::vector<Borrowed>& borrowed, CUstream stream) const {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].regions.empty() && blocks_[i].bytes != 0) {
      copy(data_of(blocks[i]), blocks_[i].source, blocks_[i].bytes, stream);
    }
  }
  for (const Borrowed& argument : borrowed) {
    if (argument.mutated) {
      copy(argument.original, argument.replacement, argument.bytes, stream);
    }
  }
}

/// Takes the memory that `part` needs besides, and launches it.
void TensorProgram::run_part(std::uint32_t part, const Trial& trial, CUstream stream,
                             Workspaces& arena, std::vector<OwnedTensor>& blocks,
                             PeerStreams& peers) {
  Timeline::note(Layer::kAllocation, true);
  // The arena first: taken later, an output might sit in the only memory that is large enough.
  arena.take(part, trial, stream);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].first_part != part) {
      continue;
    }
    blocks[i] = allocate_block(i);
    const CUdeviceptr address = data_of(blocks[i]);
    fill(address, trial.poison, blocks_[i].bytes, stream);
    for (const OutputBlock::Placed& placed : blocks_[i].regions) {
      program_.bind(placed.region, address + placed.offset);
    }
  }
  Timeline::note(Layer::kLaunch, true);
  peers.join();
  program_.launch(part, stream);
}

/// Lets go of the arguments that no part behind `part` needs. What is freed by it is in use until
/// the parts launched so far have run, which is what torch's allocator takes for granted of memory
/// that is freed. An argument that a copy is written back to stays to the end.
void TensorProgram::let_go(const Arguments& arguments, std::uint32_t part,
                           const std::vector<Borrowed>& borrowed) const {
  if (arguments.given == nullptr) {
    return;
  }
  const auto written_back = [&](std::size_t index) {
    return std::any_of(borrowed.begin(), borrowed.end(), [index](const Borrowed& argument) {
      return argument.mutated && argument.index == index;
    });
  };
  for (std::size_t i = 0; i < arguments_.size(); ++i) {
    if (arguments_[i].spent_after == static_cast<std::int32_t>(part) && !written_back(i)) {
      arguments.let_go(i);
    }
  }
}

bool TensorProgram::Launched::stands() const noexcept { return turn == nullptr || turn->stands(); }

const LaunchLock& TensorProgram::lock() const noexcept {
  return random_ == nullptr ? lock_ : RandomState::lock();
}

TensorProgram::Launched TensorProgram::launch(const Arguments& arguments, Trial trial,
                                              LaunchLock::Held* held) {
  const CallScope scope = this->scope();
  const CUstream stream = scope.stream();
  std::vector<Borrowed> borrowed;
  Launched launched{std::vector<OwnedTensor>(blocks_.size())};
  std::vector<OwnedTensor>& blocks = launched.blocks;
  std::optional<Workspaces> arena;
  const NothingQueued on_leaving(*driver_, device_, stream);
  const InTurn in_turn(*this, stream);
  PeerStreams peers(*this, stream);

  Timeline::note(Layer::kBind, true);
  set_numbers(arguments);
  Staging* const staging =
      staged_.empty() ? nullptr : &staging_of(*driver_, device_ == Device::kTwin, device_index_);
  const Settled behind(staging);
  const OwnedTensor cells = staging == nullptr ? OwnedTensor() : stage(arguments, *staging, stream);
  bind_arguments(arguments, trial, stream, borrowed, peers);
  arena.emplace(*this);
  if (random_ != nullptr) {
    launched.turn = random_->set(arguments, program_, stream);
  }
  run_part(0, trial, stream, *arena, blocks, peers);
  ++statistics_.replays;
  try {
    const auto parts = static_cast<std::uint32_t>(program_.size());
    for (std::uint32_t part = 1; part < parts; ++part) {
      if (device_ == Device::kTwin) {
        finish_on_twin(*driver_, stream);
      }
      arena->give_back(part - 1);
      let_go(arguments, part - 1, borrowed);
      run_part(part, trial, stream, *arena, blocks, peers);
    }
    copy_behind(blocks, borrowed, stream);
    if (device_ == Device::kTwin) {
      finish_on_twin(*driver_, stream);
    }
    if (launched.turn != nullptr) {
      launched.turn->ran();
      if (writes_arguments_) {
        launched.turn->advance();  // it is a call whatever happens: no other may draw the same
      }
    }
  } catch (const MemoryShort& error) {
    throw MemoryShortAfterLaunch(error.what());
  } catch (const std::exception& error) {
    throw FailedAfterLaunch(error.what());
  }
  peers.leave();
  Timeline::note(Layer::kLaunch, false);
  if (held != nullptr && random_ == nullptr) {
    held->end();
  }
  return launched;
}

PyObject* TensorProgram::finish(const Arguments& arguments, const Launched& launched) const {
  Timeline::note(Layer::kResults, true);
  try {
    PythonRef results = PythonRef::stolen(make_results(arguments, launched.blocks));
    if (results && launched.turn != nullptr) {
      launched.turn->advance();
    }
    Timeline::note(Layer::kResults, false);
    return results.release();
  } catch (const MemoryShort& error) {
    throw MemoryShortAfterLaunch(error.what());
  } catch (const std::exception& error) {
    throw FailedAfterLaunch(error.what());
  }
}

}  // namespace pygraph::torch_bridge
