// The integers among the arguments of a call: what tells one program of a compiled graph from
// another.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tensor_program.h"

namespace pygraph::torch_bridge {

/// Reads them where they stand. Guarded by the GIL.
class Sizes {
 public:
  using Key = std::vector<std::int64_t>;
  struct Hash {
    std::size_t operator()(const Key& key) const noexcept {
      std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a, a word at a time
      for (const std::int64_t value : key) {
        hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x100000001b3U;
      }
      return hash ^ (hash >> 32U);
    }
  };

  Sizes() = default;
  explicit Sizes(std::vector<std::uint32_t> places)
      : places_(std::move(places)), key_(places_.size()) {}
  /// Where a graph takes integers.
  static Sizes of(const TensorProgram& call) {
    std::vector<std::uint32_t> places;
    for (std::size_t i = 0; i < call.arguments().size(); ++i) {
      if (call.arguments()[i].kind == ArgumentSpec::Kind::kInteger) {
        places.push_back(static_cast<std::uint32_t>(i));
      }
    }
    return Sizes(std::move(places));
  }

  /// Those that a graph was captured with.
  [[nodiscard]] Key captured(const TensorProgram& call) const {
    Key key;
    for (const std::uint32_t place : places_) {
      key.push_back(place < call.arguments().size() ? call.arguments()[place].value : 0);
    }
    return key;
  }
  /// Those of a call, until the next one is read; null if there are none of 64 bits.
  [[nodiscard]] const Key* read(const Arguments& arguments) noexcept {
    for (std::size_t i = 0; i < places_.size(); ++i) {
      int overflow = 0;
      if (places_[i] >= arguments.count || !PyLong_CheckExact(arguments[places_[i]])) {
        return nullptr;
      }
      key_[i] = PyLong_AsLongLongAndOverflow(arguments[places_[i]], &overflow);
      if (overflow != 0) {
        return nullptr;
      }
    }
    return &key_;
  }

 private:
  std::vector<std::uint32_t> places_;
  Key key_;
};

}  // namespace pygraph::torch_bridge
