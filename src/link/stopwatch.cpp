#include "lanes.h"

namespace pygraph {
namespace {

bool is_chain(const Image& image) {
  if (image.nodes.empty() || image.edges.size() + 1 != image.nodes.size()) {
    return false;
  }
  for (std::uint32_t i = 0; i < image.edges.size(); ++i) {
    if (image.edges[i] != std::pair{i, i + 1}) {
      return false;
    }
  }
  return true;
}

EventHandle make_event(const Driver& driver) {
  CUevent event = nullptr;
  driver.check(driver.api.cuEventCreate(&event, CU_EVENT_DEFAULT), "cuEventCreate");
  return {driver, event};
}

}  // namespace

Stopwatch::Stopwatch(const Driver& driver, const LinkedGraph& linked)
    : driver_(&driver), timed_(in_one_part(driver, linked)) {
  if (!is_chain(timed_.image)) {
    return;
  }
  const std::vector<Node>& nodes = timed_.image.nodes;
  for (std::size_t i = 0; i <= nodes.size(); ++i) {
    events_.push_back(make_event(driver));
    const CUgraphNode* before = i == 0 ? nullptr : &nodes[i - 1].handle;
    CUgraphNode record = nullptr;
    driver.check(driver.api.cuGraphAddEventRecordNode(&record, timed_.graph.get(), before,
                                                      i == 0 ? 0 : 1, events_.back().get()),
                 "cuGraphAddEventRecordNode", "a stopwatch");
    if (i != nodes.size()) {
      driver.check(driver.api.cuGraphAddDependencies(timed_.graph.get(), &record, &nodes[i].handle,
                                                     nullptr, 1),
                   "cuGraphAddDependencies", "a stopwatch");
    }
  }
}

std::vector<double> Stopwatch::read() const {
  std::vector<double> found;
  for (std::size_t i = 1; i < events_.size(); ++i) {
    float milliseconds = 0;
    driver_->check(
        driver_->api.cuEventElapsedTime(&milliseconds, events_[i - 1].get(), events_[i].get()),
        "cuEventElapsedTime", "a stopwatch");
    found.push_back(1e3 * static_cast<double>(milliseconds));
  }
  return found;
}

}  // namespace pygraph
