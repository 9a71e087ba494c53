#include "formula.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace pygraph::torch_bridge {
namespace {

/// libm's pow, in the version that code compiled on this system is linked with, which may be newer
/// than the one that the engine's own build could name. Null: there is none.
double (*power())(double, double) {
  static auto* const found =
      reinterpret_cast<double (*)(double, double)>(dlsym(RTLD_DEFAULT, "pow"));  // NOLINT
  return found;
}

std::size_t takes(Formula::Operation operation) noexcept {
  if (operation <= Formula::Operation::kConstant) {
    return 0;
  }
  return operation == Formula::Operation::kSquareRoot ? 1 : 2;
}

}  // namespace

Formula::Formula(std::vector<Step> steps) : steps_(std::move(steps)) {
  std::size_t depth = 0;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const std::size_t taken = takes(steps_[i].operation);
    if (depth < taken) {
      throw std::invalid_argument(
          fmt::format("step {} of a formula takes {} values, and finds {}", i, taken, depth));
    }
    if (steps_[i].operation == Operation::kArgument) {
      arguments_.insert(steps_[i].argument);
    }
    if (steps_[i].operation == Operation::kPower && power() == nullptr) {
      throw std::invalid_argument("a formula has a power, and this process no libm with pow()");
    }
    depth += 1 - taken;
    if (depth > kDeepest) {
      throw std::invalid_argument(fmt::format(
          "step {} of a formula leaves {} values; {} are the most", i, depth, kDeepest));
    }
  }
  if (depth != 1) {
    throw std::invalid_argument(fmt::format("a formula leaves {} values; it must leave 1", depth));
  }
}

double Formula::computed(Operation operation, double left, double right) noexcept {
  switch (operation) {
    case Operation::kAdd:
      return left + right;
    case Operation::kSubtract:
      return left - right;
    case Operation::kMultiply:
      return left * right;
    case Operation::kDivide:
      return left / right;
    case Operation::kPower:
      return power()(left, right);
    case Operation::kArgument:
    case Operation::kConstant:
    case Operation::kSquareRoot:
      break;
  }
  return 0;
}

}  // namespace pygraph::torch_bridge
