// The programs that a linked graph is made of, one after another, with the regions of the whole.
//
// Nearly always one. A graph that was cut (LinkOptions::peak_slack) has several; memory may change
// hands between two launches, so a region is bound for the parts to come only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pygraph/program.h"

namespace pygraph {

/// Not thread-safe: guard it.
class Chain {
 public:
  /// `parts`: at least one, all with as many regions and as many host numbers.
  explicit Chain(std::vector<Program> parts);

  [[nodiscard]] std::size_t size() const noexcept { return parts_.size(); }

  /// Moves `region` to `address`, for launches to come.
  void bind(std::uint32_t region, CUdeviceptr address) noexcept {
    if (parts_.size() == 1) {
      parts_.front().bind(region, address);
    } else {
      addresses_[region] = address;
    }
  }
  /// Where `region` is; Program::kUnbound before the first bind.
  [[nodiscard]] CUdeviceptr bound(std::uint32_t region) const noexcept {
    return parts_.size() == 1 ? parts_.front().bound(region) : addresses_[region];
  }

  /// Writes the value of a host number into every part, for launches to come. Throws what
  /// Program::set_number throws: some parts may have the value then, and others not.
  void set_number(std::uint32_t number, NumberValue value);
  [[nodiscard]] std::size_t number_count() const noexcept { return parts_.front().number_count(); }

  /// Nodes whose parameters refer to `region`, in all parts.
  [[nodiscard]] std::size_t nodes_of(std::uint32_t region) const;

  /// Launches part number `part`. Throws what Program::launch throws.
  void launch(std::size_t part, CUstream stream);

  /// Node updates pushed to the driver since construction.
  [[nodiscard]] std::uint64_t updates() const noexcept;

 private:
  std::vector<Program> parts_;
  std::vector<CUdeviceptr> addresses_;               ///< per region; none when there is one part
  std::vector<std::vector<std::uint32_t>> regions_;  ///< per part: those that it mentions
};

}  // namespace pygraph
