// Fakes of the functions of NVIDIA's driver and compiler that Lockstep calls. They use the host's memory and compute
// nothing: a launch writes its grid and arguments to its first argument. They serve to test the calls.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#define API extern "C" int
static int live = 0;
API fake_live() { return live; }
API cuInit(unsigned) { return 0; }
API cuDeviceGetCount(int* count) { return *count = 2, 0; }
API cuDeviceGet(int* device, int number) { return *device = 40 + number, 0; }
API cuDeviceGetAttribute(int* value, int attribute, int device) {
    if (device != 41) return 1;
    *value = attribute == 75 ? 8 : attribute == 76 ? 6 : attribute == 115 ? 1 : -1;
    return 0;
}
API cuDeviceGetName(char* name, int bytes, int device) {
    return strncpy(name, device == 41 ? "Second of two" : "First of two", bytes), 0;
}
API cuDriverGetVersion(int* version) { return *version = 12090, 0; }
API cuMemGetInfo_v2(size_t* free, size_t* total) { return *free = 3ull << 30, *total = 4ull << 30, 0; }
API cuMemPoolGetAttribute(void* pool, int attribute, void* value) {
    return *(unsigned long long*)value = 12345, pool == (void*)0xb0 && attribute == 8 ? 0 : 1;
}
// Each event happens half a second after the previous one.
static float now = 0;
API cuEventCreate(void** event, unsigned flags) { return live++, *event = malloc(sizeof(float)), flags; }
API cuEventRecord(void* event, void* stream) { return *(float*)event = now += 500, stream != (void*)0x50; }
API cuEventSynchronize(void*) { return 0; }
API cuEventElapsedTime(float* milliseconds, void* from, void* to) {
    return *milliseconds = *(float*)to - *(float*)from, 0;
}
API cuEventDestroy_v2(void* event) { return live--, free(event), 0; }
API cuDevicePrimaryCtxRetain(void** context, int) { return live++, *context = (void*)0xc0, 0; }
API cuDevicePrimaryCtxRelease_v2(int) { return live--, 0; }
API cuCtxSetCurrent(void* context) { return context == (void*)0xc0 ? 0 : 201; }
API cuDeviceGetDefaultMemPool(void** pool, int) { return *pool = (void*)0xb0, 0; }
API cuMemPoolSetAttribute(void* pool, int attribute, void* value) {
    return pool == (void*)0xb0 && attribute == 4 && *(unsigned long long*)value == ~0ull ? 0 : 1;
}
API cuStreamCreate(void** stream, unsigned flags) { return live++, *stream = (void*)0x50, flags != 1; }
API cuStreamDestroy_v2(void*) { return live--, 0; }
// A launch with the argument 0.25 fails as on a GPU: the next wait reports the fault (here only once).
static bool fault = false;
API cuStreamSynchronize(void* stream) {
    int code = fault ? 700 : stream != (void*)0x50;
    return fault = false, code;
}
API cuMemAllocAsync(unsigned long long* at, size_t bytes, void* stream) {
    if (bytes > 1ull << 40) return 2;
    return live++, *at = (unsigned long long)malloc(bytes), stream != (void*)0x50;
}
API cuMemFreeAsync(unsigned long long at, void* stream) { return live--, free((void*)at), stream != (void*)0x50; }
API cuMemHostAlloc(void** at, size_t bytes, unsigned) { return live++, *at = malloc(bytes), 0; }
API cuMemFreeHost(void* at) { return live--, free(at), 0; }
API cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t bytes, void* stream) {
    return memcpy((void*)to, from, bytes), stream != (void*)0x50;
}
API cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t bytes, void* stream) {
    return memcpy(to, (void*)from, bytes), stream != (void*)0x50;
}
API cuMemsetD16Async(unsigned long long at, unsigned short value, size_t count, void* stream) {
    for (size_t i = 0; i < count; i++) ((unsigned short*)at)[i] = value;
    return stream != (void*)0x50;
}
API cuMemsetD32Async(unsigned long long at, unsigned value, size_t count, void* stream) {
    for (size_t i = 0; i < count; i++) ((unsigned*)at)[i] = value;
    return stream != (void*)0x50;
}
API cuModuleLoadData(void** module, const void* image) {
    return live++, *module = (void*)0x30, strncmp((const char*)image, "cubin of sm_86", 14) ? 200 : 0;
}
API cuModuleUnload(void*) { return live--, 0; }
API cuModuleGetFunction(void** function, void* module, const char* name) {
    return *function = (void*)0xf0, module != (void*)0x30 || strcmp(name, "there") ? 500 : 0;
}
API cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** arguments, void** extra) {
    if (function != (void*)0xf0 || stream != (void*)0x50 || extra || shared) return 1;
    float* to = *(float**)arguments[0];
    float all[] = {(float)gx, (float)gy, (float)gz, (float)bx, (float)(by * bz), *(float*)arguments[1], (float)*(unsigned*)arguments[2]};
    memcpy(to, all, sizeof all);
    fault |= *(float*)arguments[1] == 0.25f;
    return *(float*)arguments[1] < 0 ? 700 : 0;
}
// The number of calls with a stream that accept the default stream: none may.
API fake_accepts_the_default_stream() {
    unsigned long long at = 0;
    float host[16] = {};
    void *event = nullptr, *arguments[] = {&at, host, host};
    int accepted = cuMemAllocAsync(&at, 64, nullptr) == 0;
    accepted += cuMemsetD16Async(at, 0, 1, nullptr) == 0;
    accepted += cuMemsetD32Async(at, 0, 1, nullptr) == 0;
    accepted += cuMemcpyHtoDAsync_v2(at, host, 64, nullptr) == 0;
    accepted += cuMemcpyDtoHAsync_v2(host, at, 64, nullptr) == 0;
    accepted += cuLaunchKernel((void*)0xf0, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr) == 0;
    accepted += cuStreamSynchronize(nullptr) == 0;
    accepted += cuMemFreeAsync(at, nullptr) == 0;
    cuEventCreate(&event, 0);
    accepted += cuEventRecord(event, nullptr) == 0;
    cuEventDestroy_v2(event);
    return accepted;
}
API cuGetErrorName(int code, const char** text) { return *text = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : nullptr, 0; }
API cuGetErrorString(int code, const char** text) { return *text = code == 700 ? "an illegal memory access" : nullptr, 0; }

// Ranges are written to the file that LOCKSTEP_TEST_RANGES names.
static void say(const char* what, const char* name) {
    FILE* file = getenv("LOCKSTEP_TEST_RANGES") ? fopen(getenv("LOCKSTEP_TEST_RANGES"), "a") : nullptr;
    if (file) fprintf(file, "%s %s\n", what, name), fclose(file);
}
extern "C" unsigned long long nvtxRangeStartA(const char* name) { return say("start", name), 7; }
extern "C" void nvtxRangeEnd(unsigned long long range) { say("end", range == 7 ? "7" : "another"); }

API nvrtcVersion(int* major, int* minor) { return *major = 12, *minor = 9, 0; }
API nvrtcCreateProgram(void** program, const char* text, const char*, int, const char* const*, const char* const*) {
    return *program = (void*)text, 0;
}
static char arch[40];
static bool broken;
API nvrtcCompileProgram(void* program, int count, const char* const* options) {
    broken = strstr((const char*)program, "broken") != nullptr;
    for (int i = 0; i < count; i++)
        if (!strncmp(options[i], "--gpu-architecture=", 19)) strncpy(arch, options[i] + 19, 20);
    return broken ? 6 : 0;
}
API nvrtcDestroyProgram(void**) { return 0; }
API nvrtcGetProgramLogSize(void*, size_t* bytes) { return *bytes = 16, 0; }
API nvrtcGetProgramLog(void*, char* to) { return memcpy(to, "a line of a log", 16), 0; }
API nvrtcGetPTXSize(void*, size_t* bytes) { return *bytes = 1, 0; }
API nvrtcGetPTX(void*, char* to) { return *to = 0, 0; }
API nvrtcGetCUBINSize(void*, size_t* bytes) { return *bytes = 40, 0; }
API nvrtcGetCUBIN(void*, char* to) { return memset(to, 0, 40), strcat(strcat(to, "cubin of "), arch), 0; }
