/* A CUDA driver that does nothing and succeeds: with it `tests/driver.rs` measures what Tegula adds to a launch, and counts what it asks for, where there is no
 * GPU. "Device" memory is the host's; kernels do not run. With TEGULA_STUB_LOG=file, each call that has to do with order is a line of that file.
 * Only what the run time calls is here; cudarc looks symbols up when they are first called.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int result;
typedef void *handle;
enum { SUCCESS = 0 };

static FILE *file;
static _Thread_local handle current;
static char context;

__attribute__((constructor)) static void start(void) {
  const char *name = getenv("TEGULA_STUB_LOG");
  if (name) file = fopen(name, "w");
}

#define SAY(...) \
  do { \
    if (__builtin_expect(file != NULL, 0)) { fprintf(file, __VA_ARGS__); fflush(file); } \
  } while (0)

/* Streams, events and graphs are small numbers, so that the log is readable. */
static handle next(void) {
  static uintptr_t last;
  return (handle)__atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
}

result cuInit(unsigned flags) { return SUCCESS; }
result cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
result cuDeviceGet(int *device, int ordinal) { *device = ordinal; return SUCCESS; }
result cuDeviceGetName(char *name, int length, int device) { strncpy(name, "stub", length); return SUCCESS; }
result cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)1 << 30; return SUCCESS; }
result cuDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
    case 75: *value = 9; break; /* compute capability: 9.0 */
    case 76: *value = 0; break;
    default: *value = 1 << 17; /* enough of all else */
  }
  return SUCCESS;
}
result cuDevicePrimaryCtxRetain(handle *to, int device) { *to = &context; return SUCCESS; }
result cuDevicePrimaryCtxRelease_v2(int device) { return SUCCESS; }
result cuCtxSetCurrent(handle to) { SAY("set\n"); current = to; return SUCCESS; }
result cuCtxGetCurrent(handle *to) { SAY("get\n"); *to = current; return SUCCESS; }
result cuCtxSynchronize(void) { return SUCCESS; }
result cuGetErrorName(result code, const char **text) { *text = "STUB"; return SUCCESS; }
result cuGetErrorString(result code, const char **text) { *text = "the stub failed"; return SUCCESS; }

result cuMemPoolCreate(handle *pool, const void *properties) { *pool = next(); return SUCCESS; }
result cuMemPoolSetAttribute(handle pool, int attribute, void *value) { return SUCCESS; }
result cuMemPoolDestroy(handle pool) { return SUCCESS; }
result cuMemAllocFromPoolAsync(uint64_t *to, size_t bytes, handle pool, handle stream) {
  *to = (uint64_t)(uintptr_t)malloc(bytes);
  return SUCCESS;
}
result cuMemAlloc_v2(uint64_t *to, size_t bytes) {
  *to = (uint64_t)(uintptr_t)aligned_alloc(256, bytes);
  return SUCCESS;
}
result cuMemFree_v2(uint64_t memory) { free((void *)(uintptr_t)memory); return SUCCESS; }
result cuMemFreeAsync(uint64_t memory, handle stream) { free((void *)(uintptr_t)memory); return SUCCESS; }
result cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, handle stream) {
  memcpy((void *)(uintptr_t)to, from, bytes);
  return SUCCESS;
}
result cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, handle stream) {
  memcpy(to, (void *)(uintptr_t)from, bytes);
  return SUCCESS;
}
result cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, handle stream) {
  memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
  return SUCCESS;
}
result cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, handle stream) {
  memset((void *)(uintptr_t)to, value, bytes);
  return SUCCESS;
}

result cuStreamCreate(handle *stream, unsigned flags) { *stream = next(); return SUCCESS; }
result cuStreamDestroy_v2(handle stream) { return SUCCESS; }
result cuStreamSynchronize(handle stream) { SAY("sync %zu\n", (size_t)stream); return SUCCESS; }
result cuStreamWaitEvent(handle stream, handle event, unsigned flags) {
  SAY("wait %zu %zu\n", (size_t)stream, (size_t)event);
  return SUCCESS;
}
result cuEventCreate(handle *event, unsigned flags) { *event = next(); return SUCCESS; }
result cuEventDestroy_v2(handle event) { return SUCCESS; }
result cuEventRecord(handle event, handle stream) {
  SAY("record %zu %zu\n", (size_t)event, (size_t)stream);
  return SUCCESS;
}

result cuModuleLoadData(handle *module, const void *image) { *module = next(); return SUCCESS; }
result cuModuleLoadDataEx(handle *module, const void *image, unsigned count, int *options, void **values) {
  *module = next();
  return SUCCESS;
}
result cuModuleGetFunction(handle *function, handle module, const char *name) { *function = next(); return SUCCESS; }
result cuModuleUnload(handle module) { return SUCCESS; }
result cuFuncSetAttribute(handle function, int attribute, int value) { return SUCCESS; }

/* A map is 128 bytes, aligned to 64. */
result cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *dims, const uint64_t *strides,
                              const unsigned *box, const unsigned *steps, int interleave, int swizzle, int promotion, int fill) {
  SAY("encode %u %zu\n", rank, (size_t)dims[rank - 1]);
  if ((uintptr_t)map % 64) return 1;
  memset(map, 0, 128);
  memcpy(map, &address, sizeof address);
  return SUCCESS;
}

/* CUlaunchConfig, as far as it is read. */
struct config {
  unsigned grid[3], block[3], shared;
  handle stream;
};
result cuLaunchKernelEx(const struct config *config, handle function, void **params, void **extra) {
  SAY("launch %zu\n", (size_t)config->stream);
  return SUCCESS;
}
