/* y = x * by, by a kernel of a bundle: scale DEVICE BUNDLE. Prints what it computed; exits with 1 if that is wrong. */
#include <stdio.h>
#include <string.h>

#include "tegula_rt.h"

#define N 1000
#define CHECK(call)                                                                  \
    do {                                                                             \
        if ((call) != 0) {                                                           \
            fprintf(stderr, "%s\n", tegula_last_error());                            \
            return 1;                                                                \
        }                                                                            \
    } while (0)

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s DEVICE BUNDLE\n", argv[0]);
        return 2;
    }
    static float x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = (float)i;
    float by = 2.5f;
    uint32_t by_bits;
    memcpy(&by_bits, &by, sizeof by_bits);

    tegula_device *device;
    tegula_bundle *bundle;
    tegula_kernel *kernel;
    tegula_memory *dx, *dy;
    CHECK(tegula_device_open(argv[1], &device));
    CHECK(tegula_bundle_open(argv[2], &bundle));
    CHECK(tegula_kernel_find(bundle, "scale", "f32", "128", &kernel));
    CHECK(tegula_memory_new(device, sizeof x, &dx));
    CHECK(tegula_memory_new(device, sizeof y, &dy));
    CHECK(tegula_memory_write(dx, x, sizeof x));

    size_t shape[] = {N}, strides[] = {1};
    tegula_argument arguments[] = {
        {TEGULA_VIEW, 1, "f32", tegula_memory_address(dx), shape, strides},
        {TEGULA_VIEW_MUT, 1, "f32", tegula_memory_address(dy), shape, strides},
        {TEGULA_SCALAR, 0, "f32", by_bits, NULL, NULL},
    };
    uint32_t grid[3] = {(N + 127) / 128, 1, 1};
    CHECK(tegula_kernel_launch(kernel, device, NULL, grid, arguments, 3));
    CHECK(tegula_memory_read(dy, y, sizeof y));

    for (int i = 0; i < N; i++) {
        if (y[i] != x[i] * by) {
            fprintf(stderr, "y[%d] is %g\n", i, y[i]);
            return 1;
        }
    }
    printf("y[1] = %g, y[%d] = %g\n", y[1], N - 1, y[N - 1]);
    tegula_memory_free(dx);
    tegula_memory_free(dy);
    tegula_kernel_close(kernel);
    tegula_bundle_close(bundle);
    tegula_device_close(device);
    return 0;
}
