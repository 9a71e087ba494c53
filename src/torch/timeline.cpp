#include "timeline.h"

#include <Python.h>

#include <chrono>
#include <exception>

namespace pygraph::torch_bridge {

std::string_view name_of(Layer layer) noexcept {
  switch (layer) {
    case Layer::kGuess:
      return "guess";
    case Layer::kEntry:
      return "entry";
    case Layer::kCompare:
      return "compare";
    case Layer::kWrappers:
      return "wrappers";
    case Layer::kDispatcher:
      return "dispatcher";
    case Layer::kBind:
      return "bind";
    case Layer::kAllocation:
      return "allocation";
    case Layer::kLaunch:
      return "launch";
    case Layer::kResults:
      return "results";
  }
  return "?";
}

void Timeline::note_now(Layer layer, bool begins) noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  try {
    listening_->marks_.push_back(
        {layer, begins, std::chrono::nanoseconds(now).count(), PyThread_get_thread_ident()});
  } catch (const std::exception&) {  // no memory: the call goes on unseen
    stop();
  }
}

}  // namespace pygraph::torch_bridge
