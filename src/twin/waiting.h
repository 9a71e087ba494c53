// How a thread waits for launches that another thread is running.
#pragma once

namespace pygraph::twin {

/// Calls wait(context), with whatever the running launches may need let go of meanwhile.
using Waiter = void (*)(void (*wait)(void*), void* context);

/// Whoever runs kernels under a lock of its own (Python's) sets this, once, before any launch.
void set_waiter(Waiter waiter);

}  // namespace pygraph::twin
