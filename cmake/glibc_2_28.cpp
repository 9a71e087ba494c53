// Lets a module that was linked on a newer system run on glibc 2.28. These functions moved into
// libc.so.6 with glibc 2.34 and got a new version there; the old one exists on every system. The
// linker's --wrap (pygraph_portable in Targets.cmake) sends all calls here, those of libstdc++ too.
#include <dlfcn.h>
#include <pthread.h>

#if defined(__x86_64__)
#define PYGRAPH_FIRST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define PYGRAPH_FIRST_GLIBC "GLIBC_2.17"
#else
#error "which was the first version of glibc for this processor?"
#endif

#define PYGRAPH_OLD(result, name, parameters, arguments)         \
  __asm__(".symver old_" #name ", " #name "@" PYGRAPH_FIRST_GLIBC); \
  extern "C" result old_##name parameters;                       \
  extern "C" result __wrap_##name parameters { return old_##name arguments; }

PYGRAPH_OLD(void*, dlopen, (const char* file, int mode), (file, mode))
PYGRAPH_OLD(void*, dlsym, (void* handle, const char* name), (handle, name))
PYGRAPH_OLD(char*, dlerror, (), ())
PYGRAPH_OLD(int, pthread_once, (pthread_once_t* once, void (*run)()), (once, run))
PYGRAPH_OLD(int, pthread_mutex_trylock, (pthread_mutex_t* mutex), (mutex))

// New in glibc 2.32: whether std::shared_ptr may count without atomics. Beside torch it never may.
extern "C" {
char __libc_single_threaded = 0;
}
