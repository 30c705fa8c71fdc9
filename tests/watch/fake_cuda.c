/* Answers as libcuda.so.1 does where processes are checkpointed. The state of process N (CUprocessState: 0 running,
   1 locked, 2 checkpointed) is the digit in the file N of the folder FAKE_CUDA; one without a file has no GPU memory.

   FAKE_CUDA_REFUSES    "Checkpoint:77": that call of that process is not supported, and changes nothing

   A call out of its turn is an error, as with the real one. Compiled with -DOLD_DRIVER it cannot checkpoint. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, ILLEGAL_STATE = 401, NOT_SUPPORTED = 801 };
enum { RUNNING, LOCKED, CHECKPOINTED };

typedef struct { unsigned timeout_ms, reserved0; unsigned long long reserved1[7]; } LockArgs;

int cuInit(unsigned flags) { return flags == 0 ? SUCCESS : INVALID_VALUE; }

int cuGetErrorName(int status, const char **name) {
    *name = status == INVALID_VALUE   ? "CUDA_ERROR_INVALID_VALUE"
            : status == ILLEGAL_STATE ? "CUDA_ERROR_ILLEGAL_STATE"
            : status == NOT_SUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED"
                                      : NULL;
    return *name ? SUCCESS : INVALID_VALUE;
}

#ifndef OLD_DRIVER
static FILE *state_file(int pid, const char *mode) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%d", getenv("FAKE_CUDA"), pid);
    return fopen(path, mode);
}

static int move(const char *call, int pid, int from, int to) {
    char wanted[64];
    const char *refused = getenv("FAKE_CUDA_REFUSES");
    FILE *file = state_file(pid, "r+");
    if (!file) return INVALID_VALUE;
    int status = fgetc(file) - '0' == from ? SUCCESS : ILLEGAL_STATE;
    snprintf(wanted, sizeof wanted, "%s:%d", call, pid);
    if (refused && strcmp(refused, wanted) == 0) status = NOT_SUPPORTED;
    if (status == SUCCESS) {
        rewind(file);
        fputc('0' + to, file);
    }
    fclose(file);
    return status;
}

int cuCheckpointProcessLock(int pid, LockArgs *args) {
    if (args && (args->timeout_ms == 0 || args->reserved0 || args->reserved1[0] || args->reserved1[6]))
        return INVALID_VALUE;
    return move("Lock", pid, RUNNING, LOCKED);
}
int cuCheckpointProcessCheckpoint(int pid, void *args) {
    return args ? INVALID_VALUE : move("Checkpoint", pid, LOCKED, CHECKPOINTED);
}
int cuCheckpointProcessRestore(int pid, void *args) {
    return args ? INVALID_VALUE : move("Restore", pid, CHECKPOINTED, LOCKED);
}
int cuCheckpointProcessUnlock(int pid, void *args) {
    return args ? INVALID_VALUE : move("Unlock", pid, LOCKED, RUNNING);
}

int cuCheckpointProcessGetState(int pid, int *state) {
    FILE *file = state_file(pid, "r");
    if (!file) return INVALID_VALUE;
    *state = fgetc(file) - '0';
    fclose(file);
    return SUCCESS;
}
#endif
