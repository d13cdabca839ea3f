/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rows of src/vt/cuda as a HIP backend has them: without matrix units. hip_compile.sh links this with the kernels compiled as HIP,
 * which fails where a row that is left names a function of a file that is not among them. With HIP_ROWS_COUNT it is a program, which looks
 * whether every signature of the table still has a row.
 */
#include <stdio.h>

#include "vt/backend_manifest.h"

#define HEADRACE_CUDA_MATRIX 0

#ifdef HIP_ROWS_COUNT

typedef struct hip_row {
    vt_op op;
    vt_sig sig;
    const char *name, *left_out;
} hip_row;

static const hip_row rows[] = {
#define ROW(op, a, b, c, need, fits, name, sw, function) {VT_OP_##op, {{a, b, c, VT_NONE}}, name, VT_ROW_LEFT_OUT(sw, #sw)},
#include "vt/cuda/kernel_rows.def"
#undef ROW
};

static bool same(const hip_row *x, const hip_row *y) {
    for (int i = 0; i < VT_SIG_MAX; i++)
        if (x->sig.dtype[i] != y->sig.dtype[i]) return false;
    return x->op == y->op;
}

int main(void) {
    const int n = (int)(sizeof rows / sizeof rows[0]);
    int n_out = 0, n_without = 0;
    for (int i = 0; i < n; i++) {
        if (!rows[i].left_out) continue;
        n_out++;
        bool found = false;
        for (int j = 0; j < n && !found; j++) found = !rows[j].left_out && same(&rows[i], &rows[j]);
        if (found) continue;
        n_without++;
        printf("%s is left out and no other row has its signature\n", rows[i].name);
    }
    printf("%d rows, %d of them left out by HEADRACE_CUDA_MATRIX\n", n, n_out);
    return n_without != 0 || n_out == 0 || n_out == n;
}

#else

#include "vt/cuda/cuda_device.cuh"

#define ROW VT_ROW_DECLARE
#include "vt/cuda/kernel_rows.def"
#undef ROW

extern const vt_row hip_rows[];
extern const void *const hip_measures[];

const vt_row hip_rows[] = {
#define ROW VT_ROW_DEFINE
#include "vt/cuda/kernel_rows.def"
#undef ROW
};

/* What the backend's own files ask of the kernels. */
const void *const hip_measures[] = {(const void *)(uintptr_t)cuda_read_pass};

/* What the kernels ask of the backend's own files. */
status cuda_result(cudaError_t rc, const char *what, error *err) {
    (void)what, (void)err;
    return rc == cudaSuccess ? STATUS_OK : STATUS_FAILED;
}

status cuda_refuse(error *err, const char *what) {
    (void)what, (void)err;
    return STATUS_INVALID;
}

/* In place of the devices' code, which is compiled apart from the host's here. */
extern const char __hip_fatbin[];
const char __hip_fatbin[16];

#endif
