// The scratch memory of one call.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "call_scope.h"
#include "tensor_program.h"

namespace pygraph::torch_bridge {

/// A piece of the arena for one call, back with the allocator when the call returns: torch gives
/// memory out again in stream order, so on the device the launched graph still owns it.
class TensorProgram::Workspace {
 public:
  Workspace(const TensorProgram& call, std::uint64_t bytes, std::uint64_t displace,
            std::int32_t device) {
    if (call.device_ == Device::kTwin) {
      host_ = call.bytes(bytes + displace);
      address_ = data_of(host_) + displace;
      return;
    }
    std::optional<DeviceGuard> there;
    if (device != kOwnDevice) {
      there.emplace(device);
    }
    if (torch_api().raw_alloc(bytes + displace, &raw_) != 0) {
      throw MemoryShort(fmt::format("no memory for an arena of {} bytes{}", bytes,
                                    call.arena_.pieces.size() > 1 ? " (one of several)" : ""));
    }
    address_ = address_of(raw_) + displace;
  }
  ~Workspace() {
    if (raw_ != nullptr) {
      torch_api().raw_delete(raw_);
    }
  }
  Workspace(Workspace&& other) noexcept
      : raw_(std::exchange(other.raw_, nullptr)),
        host_(std::move(other.host_)),
        address_(other.address_) {}
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  Workspace& operator=(Workspace&&) = delete;
  [[nodiscard]] CUdeviceptr address() const noexcept { return address_; }

 private:
  void* raw_ = nullptr;
  OwnedTensor host_;
  CUdeviceptr address_ = 0;
};

/// The arena of one call. Nearly always one piece, which then costs no list.
class TensorProgram::Workspaces {
 public:
  explicit Workspaces(TensorProgram& call) : call_(call) {
    if (call.arena_.pieces.size() > 1) {
      rest_.resize(call.arena_.pieces.size() - 1);
    }
  }

  /// Takes and binds the pieces that are needed from `part` on.
  void take(std::uint32_t part, const Trial& trial, CUstream stream) {
    const std::vector<ArenaSpec::Piece>& pieces = call_.arena_.pieces;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].first == part) {
        const std::uint64_t least = call_.arena_in_one_piece() != 0 ? call_.least_arena_ : 0;
        const std::uint64_t size = std::max<std::uint64_t>(pieces[i].bytes, least);
        const CUdeviceptr address =
            at(i).emplace(call_, size, trial.displace, pieces[i].device).address();
        call_.fill(address, trial.poison, pieces[i].bytes, stream);
        call_.program_.bind(call_.arena_.region + static_cast<std::uint32_t>(i), address);
      }
    }
  }

  /// Gives back the pieces that are not needed behind `part`.
  void give_back(std::uint32_t part) noexcept {
    const std::vector<ArenaSpec::Piece>& pieces = call_.arena_.pieces;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].last == part) {
        at(i).reset();
      }
    }
  }

 private:
  std::optional<Workspace>& at(std::size_t piece) noexcept {
    return piece == 0 ? first_ : rest_[piece - 1];
  }

  TensorProgram& call_;
  std::optional<Workspace> first_;
  std::vector<std::optional<Workspace>> rest_;
};

}  // namespace pygraph::torch_bridge
