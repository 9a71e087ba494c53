#include "pygraph/chain.h"

#include <stdexcept>
#include <utility>

namespace pygraph {

Chain::Chain(std::vector<Program> parts) : parts_(std::move(parts)) {
  if (parts_.empty()) {
    throw std::invalid_argument("a chain of no programs");
  }
  if (parts_.size() == 1) {
    return;
  }
  addresses_.assign(parts_.front().region_count(), Program::kUnbound);
  for (const Program& part : parts_) {
    std::vector<std::uint32_t>& mentioned = regions_.emplace_back();
    for (std::uint32_t region = 0; region < addresses_.size(); ++region) {
      if (part.mentions(region)) {
        mentioned.push_back(region);
      }
    }
  }
}

void Chain::set_number(std::uint32_t number, NumberValue value) {
  for (Program& part : parts_) {
    part.set_number(number, value);
  }
}

std::size_t Chain::nodes_of(std::uint32_t region) const {
  std::size_t sum = 0;
  for (const Program& part : parts_) {
    sum += part.nodes_of(region);
  }
  return sum;
}

void Chain::launch(std::size_t part, CUstream stream) {
  Program& program = parts_[part];
  if (parts_.size() != 1) {
    for (const std::uint32_t region : regions_[part]) {
      if (addresses_[region] != Program::kUnbound) {
        program.bind(region, addresses_[region]);
      }
    }
  }
  program.launch(stream);
}

std::uint64_t Chain::updates() const noexcept {
  std::uint64_t sum = 0;
  for (const Program& part : parts_) {
    sum += part.updates();
  }
  return sum;
}

}  // namespace pygraph
