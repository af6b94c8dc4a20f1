/* Fake libcuda.so.1: the CUDA driver API over host memory dressed up as device memory.  No kernels.
 *
 * Build:  see tests/support/fakegpu/__init__.py
 * Devices: the entries of CUDA_VISIBLE_DEVICES, else FAKE_CUDA_COUNT (default 2).
 *
 * Faults, from the same control file as fake_nvml (FAKE_NVML_FILE), re-read at every call:
 *   gpuN.cuda=CODE       every memory and synchronisation call on that physical GPU returns CODE
 *   gpuN.cuda.FN=CODE    that function on that GPU
 *   gpuN.cuda_hang=S     sleep S seconds, or until the line leaves the file, then go on
 *
 * FAKE_CUDA_ORDER=1,0    CUDA's order of the devices by their index in NVML, as on hosts where the two differ
 * FAKE_CUDA_INIT=CODE    cuInit returns this
 * FAKE_CUDA_LAZY=1       asynchronous copies and sets happen only when their stream, or the context, is synchronised: what
 *                        reads device memory too early reads what was there before, as on a real device
 * FAKE_CUDA_CALLLOG=FILE a line "pid function bytes" a memory or synchronisation call
 * FAKE_CUDA_LOG=1        unknown symbols and attributes to stderr
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

typedef int R;
typedef int CUdevice;
typedef void *CUcontext;
typedef unsigned long long DP;
typedef void *S;

#define MEMORY (80ULL << 30)
#define LOG(...) do { if (getenv("FAKE_CUDA_LOG")) { fprintf(stderr, "[fakecuda] " __VA_ARGS__); fputc('\n', stderr); } } while (0)

/* ---- devices: the same default uuids as fake_nvml, the physical index in the last bytes ---- */
static int ndev(void) {
    const char *v = getenv("CUDA_VISIBLE_DEVICES");
    if (!v) { v = getenv("FAKE_CUDA_COUNT"); return v ? atoi(v) : 2; }
    if (!*v) return 0;
    int n = 1;
    for (; *v; v++) n += *v == ',';
    return n;
}
static int nth(const char *v, int i) { while (i-- && (v = strchr(v, ','))) v++; return v ? atoi(v) : -1; }
static int ordered(int i) { const char *o = getenv("FAKE_CUDA_ORDER"); return o ? nth(o, i) : i; }
static int phys(int i) {
    const char *v = getenv("CUDA_VISIBLE_DEVICES");
    if (!v) return ordered(i);
    while (i-- && (v = strchr(v, ','))) v++;
    if (!v) return -1;
    if (strncmp(v, "GPU-", 4)) return ordered(atoi(v));
    const char *d = v, *e = strchr(v, ',');
    for (const char *p = v; *p && p != e; p++) if (*p == '-') d = p;
    return (int)strtol(d + 1, NULL, 16);
}

/* ---- contexts: one primary context a device, a stack a thread ---- */
static int primary[64], active[64];
static __thread CUcontext stack[64];
static __thread int depth;
#define cur (depth ? stack[depth - 1] : NULL)
static CUcontext ctx_of(int d) { return &primary[d]; }
static int dev_of(CUcontext c) { return (int)((int *)c - primary); }

/* ---- faults and the call log ---- */
static const char *look(char *b, const char *key) {
    char p[96];
    int l = snprintf(p, sizeof p, "\n%s=", key);
    char *q = strstr(b, p);
    return q ? q + l : NULL;
}
static void slurp(char *b, size_t n) {
    const char *f = getenv("FAKE_NVML_FILE");
    b[0] = b[1] = 0;
    if (!f) return;
    int fd = open(f, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    b[0] = '\n';
    ssize_t t = 1, r;
    while (t < (ssize_t)n - 1 && (r = read(fd, b + t, n - 1 - t)) > 0) t += r;
    b[t] = 0;
    close(fd);
}
static void calllog(const char *fn, size_t n) {
    const char *p = getenv("FAKE_CUDA_CALLLOG");
    if (!p) return;
    char line[160];
    int l = snprintf(line, sizeof line, "%d %s %zu\n", (int)getpid(), fn, n);
    int fd = open(p, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0) { ssize_t w = write(fd, line, l); (void)w; close(fd); }
}
static R fault(const char *fn, int d, size_t n) {
    static __thread char b[32768];
    char k[96];
    const char *v;
    int p = phys(d);
    calllog(fn, n);
    slurp(b, sizeof b);
    snprintf(k, sizeof k, "gpu%d.cuda_hang", p);
    for (double w = 0; (v = look(b, k)) && w < atof(v); w += 0.02) {
        struct timespec t = { 0, 20000000 };
        nanosleep(&t, NULL);
        slurp(b, sizeof b);
    }
    snprintf(k, sizeof k, "gpu%d.cuda.%s", p, fn);
    if ((v = look(b, k))) return atoi(v);
    snprintf(k, sizeof k, "gpu%d.cuda", p);
    return (v = look(b, k)) ? atoi(v) : 0;
}
/* Like the driver: no call that touches memory without a current context (201 = INVALID_CONTEXT). */
#define F(fn, n) do { if (!cur) return 201; R r_ = fault(fn, dev_of(cur), n); if (r_) return r_; } while (0)

/* ---- what is queued on streams (FAKE_CUDA_LAZY) ---- */
typedef struct op { struct op *next; S stream; int set; DP d; DP s; void *own; unsigned char v; size_t n; } op;
static op *first, **last = &first;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void perform(op *o) {
    if (o->set) memset((void *)(uintptr_t)o->d, o->v, o->n);
    else memcpy((void *)(uintptr_t)o->d, o->own ? o->own : (void *)(uintptr_t)o->s, o->n);
}
static void queue(op o) {
    const char *lazy = getenv("FAKE_CUDA_LAZY");
    if (!lazy || !*lazy) { perform(&o); free(o.own); return; }
    op *p = malloc(sizeof *p);
    *p = o;
    p->next = NULL;
    pthread_mutex_lock(&lock);
    *last = p;
    last = &p->next;
    pthread_mutex_unlock(&lock);
}
static void settle(int all, S stream) {
    pthread_mutex_lock(&lock);
    op **at = &first;
    while (*at) {
        op *o = *at;
        if (!all && o->stream != stream) { at = &o->next; continue; }
        perform(o);
        *at = o->next;
        free(o->own);
        free(o);
    }
    last = at;
    pthread_mutex_unlock(&lock);
}

/* ---- library and devices ---- */
R cuInit(unsigned f) { const char *c = getenv("FAKE_CUDA_INIT"); return c ? atoi(c) : ndev() ? 0 : 100; }
R cuDriverGetVersion(int *v) { *v = 13000; return 0; }
R cuDeviceGetCount(int *n) { *n = ndev(); return 0; }
R cuDeviceGet(CUdevice *d, int i) { if (i < 0 || i >= ndev()) return 101; *d = i; return 0; }
R cuDeviceGetName(char *o, int n, CUdevice d) { snprintf(o, n, "NVIDIA Fake A100"); return 0; }
R cuDeviceGetUuid_v2(unsigned char *u, CUdevice d) {
    int p = phys(d);
    memset(u, 0, 16);
    u[0] = 0xfa; u[1] = 0x4e; u[14] = p >> 8; u[15] = p;
    return 0;
}
R cuDeviceGetUuid(unsigned char *u, CUdevice d) { return cuDeviceGetUuid_v2(u, d); }
R cuDeviceTotalMem_v2(size_t *b, CUdevice d) { *b = MEMORY; return 0; }
R cuDeviceGetPCIBusId(char *o, int n, CUdevice d) { snprintf(o, n, "0000:%02X:00.0", phys(d) + 1); return 0; }
R cuDeviceGetByPCIBusId(CUdevice *d, const char *s) {
    for (int i = 0; i < ndev(); i++) {
        char b[32];
        cuDeviceGetPCIBusId(b, 32, i);
        if (!strcasecmp(b, s)) { *d = i; return 0; }
    }
    return 101;
}
R cuDeviceGetAttribute(int *v, int a, CUdevice d) {
    switch (a) {
    case 75: *v = 9; break;          /* compute capability 9.0 */
    case 76: *v = 0; break;
    case 16: *v = 108; break;        /* multiprocessors */
    case 1: *v = 1024; break;        /* threads a block */
    case 10: *v = 32; break;         /* warp */
    case 41: case 83: case 115: case 31: *v = 1; break; /* unified addressing, managed, pools, concurrent kernels */
    case 33: *v = phys(d) + 1; break; /* PCI bus */
    case 39: *v = 2048; break;
    case 8: *v = 49152; break;
    case 97: *v = 166912; break;
    case 12: *v = 65536; break;
    default: *v = 0;
    }
    LOG("attr %d -> %d", a, *v);
    return 0;
}

/* ---- contexts ---- */
R cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { *c = ctx_of(d); active[d] = 1; return 0; }
R cuDevicePrimaryCtxRelease_v2(CUdevice d) { return 0; }
R cuDevicePrimaryCtxReset_v2(CUdevice d) { active[d] = 0; return 0; }
R cuDevicePrimaryCtxGetState(CUdevice d, unsigned *f, int *a) { *f = 0; *a = active[d]; return 0; }
R cuDevicePrimaryCtxSetFlags_v2(CUdevice d, unsigned f) { return 0; }
R cuCtxGetCurrent(CUcontext *c) { *c = cur; return 0; }
R cuCtxPushCurrent_v2(CUcontext c) { if (depth == 64) return 201; stack[depth++] = c; return 0; }
R cuCtxPopCurrent_v2(CUcontext *c) { if (!depth) return 201; depth--; if (c) *c = stack[depth]; return 0; }
R cuCtxSetCurrent(CUcontext c) { if (depth) depth--; return c ? cuCtxPushCurrent_v2(c) : 0; }
R cuCtxGetDevice(CUdevice *d) { if (!cur) return 201; *d = dev_of(cur); return 0; }
R cuCtxSynchronize(void) { F("cuCtxSynchronize", 0); settle(1, NULL); return 0; }
R cuCtxGetFlags(unsigned *f) { *f = 0; return 0; }
R cuCtxGetApiVersion(CUcontext c, unsigned *v) { *v = 13000; return 0; }
R cuCtxGetId(CUcontext c, unsigned long long *v) { *v = dev_of(c ? c : cur) + 1; return 0; }
R cuCtxGetLimit(size_t *v, int l) { *v = 0; return 0; }
R cuCtxSetLimit(int l, size_t v) { return 0; }
R cuCtxGetStreamPriorityRange(int *a, int *b) { if (a) *a = 0; if (b) *b = -1; return 0; }
R cuCtxGetCacheConfig(int *v) { *v = 0; return 0; }

/* ---- memory: a header before each device block holds its size, so that what is in use can be asked for ---- */
#define HEADER 512
static size_t used, pinned;
R cuMemAlloc_v2(DP *p, size_t n) {
    F("cuMemAlloc_v2", n);
    char *q = malloc(n + HEADER);
    if (!q) return 2;
    *(size_t *)q = n;
    __sync_fetch_and_add(&used, n);
    *p = (DP)(uintptr_t)(q + HEADER);
    return 0;
}
R cuMemFree_v2(DP p) {
    if (!p) return 0;
    /* Lenient about contexts: Python frees wherever its garbage collector runs. */
    R r = fault("cuMemFree_v2", cur ? dev_of(cur) : 0, 0);
    if (r) return r;
    settle(1, NULL);
    char *q = (char *)(uintptr_t)p - HEADER;
    __sync_fetch_and_sub(&used, *(size_t *)q);
    free(q);
    return 0;
}
R cuMemAllocAsync(DP *p, size_t n, S s) { return cuMemAlloc_v2(p, n); }
R cuMemFreeAsync(DP p, S s) { return cuMemFree_v2(p); }
R cuMemAllocFromPoolAsync(DP *p, size_t n, void *pool, S s) { return cuMemAlloc_v2(p, n); }
R cuMemAllocManaged(DP *p, size_t n, unsigned f) { return cuMemAlloc_v2(p, n); }
R cuMemHostAlloc(void **p, size_t n, unsigned f) {
    F("cuMemHostAlloc", n);
    char *q = NULL;
    if (posix_memalign((void **)&q, 4096, n + 4096)) return 2;
    *(size_t *)q = n;
    __sync_fetch_and_add(&pinned, n);
    *p = q + 4096;
    return 0;
}
R cuMemAllocHost_v2(void **p, size_t n) { return cuMemHostAlloc(p, n, 0); }
R cuMemFreeHost(void *p) {
    char *q = (char *)p - 4096;
    calllog("cuMemFreeHost", *(size_t *)q);
    __sync_fetch_and_sub(&pinned, *(size_t *)q);
    free(q);
    return 0;
}
R cuMemHostGetDevicePointer_v2(DP *d, void *p, unsigned f) { *d = (DP)(uintptr_t)p; return 0; }
R cuMemGetInfo_v2(size_t *f, size_t *t) { *t = MEMORY; *f = MEMORY - (1ULL << 30) - used; return 0; }
/* For tests: bytes of device memory and of pinned host memory that this process has allocated now. */
size_t fake_cuda_used(void) { return used; }
size_t fake_cuda_pinned(void) { return pinned; }

/* A blocking copy waits for the default stream only. */
static R copy(const char *fn, DP d, DP s, size_t n) {
    F(fn, n);
    settle(0, NULL);
    memcpy((void *)(uintptr_t)d, (void *)(uintptr_t)s, n);
    return 0;
}
R cuMemcpyHtoD_v2(DP d, const void *s, size_t n) { return copy("cuMemcpyHtoD_v2", d, (DP)(uintptr_t)s, n); }
R cuMemcpyDtoH_v2(void *d, DP s, size_t n) { return copy("cuMemcpyDtoH_v2", (DP)(uintptr_t)d, s, n); }
R cuMemcpyDtoD_v2(DP d, DP s, size_t n) { return copy("cuMemcpyDtoD_v2", d, s, n); }
R cuMemcpy(DP d, DP s, size_t n) { return copy("cuMemcpy", d, s, n); }
R cuMemcpyHtoDAsync_v2(DP d, const void *s, size_t n, S st) {
    F("cuMemcpyHtoDAsync_v2", n);
    void *own = malloc(n ? n : 1); /* the driver stages pageable memory before it returns */
    memcpy(own, s, n);
    queue((op){ .stream = st, .d = d, .own = own, .n = n });
    return 0;
}
R cuMemcpyDtoHAsync_v2(void *d, DP s, size_t n, S st) {
    F("cuMemcpyDtoHAsync_v2", n);
    queue((op){ .stream = st, .d = (DP)(uintptr_t)d, .s = s, .n = n });
    return 0;
}
R cuMemcpyDtoDAsync_v2(DP d, DP s, size_t n, S st) {
    F("cuMemcpyDtoDAsync_v2", n);
    queue((op){ .stream = st, .d = d, .s = s, .n = n });
    return 0;
}
R cuMemcpyAsync(DP d, DP s, size_t n, S st) { return cuMemcpyDtoDAsync_v2(d, s, n, st); }
R cuMemsetD8Async(DP d, unsigned char v, size_t n, S st) {
    F("cuMemsetD8Async", n);
    queue((op){ .stream = st, .set = 1, .d = d, .v = v, .n = n });
    return 0;
}
R cuMemsetD8_v2(DP d, unsigned char v, size_t n) {
    F("cuMemsetD8_v2", n);
    settle(0, NULL);
    memset((void *)(uintptr_t)d, v, n);
    return 0;
}
R cuMemsetD32_v2(DP d, unsigned v, size_t n) {
    F("cuMemsetD32_v2", 4 * n);
    unsigned *p = (void *)(uintptr_t)d;
    while (n--) *p++ = v;
    return 0;
}
R cuMemsetD32Async(DP d, unsigned v, size_t n, S st) { return cuMemsetD32_v2(d, v, n); }
R cuPointerGetAttribute(void *o, int a, DP p) {
    switch (a) {
    case 1: *(CUcontext *)o = ctx_of(0); break;
    case 2: *(unsigned *)o = 2; break; /* device memory */
    case 3: *(DP *)o = p; break;
    case 4: *(void **)o = (void *)(uintptr_t)p; break;
    case 9: *(int *)o = 0; break; /* ordinal */
    default: return 1;
    }
    return 0;
}
R cuPointerGetAttributes(unsigned n, int *a, void **o, DP p) {
    for (unsigned i = 0; i < n; i++) cuPointerGetAttribute(o[i], a[i], p);
    return 0;
}

/* ---- pools, streams, events ---- */
R cuDeviceGetDefaultMemPool(void **p, CUdevice d) { *p = &primary[d]; return 0; }
R cuDeviceGetMemPool(void **p, CUdevice d) { *p = &primary[d]; return 0; }
R cuDeviceSetMemPool(CUdevice d, void *p) { return 0; }
R cuMemPoolGetAttribute(void *p, int a, void *o) { *(uint64_t *)o = 0; return 0; }
R cuMemPoolSetAttribute(void *p, int a, void *o) { return 0; }
R cuMemPoolCreate(void **p, void *props) { *p = malloc(8); return 0; }
R cuMemPoolDestroy(void *p) { free(p); return 0; }
R cuMemPoolTrimTo(void *p, size_t n) { return 0; }
R cuStreamCreate(S *s, unsigned f) { *s = malloc(8); return 0; }
R cuStreamCreateWithPriority(S *s, unsigned f, int p) { return cuStreamCreate(s, f); }
R cuStreamDestroy_v2(S s) { settle(0, s); free(s); return 0; }
R cuStreamSynchronize(S s) { F("cuStreamSynchronize", 0); settle(0, s); return 0; }
R cuStreamQuery(S s) { return 0; }
R cuStreamGetCtx(S s, CUcontext *c) { *c = cur; return 0; }
R cuStreamGetDevice(S s, CUdevice *d) { return cuCtxGetDevice(d); }
R cuStreamGetFlags(S s, unsigned *f) { *f = 1; return 0; }
R cuStreamGetPriority(S s, int *p) { *p = 0; return 0; }
R cuStreamWaitEvent(S s, void *e, unsigned f) { settle(1, NULL); return 0; }
R cuStreamIsCapturing(S s, int *v) { *v = 0; return 0; }
R cuStreamGetCaptureInfo_v2(S s, int *st, unsigned long long *id, void *g, void *d, size_t *n) { *st = 0; return 0; }
R cuStreamGetCaptureInfo_v3(S s, int *st, unsigned long long *id, void *g, void *d, void *e, size_t *n) { *st = 0; return 0; }
R cuEventCreate(void **e, unsigned f) { *e = malloc(8); return 0; }
R cuEventDestroy_v2(void *e) { free(e); return 0; }
R cuEventRecord(void *e, S s) { return 0; }
R cuEventSynchronize(void *e) { settle(1, NULL); return 0; }
R cuEventQuery(void *e) { return 0; }
R cuEventElapsedTime(float *ms, void *a, void *b) { *ms = 0; return 0; }

/* ---- names and symbols ---- */
R cuGetErrorName(R e, const char **s) { static __thread char b[32]; snprintf(b, sizeof b, "CUDA_ERROR_%d", e); *s = b; return 0; }
R cuGetErrorString(R e, const char **s) { return cuGetErrorName(e, s); }
R cuGetExportTable(const void **t, const unsigned char *u) { *t = NULL; return 500; }
static void *self;
R cuGetProcAddress_v2(const char *name, void **pfn, int ver, uint64_t flags, int *st) {
    static const char *suffixes[] = { "_v3", "_v2", "", NULL };
    if (!self) {
        Dl_info i;
        dladdr((void *)cuInit, &i);
        self = dlopen(i.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }
    char b[128];
    *pfn = NULL;
    for (int k = 0; suffixes[k] && !*pfn; k++) {
        snprintf(b, sizeof b, "%s%s", name, suffixes[k]);
        *pfn = dlsym(self, b);
    }
    if (st) *st = *pfn ? 0 : 1;
    if (!*pfn) LOG("no symbol %s ver %d flags %llu", name, ver, (unsigned long long)flags);
    return *pfn ? 0 : 500;
}
R cuGetProcAddress(const char *name, void **pfn, int ver, uint64_t flags) { return cuGetProcAddress_v2(name, pfn, ver, flags, NULL); }
