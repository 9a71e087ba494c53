#include "staging.h"

#include <Python.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "call_scope.h"
#include "pygraph/layout.h"
#include "tensor_program.h"

namespace pygraph::torch_bridge {
namespace {

/// Never destroyed: the driver may be gone by then.
std::map<std::pair<bool, int>, Staging>& all() {
  static auto& instance = *new std::map<std::pair<bool, int>, Staging>;
  return instance;
}

std::uint64_t span_of(std::span<const Staging::Piece> pieces) {
  return pieces.back().device + pieces.back().bytes - pieces.front().device;
}

}  // namespace

Staging& staging_of(const Driver& driver, bool twin, int index) {
  return all().try_emplace({twin, index}, driver).first->second;
}

void release_staging() noexcept {
  for (auto& [device, staging] : all()) {
    staging.release();
  }
}

void Staging::release() noexcept {
  if (std::any_of(slots_.begin(), slots_.end(),
                  [](const Slot& slot) { return slot.readers != 0; })) {
    return;  // another thread is in a call
  }
  for (const Slot& slot : slots_) {
    if (!Driver::in_forked_child()) {
      driver_->api.cuEventSynchronize(slot.passed.get());
      driver_->api.cuMemFreeHost(slot.memory);
    }
  }
  slots_.clear();
  current_ = 0;
  read_.reset();
}

bool Staging::idle(const Slot& slot) const {
  if (slot.readers != 0) {
    return false;
  }
  const CUresult code = driver_->api.cuEventQuery(slot.passed.get());
  if (code != CUDA_ERROR_NOT_READY) {
    driver_->check(code, "cuEventQuery", "a staging slot");
  }
  return code == CUDA_SUCCESS;
}

Staging::Slot& Staging::new_slot() {
  CUevent event = nullptr;
  driver_->check(driver_->api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate",
                 "a staging slot");
  EventHandle passed(*driver_, event);
  void* memory = nullptr;
  const CUresult code = driver_->api.cuMemAllocHost(&memory, kSlotBytes);
  if (code == CUDA_ERROR_OUT_OF_MEMORY) {
    throw MemoryShort("no pinned memory for values that cross between host and device");
  }
  driver_->check(code, "cuMemAllocHost", "a staging slot");
  current_ = slots_.size();
  return slots_.emplace_back(Slot{static_cast<char*>(memory), std::move(passed), nullptr, 0, 0});
}

/// A slot with room for so many bytes at `used`, whose event comes behind this stream's copies
/// alone. Slots are used in a round.
Staging::Slot& Staging::slot_with(std::size_t bytes, CUstream stream) {
  if (!slots_.empty()) {
    Slot& current = slots_[current_];
    if (current.stream == stream && current.used + bytes <= kSlotBytes) {
      return current;
    }
  }
  const Relaxed relaxed(*driver_);  // others may be capturing
  for (std::size_t step = 1; step <= slots_.size(); ++step) {
    const std::size_t index = (current_ + step) % slots_.size();
    if (idle(slots_[index])) {
      current_ = index;
      slots_[index].used = 0;
      slots_[index].stream = stream;
      return slots_[index];
    }
  }
  const bool all_read =
      std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.readers != 0; });
  if (slots_.size() < kMostSlots || all_read) {
    Slot& made = new_slot();
    made.stream = stream;
    return made;
  }
  do {
    current_ = (current_ + 1) % slots_.size();
  } while (slots_[current_].readers != 0);
  Slot& oldest = slots_[current_];
  driver_->check(driver_->api.cuEventSynchronize(oldest.passed.get()), "cuEventSynchronize",
                 "a staging slot");
  oldest.used = 0;
  oldest.stream = stream;
  return oldest;
}

void Staging::bring(std::span<const Piece> pieces, CUstream stream) {
  if (pieces.empty()) {
    return;
  }
  const std::uint64_t total = span_of(pieces);
  const auto directly = [this](const Piece& piece) { return is_worth_waiting(piece); };
  if (total > kSlotBytes || std::any_of(pieces.begin(), pieces.end(), directly)) {
    for (const Piece& piece : pieces) {
      bring_piecewise(piece, stream);
    }
    return;
  }
  Slot& slot = slot_with(total, stream);
  char* const start = slot.memory + slot.used;
  for (const Piece& piece : pieces) {
    std::memcpy(start + (piece.device - pieces.front().device), piece.host, piece.bytes);
  }
  driver_->check(driver_->api.cuMemcpyHtoDAsync(pieces.front().device, start, total, stream),
                 "cuMemcpyHtoDAsync", "arguments on the host");
  slot.used += round_up(total, kAlignment);
  driver_->check(driver_->api.cuEventRecord(slot.passed.get(), stream), "cuEventRecord",
                 "a staging slot");
}

/// Whether a piece is in pinned memory, and so large that it is taken from there.
bool Staging::is_worth_waiting(const Piece& piece) const noexcept {
  if (piece.bytes < kWorthWaiting) {
    return false;
  }
  unsigned int type = 0;  // of memory that the driver does not know, it says that it does not
  const CUresult code =
      driver_->api.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                         reinterpret_cast<CUdeviceptr>(piece.host));  // NOLINT
  return code == CUDA_SUCCESS && type == CU_MEMORYTYPE_HOST;
}

void Staging::bring_directly(const Piece& piece, CUstream stream) {
  if (!read_) {
    CUevent event = nullptr;
    driver_->check(driver_->api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate",
                   "an argument on the host");
    read_ = EventHandle(*driver_, event);
  }
  unsettled_ = true;
  driver_->check(driver_->api.cuMemcpyHtoDAsync(piece.device, piece.host, piece.bytes, stream),
                 "cuMemcpyHtoDAsync", "an argument on the host");
  driver_->check(driver_->api.cuEventRecord(read_.get(), stream), "cuEventRecord",
                 "an argument on the host");
}

void Staging::settle() noexcept {
  if (!std::exchange(unsettled_, false)) {
    return;
  }
  const CUevent read = read_.get();
  Py_BEGIN_ALLOW_THREADS;
  driver_->api.cuEventSynchronize(read);
  Py_END_ALLOW_THREADS;
}

void Staging::bring_piecewise(const Piece& piece, CUstream stream) {
  if (is_worth_waiting(piece)) {
    bring_directly(piece, stream);
    return;
  }
  for (std::uint64_t done = 0; done < piece.bytes; done += kSlotBytes) {
    const Piece part{static_cast<char*>(piece.host) + done, piece.device + done,
                     std::min<std::uint64_t>(piece.bytes - done, kSlotBytes)};
    bring({&part, 1}, stream);
  }
}

void Staging::fetch(std::span<const Piece> pieces, CUstream stream) {
  if (pieces.empty()) {
    return;
  }
  std::uint64_t staged = 0;
  const auto is_small = [&](const Piece& piece) {
    return staged + piece.bytes <= kSlotBytes;  // not more than a slot in all
  };
  for (const Piece& piece : pieces) {
    staged += is_small(piece) ? round_up(piece.bytes, kAlignment) : 0;
  }
  try {
    slot_with(std::min<std::uint64_t>(staged, kSlotBytes), stream);
  } catch (const MemoryShort&) {  // the device copies to memory that is not pinned, too
    fetch_directly(pieces, stream);
    return;
  }
  const std::size_t index = current_;
  Slot& slot = slots_[index];
  char* const start = slot.memory + slot.used;
  staged = 0;
  std::vector<std::pair<const Piece*, std::uint64_t>> waiting;
  waiting.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    void* to = piece.host;
    if (is_small(piece)) {
      to = start + staged;
      waiting.emplace_back(&piece, staged);
      staged += round_up(piece.bytes, kAlignment);
    }
    copy_to_host(to, piece, stream);
  }
  slot.used += staged;
  const CUevent passed = slot.passed.get();
  driver_->check(driver_->api.cuEventRecord(passed, stream), "cuEventRecord", "a staging slot");
  ++slot.readers;
  CUresult code = CUDA_SUCCESS;
  Py_BEGIN_ALLOW_THREADS;
  code = driver_->api.cuEventSynchronize(passed);
  if (code == CUDA_SUCCESS) {
    for (const auto& [piece, offset] : waiting) {
      std::memcpy(piece->host, start + offset, piece->bytes);
    }
  }
  Py_END_ALLOW_THREADS;
  --slots_[index].readers;
  driver_->check(code, "cuEventSynchronize", "results on the host");
}

void Staging::fetch_directly(std::span<const Piece> pieces, CUstream stream) const {
  for (const Piece& piece : pieces) {
    copy_to_host(piece.host, piece, stream);
  }
  CUresult code = CUDA_SUCCESS;
  Py_BEGIN_ALLOW_THREADS;
  code = driver_->api.cuStreamSynchronize(stream);
  Py_END_ALLOW_THREADS;
  driver_->check(code, "cuStreamSynchronize", "results on the host");
}

void Staging::copy_to_host(void* to, const Piece& piece, CUstream stream) const {
  driver_->check(driver_->api.cuMemcpyDtoHAsync(to, piece.device, piece.bytes, stream),
                 "cuMemcpyDtoHAsync", "a result on the host");
}

}  // namespace pygraph::torch_bridge
