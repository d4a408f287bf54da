/* tegula_rt.h: kernels of bundles, launched from C and whatever calls C.
 *
 *   tegula_device *device;  tegula_bundle *bundle;  tegula_kernel *kernel;
 *   tegula_device_open("cuda:0", &device);
 *   tegula_bundle_open("kernels.tegula", &bundle);
 *   tegula_kernel_find(bundle, "rms_norm", "bf16, bf16", "Config { … }", &kernel);
 *   tegula_kernel_launch(kernel, device, stream, grid, arguments, count);
 *
 * Functions return 0, or -1 if they failed: tegula_last_error() then says why, and what they give out by their last parameter is NULL or 0. Null where something is needed is
 * such a failure; closing NULL does nothing.
 *
 * They may be called from any thread. A handle may be used by several threads at a time, and is closed once, by one, when nobody uses it any more. What a handle was made of
 * (a device, a bundle) may be closed before it.
 */
#ifndef TEGULA_RT_H
#define TEGULA_RT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when programs that were compiled with the header before would not work; what is added leaves it. */
#define TEGULA_ABI_VERSION 1

/* That of the library. Programs that load it at run time compare it with TEGULA_ABI_VERSION first. */
uint32_t tegula_abi_version(void);

/* The library's version: "0.1.0". */
const char *tegula_version(void);

typedef struct tegula_device tegula_device;
typedef struct tegula_bundle tegula_bundle;
typedef struct tegula_kernel tegula_kernel;
typedef struct tegula_stream tegula_stream;
typedef struct tegula_memory tegula_memory;

enum {
    TEGULA_VIEW = 0,        /* address, rank, shape, strides; read */
    TEGULA_VIEW_MUT = 1,    /* the same; written */
    TEGULA_POINTER = 2,     /* address; read */
    TEGULA_POINTER_MUT = 3, /* address; written */
    TEGULA_SCALAR = 4       /* bits */
};

typedef struct tegula_argument {
    uint32_t kind;         /* one of the above */
    uint32_t rank;         /* of views */
    const char *type;      /* the element type: "bf16", "f32", "i32", … */
    uint64_t value;        /* the device address of element 0, a multiple of an element's size; a scalar's bits, zero-extended */
    const size_t *shape;   /* `rank` extents */
    const size_t *strides; /* `rank` strides, in elements */
} tegula_argument;

/* What went wrong in the last call on this thread that failed; valid until the next one that fails. Never null. */
const char *tegula_last_error(void);

/* "cuda:0", "cuda:1", …: the GPU's primary context, which PyTorch and the CUDA runtime use, too. "emulated:sm_90a": without a GPU. */
int tegula_device_open(const char *name, tegula_device **device);
void tegula_device_close(tegula_device *device);
int tegula_device_synchronize(const tegula_device *device);

/* A file, which is mapped: what is read of it is what is asked for. */
int tegula_bundle_open(const char *path, tegula_bundle **bundle);
/* A bundle in memory. The bytes are copied. `name`, which may be NULL, is what messages call it. */
int tegula_bundle_open_memory(const void *bytes, size_t size, const char *name, tegula_bundle **bundle);
void tegula_bundle_close(tegula_bundle *bundle);

/* The number of kernels that can be found, by all of their names: the lines of `tegula bundle list`. */
int tegula_bundle_count(const tegula_bundle *bundle, size_t *count);

/* The kernel with this name, element types and config, as tegula_kernel_describe() and `tegula bundle list` say them. If several are called so (a bundle that was merged
 * of an old and a new one), none is given; they can be had by their numbers. */
int tegula_kernel_find(const tegula_bundle *bundle, const char *name, const char *types, const char *config,
                       tegula_kernel **kernel);
/* The kernel with this number, from 0 to the count. Numbers are of this bundle only: equal files have equal ones. */
int tegula_kernel_at(const tegula_bundle *bundle, size_t number, tegula_kernel **kernel);
void tegula_kernel_close(tegula_kernel *kernel);

typedef struct tegula_parameter {
    const char *name;
    const char *type; /* as of arguments */
    uint32_t kind;    /* as of arguments; TEGULA_VIEW_MUT takes only such, TEGULA_VIEW both; of pointers it is not known, and always TEGULA_POINTER */
    uint32_t rank;    /* of views */
} tegula_parameter;

typedef struct tegula_kernel_info {
    const char *name;   /* "rms_norm" */
    const char *types;  /* "bf16, bf16" */
    const char *config; /* "Config { … }" */
    size_t count;       /* of parameters */
    const tegula_parameter *parameters;
} tegula_kernel_info;

/* What a kernel is called and takes; valid until it is closed. NULL of NULL. */
const tegula_kernel_info *tegula_kernel_describe(const tegula_kernel *kernel);

/* A CUstream of the device's primary context (torch.cuda.current_stream().cuda_stream). Closing waits for it and does not destroy it. */
int tegula_stream_wrap(const tegula_device *device, uint64_t stream, tegula_stream **wrapped);
void tegula_stream_close(tegula_stream *stream);

/* Submits grid[0] x grid[1] x grid[2] programs to a stream; a NULL stream is the device's own. The memory must be the device's and stay valid until the work is done, and
 * what is written must overlap with no other argument. Of the kernel's variants, the one runs that makes most of the arguments' alignment, strides and extents.
 *
 * Refused are null addresses, but of views without elements; addresses that are not multiples of an element's size; and views that are written and have elements at one place,
 * as by a stride of 0 (what takes three strides to overlap is not found). */
int tegula_kernel_launch(const tegula_kernel *kernel, const tegula_device *device, const tegula_stream *stream,
                         const uint32_t grid[3], const tegula_argument *arguments, size_t count);

/* Memory of a device, for programs that have no other means. It is zero at first. Reading and writing begin at its first byte, wait for all work of the device that was
 * submitted before, and are done when they return; of several threads that write and read one memory, each waits for its turn. What a read that failed was to fill is as it was. */
int tegula_memory_new(const tegula_device *device, size_t bytes, tegula_memory **memory);
uint64_t tegula_memory_address(const tegula_memory *memory);
int tegula_memory_write(tegula_memory *memory, const void *from, size_t bytes);
int tegula_memory_read(const tegula_memory *memory, void *to, size_t bytes);
void tegula_memory_free(tegula_memory *memory);

#ifdef __cplusplus
}
#endif
#endif
