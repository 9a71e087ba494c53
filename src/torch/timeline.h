// When the layers of a call begin and end, for `pygraph trace`. While nobody listens, a layer costs
// a comparison at each end. Guarded by the GIL.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace pygraph::torch_bridge {

/// What a call goes through on the host.
enum class Layer : std::uint8_t {
  kGuess,       ///< in front of Dynamo's guards
  kEntry,       ///< an entry point, or a captured callable
  kCompare,     ///< a captured callable's call with the trees of those before
  kWrappers,    ///< AOTAutograd's and Inductor's
  kDispatcher,  ///< where no entry point has led to the program
  kBind,        ///< of a program: addresses of arguments
  kAllocation,  ///< of its arena and outputs, and their addresses
  kLaunch,      ///< patched nodes, the launch, copies behind it; on the twin also the work
  kResults,     ///< Python objects
};

[[nodiscard]] std::string_view name_of(Layer layer) noexcept;

class Timeline {
 public:
  Timeline() = default;
  ~Timeline() {
    if (listening_ == this) {
      stop();
    }
  }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  struct Mark {
    Layer layer;
    bool begins;  ///< false: it ends
    std::int64_t nanoseconds;
    std::uint64_t thread;  ///< as threading.get_ident() has it
  };

  void listen() noexcept { listening_ = this; }
  static void stop() noexcept { listening_ = nullptr; }

  static void note(Layer layer, bool begins) noexcept {
    if (listening_ != nullptr) [[unlikely]] {
      note_now(layer, begins);
    }
  }
  [[nodiscard]] const std::vector<Mark>& marks() const noexcept { return marks_; }

 private:
  [[gnu::cold]] static void note_now(Layer layer, bool begins) noexcept;

  static inline Timeline* listening_ = nullptr;  ///< null: nobody listens
  std::vector<Mark> marks_;
};

/// A layer, as long as it lives.
class Span {
 public:
  explicit Span(Layer layer) noexcept : layer_(layer) { Timeline::note(layer, true); }
  ~Span() { Timeline::note(layer_, false); }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Layer layer_;
};

}  // namespace pygraph::torch_bridge
