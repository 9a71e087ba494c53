// What tools/instructions.py loads in front of steady_calls.py: marks for callgrind, and memory
// that comes as torch's does on a GPU: what was freed last is given out again for the same size.
// With glibc's it depends on all that ran before where the next call's tensors stand, and so how
// many nodes are patched.
#include <sys/mman.h>
#include <valgrind/callgrind.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <mutex>

extern "C" {
void __libc_free(void* memory);                                   // NOLINT
void* __libc_malloc(std::size_t bytes);                           // NOLINT
void* __libc_memalign(std::size_t alignment, std::size_t bytes);  // NOLINT
void* __libc_realloc(void* memory, std::size_t bytes);            // NOLINT
}

namespace {

constexpr std::size_t kReserved = std::size_t{1} << 30;
constexpr std::size_t kMostBytes = std::size_t{1} << 20;
constexpr std::size_t kUnit = 64;

/// In the unit in front of its memory.
struct Block {
  std::size_t units;
  Block* next;
};

std::mutex mutex;
char* begin = nullptr;
char* unused = nullptr;
Block* freed[kMostBytes / kUnit + 1];

bool is_ours(const void* memory) {
  const char* start = static_cast<const char*>(memory);
  return begin != nullptr && start >= begin && start < begin + kReserved;
}

Block* block_of(void* memory) {
  return reinterpret_cast<Block*>(static_cast<char*>(memory) - kUnit);
}

/// Null: it is not given out here.
void* take(std::size_t bytes) {
  const std::size_t units = std::max<std::size_t>((bytes + kUnit - 1) / kUnit, 1);
  if (bytes > kMostBytes) {
    return nullptr;
  }
  const std::lock_guard lock(mutex);
  if (begin == nullptr) {
    void* reserved = mmap(nullptr, kReserved, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) {
      return nullptr;
    }
    begin = unused = static_cast<char*>(reserved);
  }
  Block* block = freed[units];
  if (block != nullptr) {
    freed[units] = block->next;
  } else if (const std::size_t size = (units + 1) * kUnit;
             size <= static_cast<std::size_t>(begin + kReserved - unused)) {
    block = reinterpret_cast<Block*>(unused);
    block->units = units;
    unused += size;
  } else {
    return nullptr;
  }
  return reinterpret_cast<char*>(block) + kUnit;
}

}  // namespace

extern "C" {

void* malloc(std::size_t bytes) {
  void* memory = take(bytes);
  return memory == nullptr ? __libc_malloc(bytes) : memory;
}

void* calloc(std::size_t count, std::size_t bytes) {
  std::size_t total = 0;
  if (__builtin_mul_overflow(count, bytes, &total)) {
    return nullptr;
  }
  void* memory = malloc(total);
  return memory == nullptr ? nullptr : std::memset(memory, 0, total);
}

int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  *memory = alignment > kUnit ? nullptr : take(bytes);
  if (*memory == nullptr) {
    *memory = __libc_memalign(alignment, bytes);
  }
  return *memory == nullptr ? ENOMEM : 0;
}

void free(void* memory) {
  if (!is_ours(memory)) {
    __libc_free(memory);
    return;
  }
  Block* block = block_of(memory);
  const std::lock_guard lock(mutex);
  block->next = freed[block->units];
  freed[block->units] = block;
}

void* realloc(void* memory, std::size_t bytes) {
  if (memory != nullptr && !is_ours(memory)) {
    return __libc_realloc(memory, bytes);
  }
  void* moved = malloc(bytes);
  if (memory != nullptr && moved != nullptr) {
    std::memcpy(moved, memory, std::min(bytes, block_of(memory)->units * kUnit));
    free(memory);
  }
  return moved;
}

void start() { CALLGRIND_START_INSTRUMENTATION; }
void stop() { CALLGRIND_STOP_INSTRUMENTATION; }
void zero() { CALLGRIND_ZERO_STATS; }
void dump(const char* name) { CALLGRIND_DUMP_STATS_AT(name); }
}
