#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/types.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <tuple>
#include <utility>

#include "bindings.h"
#include "pygraph/phantom.h"

namespace nb = nanobind;

namespace pygraph::bindings {
namespace {

/// The space that torch's capture pool allocates from while a capture is on, and every space that
/// torch has memory of. Torch's allocator calls the C functions below from whatever thread
/// allocates, hence the lock.
struct CaptureTarget {
  std::mutex mutex;
  std::shared_ptr<PhantomSpace> space;
  /// Owners: an address range must not be reserved again while torch's books still have it.
  std::vector<std::shared_ptr<PhantomSpace>> lenders;
  std::size_t failures = 0;

  void choose(std::shared_ptr<PhantomSpace> chosen) {
    std::erase_if(lenders, [](const auto& lender) { return lender->borrowed() == 0; });
    space = std::move(chosen);
  }

  void* borrow(std::size_t bytes, int device) {
    const CUdeviceptr address = space->borrow(bytes, device);
    if (std::find(lenders.begin(), lenders.end(), space) == lenders.end()) {
      lenders.push_back(space);
    }
    return reinterpret_cast<void*>(address);  // NOLINT
  }

  void give_back(CUdeviceptr address) {
    for (const auto& lender : lenders) {
      if (lender->contains(address)) {
        lender->give_back(address);
      }
    }
  }
};

CaptureTarget& capture_target() {
  static CaptureTarget target;
  return target;
}

using Allocation = std::tuple<std::uint64_t, std::uint64_t, int>;

std::vector<Allocation> allocations_from(const PhantomSpace& space, std::size_t first) {
  std::vector<Allocation> list;
  const std::vector<PhantomAllocation>& all = space.allocations();
  for (std::size_t index = first; index < all.size(); ++index) {
    list.emplace_back(all[index].address, all[index].bytes, all[index].device);
  }
  return list;
}

}  // namespace

void bind_phantom(nb::module_& module) {
  nb::enum_<Placement>(module, "Placement").value("A", Placement::kA).value("B", Placement::kB);

  nb::class_<PhantomSpace>(module, "PhantomSpace",
                           "Addresses of our own over one small block; see phantom.h.")
      .def(
          "__init__",
          [](PhantomSpace* self, int device, std::size_t reserve, std::size_t block, bool twin) {
            new (self) PhantomSpace(choose_driver(twin), device, {reserve, block});
          },
          nb::arg("device"), nb::arg("reserve_bytes") = PhantomSpace::Options{}.reserve_bytes,
          nb::arg("block_bytes") = PhantomSpace::Options{}.block_bytes, nb::arg("twin") = false)
      .def("admit", &PhantomSpace::admit, nb::arg("device"))
      .def("begin", &PhantomSpace::begin, nb::arg("placement"))
      .def("allocate", &PhantomSpace::allocate, nb::arg("bytes"), nb::arg("residue") = 512)
      .def("poison", &PhantomSpace::poison, nb::arg("value"))
      .def("intact", &PhantomSpace::intact, nb::arg("value"))
      .def("contains", &PhantomSpace::contains, nb::arg("address"))
      .def_prop_ro("base", &PhantomSpace::base)
      .def_prop_ro("reserved_bytes", &PhantomSpace::reserved_bytes)
      .def_prop_ro("physical_bytes", &PhantomSpace::physical_bytes)
      .def_prop_ro("allocated", [](const PhantomSpace& self) { return self.allocations().size(); })
      .def("allocations_from", &allocations_from, nb::arg("first"),
           "(address, bytes, device) in the order given out, without the `first` ones.");

  module.def(
      "set_capture_space",
      [](std::shared_ptr<PhantomSpace> space) {
        CaptureTarget& target = capture_target();
        const std::lock_guard lock(target.mutex);
        target.choose(std::move(space));
        return std::exchange(target.failures, 0);
      },
      nb::arg("space").none(),
      "Routes pygraph_phantom_alloc to `space` (None: nowhere). Returns how many allocations "
      "failed since the last call.");
}

}  // namespace pygraph::bindings

// Given by name to torch.cuda.memory.CUDAPluggableAllocator. No exception may leave them; a failed
// allocation returns null and is counted, and the capture that asked is thrown away.
extern "C" {

__attribute__((visibility("default"))) void* pygraph_phantom_alloc(ssize_t size, int device,
                                                                   void* /*stream*/) noexcept {
  auto& target = pygraph::bindings::capture_target();
  const std::lock_guard lock(target.mutex);
  try {
    if (target.space != nullptr && size >= 0) {
      return target.borrow(static_cast<std::size_t>(size), device);
    }
    ++target.failures;
  } catch (const std::exception&) {
    ++target.failures;
  }
  return nullptr;
}

__attribute__((visibility("default"))) void pygraph_phantom_free(void* pointer, ssize_t /*size*/,
                                                                 int /*device*/,
                                                                 void* /*stream*/) noexcept {
  auto& target = pygraph::bindings::capture_target();
  const std::lock_guard lock(target.mutex);
  target.give_back(reinterpret_cast<CUdeviceptr>(pointer));  // NOLINT
}
}
