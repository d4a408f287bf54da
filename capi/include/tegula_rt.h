/* tegula_rt.h: kernels of bundles, launched from C and whatever calls C.
 *
 *   tegula_device *device;  tegula_bundle *bundle;  tegula_kernel *kernel;
 *   tegula_device_open("cuda:0", &device);
 *   tegula_bundle_open("kernels.tegula", &bundle);
 *   tegula_kernel_find(bundle, "rms_norm", "bf16, bf16", "Config { … }", &kernel);
 *   tegula_kernel_launch(kernel, device, stream, grid, arguments, count);
 *
 * Functions return 0, or -1 if they failed: tegula_last_error() then says why. They may be called from any thread; a handle may be used by several threads, and is
 * closed once, by one. `tegula bundle show FILE` prints what kernels are called and what they take.
 */
#ifndef TEGULA_RT_H
#define TEGULA_RT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

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
    uint64_t value;        /* the device address of element 0; a scalar's bits, zero-extended */
    const size_t *shape;   /* `rank` extents */
    const size_t *strides; /* `rank` strides, in elements */
} tegula_argument;

/* What went wrong in the last call on this thread that failed; valid until the next one that fails. Never null. */
const char *tegula_last_error(void);

/* "cuda:0", "cuda:1", …: the GPU's primary context, which PyTorch and the CUDA runtime use, too. "emulated:sm_90a": without a GPU. */
int tegula_device_open(const char *name, tegula_device **device);
void tegula_device_close(tegula_device *device);
int tegula_device_synchronize(const tegula_device *device);

int tegula_bundle_open(const char *path, tegula_bundle **bundle);
void tegula_bundle_close(tegula_bundle *bundle);

/* The kernel with this name, element types and config, as `tegula bundle list` prints them. It outlives its bundle. */
int tegula_kernel_find(const tegula_bundle *bundle, const char *name, const char *types, const char *config,
                       tegula_kernel **kernel);
void tegula_kernel_close(tegula_kernel *kernel);

/* A CUstream of the device's primary context (torch.cuda.current_stream().cuda_stream). Closing waits for it and does not destroy it. */
int tegula_stream_wrap(const tegula_device *device, uint64_t stream, tegula_stream **wrapped);
void tegula_stream_close(tegula_stream *stream);

/* Submits grid[0] x grid[1] x grid[2] programs to a stream; a null stream is the device's own. The memory must be the device's and stay valid until the work is done, and
 * what is written must overlap with no other argument. Of the kernel's variants, the one runs that makes most of the arguments' alignment, strides and extents. */
int tegula_kernel_launch(const tegula_kernel *kernel, const tegula_device *device, const tegula_stream *stream,
                         const uint32_t grid[3], const tegula_argument *arguments, size_t count);

/* Memory of a device, for programs that have no other means. */
int tegula_memory_new(const tegula_device *device, size_t bytes, tegula_memory **memory);
uint64_t tegula_memory_address(const tegula_memory *memory);
int tegula_memory_write(tegula_memory *memory, const void *from, size_t bytes);
int tegula_memory_read(const tegula_memory *memory, void *to, size_t bytes);
void tegula_memory_free(tegula_memory *memory);

#ifdef __cplusplus
}
#endif
#endif
