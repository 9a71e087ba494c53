// A number in fp64 that the host computes of others, in front of a launch.
//
// What a program computes of its Python numbers before tensors see them ((1 - sigma**2) ** 0.5) is
// a few operations, which cost less than to ask anybody else for them. Generated code computes the
// same with the same bits: +, -, *, / and roots are rounded as IEEE 754 says, and a power is
// libm's.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace pygraph::torch_bridge {

/// Immutable, so thread-safe.
class Formula {
 public:
  enum class Operation : std::uint8_t {
    kArgument,  ///< of the call, by number
    kConstant,
    kAdd,
    kSubtract,
    kMultiply,
    kDivide,
    kPower,
    kSquareRoot,  ///< of one value; all others behind kConstant take two
  };
  struct Step {
    Operation operation = Operation::kConstant;
    std::uint32_t argument = 0;
    double constant = 0;
  };
  /// Values that wait for their operation at a time, at most.
  static constexpr std::size_t kDeepest = 16;

  /// `steps`: in the order in which a machine with a stack takes them ("postfix"). Throws
  /// std::invalid_argument for what leaves no single value there, or more than kDeepest on the way.
  explicit Formula(std::vector<Step> steps);

  /// `number` gives an argument's value, by its number.
  template <typename Number>
  [[nodiscard]] double evaluate(const Number& number) const {
    double stack[kDeepest];  // NOLINT(modernize-avoid-c-arrays): written before it is read
    std::size_t depth = 0;
    for (const Step& step : steps_) {
      if (step.operation == Operation::kArgument) {
        stack[depth++] = number(step.argument);
      } else if (step.operation == Operation::kConstant) {
        stack[depth++] = step.constant;
      } else if (step.operation == Operation::kSquareRoot) {
        stack[depth - 1] = std::sqrt(stack[depth - 1]);
      } else {
        --depth;
        stack[depth - 1] = computed(step.operation, stack[depth - 1], stack[depth]);
      }
    }
    return stack[0];
  }
  [[nodiscard]] const std::vector<Step>& steps() const noexcept { return steps_; }
  /// The arguments that it takes, by number, each once.
  [[nodiscard]] const std::set<std::uint32_t>& arguments() const noexcept { return arguments_; }

 private:
  static double computed(Operation operation, double left, double right) noexcept;

  std::vector<Step> steps_;
  std::set<std::uint32_t> arguments_;
};

}  // namespace pygraph::torch_bridge
