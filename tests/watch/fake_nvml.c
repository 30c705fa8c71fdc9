/* Answers as libnvidia-ml.so.1 does, so that the real pynvml can be run without a GPU. Scripted by the environment:

   FAKE_NVML_INIT       what nvmlInitWithFlags returns (0: success, 9: driver not loaded)
   FAKE_NVML_USED       bytes in use on each GPU, without the reserved ones: "470800000,1592800000"
   FAKE_NVML_RESERVED   bytes that the driver keeps on every GPU
   FAKE_NVML_UTIL       percent, or "none": not supported, as under WSL or MIG
   FAKE_NVML_PROCESSES  "gpu:pid:bytes,...", with bytes "na" where the driver does not tell
   FAKE_NVML_LOST       index of a GPU that fell off the bus
   FAKE_CUDA            a folder as fake_cuda.c keeps it: a process that is checkpointed holds nothing on a GPU

   Compiled with -DOLD_DRIVER it lacks what came with newer drivers: memory v2, where reserved memory is apart. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, LOST = 15 };

typedef unsigned long long u64;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } Process;

static const u64 TOTAL = 8000000000ull;

static const char *setting(const char *name) { const char *s = getenv(name); return s ? s : ""; }

/* Handles are the index plus one: a null handle would be no GPU. */
static int index_of(void *gpu) { return (int)(size_t)gpu - 1; }

/* The index-th item of a list with commas; NULL behind its end. */
static const char *item(const char *list, int index) {
    for (; *list && index > 0; index--) {
        list = strchr(list, ',');
        if (!list) return NULL;
        list++;
    }
    return *list ? list : NULL;
}

static u64 used_on(void *gpu) { return strtoull(item(setting("FAKE_NVML_USED"), index_of(gpu)), NULL, 10); }
static u64 reserved(void) { return strtoull(setting("FAKE_NVML_RESERVED"), NULL, 10); }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return atoi(setting("FAKE_NVML_INIT")); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the fake"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    for (*count = 0; item(setting("FAKE_NVML_USED"), (int)*count); (*count)++) {}
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) {
    const char *lost = setting("FAKE_NVML_LOST");
    if (*lost && (unsigned)atoi(lost) == index) return LOST;
    if (!item(setting("FAKE_NVML_USED"), (int)index)) return INVALID;
    *gpu = (void *)(size_t)(index + 1);
    return SUCCESS;
}

int nvmlDeviceGetName(void *gpu, char *name, unsigned length) {
    snprintf(name, length, "NVIDIA FAKE %d", index_of(gpu));
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *gpu, Memory *memory) {
    memory->total = TOTAL;
    memory->used = used_on(gpu) + reserved(); /* v1 knows no difference */
    memory->free = TOTAL - memory->used;
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(void *gpu, MemoryV2 *memory) {
    if (memory->version != (sizeof(MemoryV2) | 2u << 24)) return INVALID;
    memory->total = TOTAL;
    memory->reserved = reserved();
    memory->used = used_on(gpu);
    memory->free = TOTAL - memory->used - memory->reserved;
    return SUCCESS;
}
#endif

int nvmlDeviceGetUtilizationRates(void *gpu, Utilization *rates) {
    (void)gpu;
    if (strcmp(setting("FAKE_NVML_UTIL"), "none") == 0) return NOT_SUPPORTED;
    rates->gpu = (unsigned)atoi(setting("FAKE_NVML_UTIL"));
    rates->memory = 0;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *gpu, unsigned *milliwatts) { (void)gpu; *milliwatts = 71500; return SUCCESS; }
int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *celsius) {
    (void)gpu;
    if (sensor != 0) return INVALID;
    *celsius = 41;
    return SUCCESS;
}
int nvmlDeviceGetClockInfo(void *gpu, int clock, unsigned *megahertz) {
    (void)gpu;
    if (clock != 1) return INVALID; /* the multiprocessors' */
    *megahertz = 1980;
    return SUCCESS;
}

static int is_checkpointed(long pid) {
    char path[4096];
    if (!*setting("FAKE_CUDA")) return 0;
    snprintf(path, sizeof path, "%s/%ld", setting("FAKE_CUDA"), pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    int state = fgetc(file);
    fclose(file);
    return state == '2';
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, Process *processes) {
    unsigned room = *count, found = 0;
    const char *entry;
    for (int i = 0; (entry = item(setting("FAKE_NVML_PROCESSES"), i)); i++) {
        char *rest;
        if (strtol(entry, &rest, 10) != index_of(gpu)) continue;
        if (is_checkpointed(strtol(rest + 1, NULL, 10))) continue;
        if (found < room) {
            processes[found].pid = (unsigned)strtoul(rest + 1, &rest, 10);
            processes[found].used = strncmp(rest + 1, "na", 2) == 0 ? ~0ull : strtoull(rest + 1, NULL, 10);
            processes[found].gpu_instance = processes[found].compute_instance = ~0u;
        }
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
