// Which memory the results of a call share.
#include <algorithm>
#include <stdexcept>

#include "pygraph/layout.h"
#include "tensor_program.h"

namespace pygraph::torch_bridge {
namespace {

constexpr std::uint32_t kGone = ~0U;

/// Where a block has gone.
struct Moved {
  std::uint32_t block;
  std::uint64_t offset;
};

}  // namespace

void TensorProgram::merge_blocks(const std::vector<std::vector<std::uint32_t>>& groups) {
  std::vector<Moved> moved(blocks_.size());
  for (std::uint32_t i = 0; i < moved.size(); ++i) {
    moved[i] = {i, 0};
  }
  std::vector<OutputBlock> merged = blocks_;
  for (const std::vector<std::uint32_t>& group : groups) {
    std::uint32_t before = kGone;
    for (const std::uint32_t index : group) {
      if (index >= blocks_.size() || moved[index].block != index || moved[index].offset != 0 ||
          (before != kGone && index <= before)) {
        throw std::invalid_argument("groups of blocks: each block once, ascending");
      }
      before = index;
      const OutputBlock& block = blocks_[index];
      OutputBlock& first = merged[group.front()];
      if (index == group.front() || block.regions.empty() || first.regions.empty() ||
          block.device != first.device) {
        continue;
      }
      const std::uint64_t offset = round_up(first.bytes, kArenaAlignment);
      for (const OutputBlock::Placed& placed : block.regions) {
        first.regions.push_back({placed.region, offset + placed.offset});
      }
      first.bytes = offset + block.bytes;
      first.first_part = std::min(first.first_part, block.first_part);
      moved[index] = {group.front(), offset};
    }
  }
  // Blocks that have gone leave no gaps in the numbering.
  std::vector<std::uint32_t> number(blocks_.size(), kGone);
  blocks_.clear();
  for (std::uint32_t i = 0; i < merged.size(); ++i) {
    if (moved[i].block == i) {
      number[i] = static_cast<std::uint32_t>(blocks_.size());
      blocks_.push_back(std::move(merged[i]));
    }
  }
  std::vector<std::uint32_t> users(blocks_.size());
  for (ResultSpec& result : results_) {
    if (result.kind == ResultSpec::Kind::kWhole || result.kind == ResultSpec::Kind::kView) {
      const Moved& to = moved[result.index];
      result.byte_offset += static_cast<std::int64_t>(to.offset);
      result.index = number[to.block];
      ++users[result.index];
    }
  }
  whole_of_block_.assign(blocks_.size(), -1);
  for (std::size_t i = 0; i < results_.size(); ++i) {
    ResultSpec& result = results_[i];
    if (result.kind == ResultSpec::Kind::kWhole && users[result.index] == 1) {
      whole_of_block_[result.index] = static_cast<std::int32_t>(i);
    } else if (result.kind == ResultSpec::Kind::kWhole) {
      result.kind = ResultSpec::Kind::kView;
    }
  }
}

}  // namespace pygraph::torch_bridge
