// What this machine's host pays for the driver calls that serving a call is made of.
#pragma once

#include "pygraph/driver.h"

namespace pygraph::selection {

/// Host time in us, but for the last.
struct MachineCosts {
  double launch;        ///< of a kernel, by the driver
  double graph;         ///< of a graph of kernels
  double patch;         ///< of a node's parameters in an instantiated graph, and their upload
  double copy;          ///< on the device, of few bytes
  double bytes_per_us;  ///< of a copy of many, on the device
};

/// Measures them on the current context's device, on a stream of its own, in less than a second.
/// Throws DriverError: above all where the device does not take the kernel.
MachineCosts measure_machine(const Driver& driver);

}  // namespace pygraph::selection
