#include <cstdio>

#include "pygraph/driver.h"

int main() {
  const pygraph::Capabilities& found = pygraph::real_driver().capabilities;
  std::printf("pygraph %s: %s\n", PYGRAPH_VERSION,
              found.usable() ? "usable" : found.problem.c_str());
}
