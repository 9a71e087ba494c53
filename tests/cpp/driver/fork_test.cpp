// A process that forks: the child leaves its parent's objects alone.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "support.h"
#include "twin/state.h"

namespace pygraph {
namespace {

using testing::bind_all;
using testing::Chain;
using testing::chain_memory;
using testing::DeviceMemory;
using testing::holds;
using testing::make_chain;

class Fork : public testing::OnTwin {};

/// Holds the twin's lock on a thread of its own, as a driver call of another thread would: after a
/// fork nobody is there to let go of it.
class LockHeldElsewhere {
 public:
  LockHeldElsewhere()
      : thread_([this] {
          const twin::Lock lock;
          held_ = true;
          while (held_) {
            std::this_thread::yield();
          }
        }) {
    while (!held_) {
      std::this_thread::yield();
    }
  }
  ~LockHeldElsewhere() {
    held_ = false;
    thread_.join();
  }
  LockHeldElsewhere(const LockHeldElsewhere&) = delete;
  LockHeldElsewhere& operator=(const LockHeldElsewhere&) = delete;

 private:
  std::atomic<bool> held_{false};
  std::thread thread_;
};

/// The exit status of a child that runs `work`; a child that hangs is ended by a signal.
template <typename Work>
int status_of_child(Work work) {
  const LockHeldElsewhere held;
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(work());
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

constexpr int kCalled = 3;

/// An entry point of the twin that ends a forked child: nobody may call it there.
template <auto kEntry>
struct NotInChild;

template <typename... Arguments, CUresult (*DriverApi::*kEntry)(Arguments...)>
struct NotInChild<kEntry> {
  static CUresult call(Arguments... arguments) {
    if (Driver::in_forked_child()) {
      _exit(kCalled);
    }
    return (twin::driver().api.*kEntry)(arguments...);
  }
};

Driver watched_twin() {
  Driver watched = twin::driver();
  watched.api.cuGraphDestroy = &NotInChild<&DriverApi::cuGraphDestroy>::call;
  watched.api.cuGraphExecDestroy = &NotInChild<&DriverApi::cuGraphExecDestroy>::call;
  watched.api.cuMemUnmap = &NotInChild<&DriverApi::cuMemUnmap>::call;
  watched.api.cuMemRelease = &NotInChild<&DriverApi::cuMemRelease>::call;
  watched.api.cuMemAddressFree = &NotInChild<&DriverApi::cuMemAddressFree>::call;
  return watched;
}

TEST_F(Fork, ChildDestroysNothingOfItsParents) {
  const Driver watched = watched_twin();
  Chain chain = make_chain(bed(), 3);
  CUgraph clone = nullptr;
  driver().check(driver().api.cuGraphClone(&clone, chain.graph.get()), "cuGraphClone");
  auto program =
      std::make_unique<Program>(watched, GraphHandle(watched, clone), read_image(watched, clone),
                                chain.table.relocations, chain.regions());
  auto space = std::make_unique<PhantomSpace>(watched, 0, testing::small_phantom());
  (void)space->allocate(64);
  const std::vector<DeviceMemory> memory = chain_memory(bed(), chain, 1);
  bind_all(*program, memory);
  program->launch(bed().stream());
  bed().synchronize();
  const twin::Census before = twin::census();

  EXPECT_EQ(status_of_child([&] {
              if (!Driver::in_forked_child()) {
                return 1;
              }
              program.reset();
              space.reset();
              return 0;
            }),
            0);

  EXPECT_FALSE(Driver::in_forked_child());
  EXPECT_EQ(twin::census(), before);
  program->launch(bed().stream());
  bed().synchronize();
  EXPECT_TRUE(holds(memory.back(), chain.expected(1)));
}

TEST_F(Fork, ChildCannotUseTheDriverNorRunAProgram) {
  Chain chain = make_chain(bed(), 3);
  Program program = chain.program(driver());
  const std::vector<DeviceMemory> memory = chain_memory(bed(), chain, 1);
  bind_all(program, memory);
  EXPECT_EQ(status_of_child([&] {
              CUdeviceptr address = 0;
              if (driver().api.cuMemAlloc(&address, 64) != CUDA_ERROR_NOT_INITIALIZED) {
                return 1;
              }
              try {
                program.launch(bed().stream());
              } catch (const std::logic_error&) {
                return 0;
              }
              return 2;
            }),
            0);
  program.launch(bed().stream());
  bed().synchronize();
  EXPECT_TRUE(holds(memory.back(), chain.expected(1)));
}

}  // namespace
}  // namespace pygraph
