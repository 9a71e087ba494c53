// A graph as a backward has it, to be cut into parts, and what runs the parts.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "graph_builder.h"
#include "pygraph/chain.h"
#include "support.h"

namespace pygraph::testing {

/// The programs of a linked graph as a chain.
inline pygraph::Chain chain_of(const Driver& driver, LinkedGraph linked) {
  const std::size_t regions = linked.region_count();
  const std::size_t numbers = linked.number_count;
  std::vector<Program> programs;
  for (LinkedPart& part : take_apart(driver, std::move(linked))) {
    programs.emplace_back(driver, std::move(part.graph), std::move(part.image), part.relocations,
                          regions, part.numbers, numbers);
  }
  return pygraph::Chain(std::move(programs));
}

/// A small backward. Region 0 is a gradient, 1 … kSteps are saved activations, which are given up;
/// gradient i of the results is region kSteps + i; scratch goes from step to step; the last region
/// is what the gradient has become at the end. Step i makes two nodes: result i from activation i,
/// and the next scratch from the last.
struct Backward {
  static constexpr std::uint32_t kFloats = 256;
  static constexpr std::size_t kBytes = kFloats * sizeof(float);
  static constexpr std::uint32_t kSteps = 6;
  static constexpr std::uint32_t kSaved = 1;
  static constexpr std::uint32_t kResults = kSaved + kSteps;
  static constexpr std::uint32_t kScratch = kResults + kSteps;
  static constexpr std::uint32_t kEnd = kScratch + kSteps - 1;
  static constexpr std::uint32_t kRegions = kEnd + 1;
  static constexpr std::uint32_t kNodes = 2 * kSteps;

  static Regions::Make capture(const Testbed& bed) {
    return [&bed](const std::vector<CUdeviceptr>& at) {
      return bed.capture([&] {
        for (std::uint32_t i = 0; i < kSteps; ++i) {
          const auto step = static_cast<float>(i);
          bed.affine({at[kResults + i], at[kSaved + i], 2, step, kFloats});
          bed.affine({at[kScratch + i], at[i == 0 ? 0 : kScratch + i - 1], 2, step, kFloats});
        }
      });
    };
  }
  static float end(float gradient) {
    for (std::uint32_t i = 0; i < kSteps; ++i) {
      gradient = 2 * gradient + static_cast<float>(i);
    }
    return gradient;
  }
};

/// Its regions with their roles.
struct BackwardRegions : Regions {
  explicit BackwardRegions(const Driver& driver)
      : Regions(driver, Backward::kRegions, Backward::kBytes) {
    for (std::uint32_t i = 0; i < Backward::kSteps; ++i) {
      spent(Backward::kSaved + i).fresh(Backward::kResults + i);
    }
    for (std::uint32_t region = Backward::kScratch; region < Backward::kEnd; ++region) {
      scratch(region);
    }
    fresh(Backward::kEnd);
  }
};

/// The arena's pieces, each there for its parts only.
class Pieces {
 public:
  Pieces(const Driver& driver, const LinkedGraph& linked)
      : driver_(driver), first_(linked.arena), bytes_(linked.pieces()), spans_(linked.spans) {
    memory_.resize(bytes_.size());
  }
  void take(std::uint32_t part, pygraph::Chain& chain) {
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      if (spans_[i].first == part) {
        memory_[i].emplace(driver_, std::max<std::size_t>(bytes_[i], 1));
        chain.bind(first_ + static_cast<std::uint32_t>(i), memory_[i]->address());
      }
    }
  }
  void give_back(std::uint32_t part) {
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      if (spans_[i].last == part && memory_[i]) {
        memory_[i]->fill(0xFF);  // whoever reads it later reads NaNs
        memory_[i].reset();
      }
    }
  }

 private:
  const Driver& driver_;
  std::uint32_t first_;
  std::vector<std::size_t> bytes_;
  std::vector<PartSpan> spans_;
  std::vector<std::optional<DeviceMemory>> memory_;
};

}  // namespace pygraph::testing
