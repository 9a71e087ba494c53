#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "pygraph/twin.h"
#include "twin/entry.h"
#include "twin/state.h"

namespace pygraph::twin {
namespace {

struct PlannedFault {
  Symbol symbol;
  CUresult code;
  int calls_left;
  bool lasting;
};

/// The planned misbehaviour. `armed` keeps the usual case to one load per driver call.
struct Plan {
  std::mutex mutex;
  std::vector<PlannedFault> faults;
  std::map<Symbol, std::chrono::microseconds> delays;
  std::atomic<bool> armed{false};
  std::atomic<bool> noise{false};
  std::atomic<bool> counting{false};
  std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(Symbol::kCount)> calls{};
  std::atomic<std::uint64_t> order_seed{0};  ///< of the next launch; 0: as the nodes stand
  std::atomic<std::uint64_t> noise_state{0x9e37'79b9'7f4a'7c15};
};

Plan& plan() {
  static Plan& instance = *new Plan;
  return instance;
}

/// splitmix64's output function: well-mixed bytes from a counter.
std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58'476d'1ce4'e5b9;
  value = (value ^ (value >> 27)) * 0x94d0'49bb'1331'11eb;
  return value ^ (value >> 31);
}

/// Throws std::invalid_argument.
Symbol symbol_of(const std::string& name) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(Symbol::kCount); ++i) {
    if (name == symbol_name(static_cast<Symbol>(i))) {
      return static_cast<Symbol>(i);
    }
  }
  throw std::invalid_argument("the driver table has no entry point " + name);
}

}  // namespace

CUresult injected_fault(Symbol symbol) {
  Plan& now = plan();
  if (now.counting.load(std::memory_order_relaxed)) {
    now.calls[static_cast<std::size_t>(symbol)].fetch_add(1, std::memory_order_relaxed);
  }
  if (!now.armed.load(std::memory_order_relaxed)) {
    return CUDA_SUCCESS;
  }
  std::unique_lock guard(now.mutex);
  if (const auto found = now.delays.find(symbol); found != now.delays.end()) {
    const std::chrono::microseconds delay = found->second;
    guard.unlock();
    std::this_thread::sleep_for(delay);
    guard.lock();
  }
  for (auto fault = now.faults.begin(); fault != now.faults.end(); ++fault) {
    if (fault->symbol != symbol || --fault->calls_left > 0) {
      continue;
    }
    const CUresult code = fault->code;
    if (fault->lasting) {
      fault->calls_left = 1;
    } else {
      now.faults.erase(fault);
      now.armed = !now.faults.empty() || !now.delays.empty();
    }
    return code;
  }
  return CUDA_SUCCESS;
}

void add_padding_noise(KernelWork& work) {
  Plan& now = plan();
  if (!now.noise.load(std::memory_order_relaxed)) {
    return;
  }
  for (const ParameterSlot& hole : work.kernel->padding) {
    for (std::uint32_t i = hole.offset; i < hole.offset + hole.size && i < work.block.size(); ++i) {
      const std::uint64_t step = now.noise_state.fetch_add(1, std::memory_order_relaxed);
      work.block[i] = static_cast<std::byte>(mixed(step));
    }
  }
}

std::uint64_t next_order() {
  std::atomic<std::uint64_t>& seed = plan().order_seed;
  return seed == 0 ? 0 : seed.fetch_add(1, std::memory_order_relaxed);
}

void Faults::fail(const std::string& symbol, CUresult code, int nth, bool lasting) {
  const Symbol failing = symbol_of(symbol);
  Plan& now = plan();
  const std::lock_guard guard(now.mutex);
  now.faults.push_back({failing, code, std::max(nth, 1), lasting});
  now.armed = true;
}

void Faults::slow(const std::string& symbol, std::chrono::microseconds delay) {
  const Symbol slowed = symbol_of(symbol);
  Plan& now = plan();
  const std::lock_guard guard(now.mutex);
  now.delays[slowed] = delay;
  now.armed = true;
}

void Faults::count_calls(bool on) {
  Plan& now = plan();
  if (on) {
    for (std::atomic<std::uint64_t>& count : now.calls) {
      count = 0;
    }
  }
  now.counting = on;
}

std::map<std::string, std::uint64_t> Faults::calls() {
  std::map<std::string, std::uint64_t> found;
  for (std::size_t i = 0; i < static_cast<std::size_t>(Symbol::kCount); ++i) {
    if (const std::uint64_t count = plan().calls[i]; count != 0) {
      found.emplace(symbol_name(static_cast<Symbol>(i)), count);
    }
  }
  return found;
}

void Faults::padding_noise(bool on) { plan().noise = on; }

void Faults::any_order(std::uint64_t seed) { plan().order_seed = seed; }

void Faults::reset() {
  Plan& now = plan();
  const std::lock_guard guard(now.mutex);
  now.faults.clear();
  now.delays.clear();
  now.armed = false;
  now.noise = false;
  now.order_seed = 0;
  now.counting = false;
}

}  // namespace pygraph::twin
