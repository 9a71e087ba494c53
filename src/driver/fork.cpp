#include <pthread.h>

#include "pygraph/driver.h"

namespace pygraph {

void Driver::watch_for_forks() {
  // Once per process; a failure (no memory) leaves the flag alone, as without the handler.
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forked_.store(true, std::memory_order_relaxed); });
}

}  // namespace pygraph
