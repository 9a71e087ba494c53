#include "proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

namespace pygraph {
namespace {

constexpr std::uint8_t kPoison = 0xFF;  // as numbers NaN, as indices far away

using Bytes = std::vector<std::uint8_t>;

/// One piece of device memory.
class ProofMemory {
 public:
  ProofMemory(const Driver& driver, std::size_t bytes) : driver_(driver) {
    driver.check(driver.api.cuMemAlloc(&address_, std::max<std::size_t>(bytes, 1)), "cuMemAlloc",
                 "memory for the proof of captured work");
  }
  ~ProofMemory() { driver_.api.cuMemFree(address_); }  // waits for what uses it
  ProofMemory(const ProofMemory&) = delete;
  ProofMemory& operator=(const ProofMemory&) = delete;

  [[nodiscard]] CUdeviceptr address() const noexcept { return address_; }

 private:
  const Driver& driver_;
  CUdeviceptr address_ = 0;
};

/// The buffers that both run on.
class ProofBuffers {
 public:
  ProofBuffers(const Driver& driver, std::span<const std::size_t> sizes,
               const std::vector<CUdeviceptr>& addresses)
      : driver_(driver), sizes_(sizes), addresses_(addresses) {}

  [[nodiscard]] std::vector<Bytes> read() const {
    std::vector<Bytes> all;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      Bytes& bytes = all.emplace_back(sizes_[i]);
      if (!bytes.empty()) {
        driver_.check(driver_.api.cuMemcpyDtoH(bytes.data(), addresses_[i], bytes.size()),
                      "cuMemcpyDtoH", fmt::format("buffer {} of a proof", i));
      }
    }
    return all;
  }
  void write(const std::vector<Bytes>& all) const {
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      if (!all[i].empty()) {
        driver_.check(driver_.api.cuMemcpyHtoD(addresses_[i], all[i].data(), all[i].size()),
                      "cuMemcpyHtoD", fmt::format("buffer {} of a proof", i));
      }
    }
  }

 private:
  const Driver& driver_;
  std::span<const std::size_t> sizes_;
  const std::vector<CUdeviceptr>& addresses_;
};

void run_work(const Driver& driver, CUstream stream, const Work& work,
              const std::vector<CUdeviceptr>& addresses) {
  std::vector<std::unique_ptr<ProofMemory>> scratch;
  work(stream, WorkMemory(addresses, [&](std::size_t bytes) {
         scratch.push_back(std::make_unique<ProofMemory>(driver, bytes));
         return scratch.back()->address();
       }));
  driver.check(driver.api.cuStreamSynchronize(stream), "cuStreamSynchronize", "the work as it is");
}

void run_program(const Driver& driver, CUstream stream, CapturedWork& captured,
                 const std::vector<CUdeviceptr>& addresses) {
  const ProofMemory arena(driver, captured.arena_bytes);
  if (captured.arena_bytes != 0) {
    driver.check(driver.api.cuMemsetD8(arena.address(), kPoison, captured.arena_bytes),
                 "cuMemsetD8", "the arena of a proof");
    driver.check(driver.api.cuCtxSynchronize(), "cuCtxSynchronize", "the arena of a proof");
  }
  captured.bind(addresses, arena.address());
  captured.program.launch(stream);
  driver.check(driver.api.cuStreamSynchronize(stream), "cuStreamSynchronize",
               "the program of captured work");
  captured.program.unbind();  // the arena goes
}

void compare(const std::vector<Bytes>& wanted, const std::vector<Bytes>& found) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto [want, have] = std::mismatch(wanted[i].begin(), wanted[i].end(), found[i].begin());
    if (want != wanted[i].end()) {
      throw ProofFailed(
          fmt::format("buffer {}: the program left {:#04x} at byte {}, and the work as it is "
                      "{:#04x}",
                      i, *have, want - wanted[i].begin(), *want));
    }
  }
}

}  // namespace

void prove(const Driver& driver, CUstream stream, CapturedWork& captured, const Work& work,
           std::span<const std::size_t> buffers, const std::vector<CUdeviceptr>& addresses,
           PhantomSpace& space) {
  const ProofBuffers memory(driver, buffers, addresses);
  // What fills the buffers may be under way on any stream.
  driver.check(driver.api.cuCtxSynchronize(), "cuCtxSynchronize", "buffers of a proof");
  const std::vector<Bytes> before = memory.read();
  run_work(driver, stream, work, addresses);
  const std::vector<Bytes> wanted = memory.read();

  memory.write(before);
  space.poison(kPoison);
  run_program(driver, stream, captured, addresses);
  compare(wanted, memory.read());
  if (!space.intact(kPoison)) {
    throw ProofFailed("the program wrote to memory that the work was captured with");
  }
}

}  // namespace pygraph
