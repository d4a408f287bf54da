/* The kernels of a bundle and what they take: list BUNDLE. Reads the file itself, as a program does that has its bundle among other things. */
#include <stdio.h>
#include <stdlib.h>

#include "tegula_rt.h"

static const char *const KINDS[] = {"view", "mut view", "pointer", "mut pointer", "scalar"};

static int fail(void) {
    fprintf(stderr, "%s\n", tegula_last_error());
    return 1;
}

/* The bytes of a file, or NULL. */
static void *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    void *bytes = NULL;
    long length;
    if (file == NULL) return NULL;
    if (fseek(file, 0, SEEK_END) == 0 && (length = ftell(file)) > 0 && fseek(file, 0, SEEK_SET) == 0) {
        *size = (size_t)length;
        bytes = malloc(*size);
        if (bytes != NULL && fread(bytes, 1, *size, file) != *size) {
            free(bytes);
            bytes = NULL;
        }
    }
    fclose(file);
    return bytes;
}

static int print(const tegula_bundle *bundle, size_t number) {
    tegula_kernel *kernel;
    const tegula_kernel_info *info;
    size_t i;
    if (tegula_kernel_at(bundle, number, &kernel) != 0) return fail();
    info = tegula_kernel_describe(kernel);
    printf("%s (%s) %s\n", info->name, info->types, info->config);
    for (i = 0; i < info->count; i++) {
        const tegula_parameter *p = &info->parameters[i];
        printf("  %s: %s %s", p->name, KINDS[p->kind], p->type);
        if (p->kind == TEGULA_VIEW || p->kind == TEGULA_VIEW_MUT) printf(", rank %u", (unsigned)p->rank);
        printf("\n");
    }
    tegula_kernel_close(kernel);
    return 0;
}

int main(int argc, char **argv) {
    tegula_bundle *bundle;
    size_t size = 0, count, i;
    void *bytes;
    int status;
    if (argc != 2) {
        fprintf(stderr, "usage: %s BUNDLE\n", argv[0]);
        return 2;
    }
    if (tegula_abi_version() != TEGULA_ABI_VERSION) {
        fprintf(stderr, "this program is for another libtegula_rt than version %s\n", tegula_version());
        return 1;
    }
    bytes = read_file(argv[1], &size);
    if (bytes == NULL) {
        fprintf(stderr, "%s cannot be read, or is empty\n", argv[1]);
        return 1;
    }
    status = tegula_bundle_open_memory(bytes, size, argv[1], &bundle);
    free(bytes); /* they were copied */
    if (status != 0 || tegula_bundle_count(bundle, &count) != 0) return fail();
    for (i = 0; i < count && status == 0; i++) status = print(bundle, i);
    tegula_bundle_close(bundle);
    return status;
}
