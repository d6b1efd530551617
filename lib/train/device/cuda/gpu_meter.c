/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/gpu_meter.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/symbols.h"

/* NVML's stable ABI; there is no header of it in the CUDA toolkit. */
struct nvml_memory { /* nvmlMemory_t */
	unsigned long long total, free, used;
};
struct nvml_use { /* nvmlUtilization_t */
	unsigned gpu, memory;
};
struct nvml_process { /* nvmlProcessInfo_t since driver 510, of the _v3 call */
	unsigned pid;
	unsigned long long memory;
	unsigned gpu_instance, compute_instance;
};
#define PROCESSES_MAX 64
typedef struct nvml_device *nvml_handle;

struct gpu_meter {
	void *library;
	nvml_handle handle;
	int (*init)(void);
	int (*shutdown)(void);
	int (*by_uuid)(const char *, nvml_handle *);
	int (*memory)(nvml_handle, struct nvml_memory *);
	/* NULL in other drivers. */
	int (*use)(nvml_handle, struct nvml_use *);
	int (*power_mw)(nvml_handle, unsigned *);
	int (*throttled)(nvml_handle, unsigned long long *);
	int (*processes)(nvml_handle, unsigned *, struct nvml_process *);
};

/* nvmlClocksThrottleReason...: bits. */
static const struct {
	const char *name;
	unsigned long long bit;
} reasons[GPU_THROTTLE_COUNT] = {
	[GPU_THROTTLE_POWER] = {"power-cap", 0x4},
	[GPU_THROTTLE_THERMAL] = {"thermal", 0x20},
	[GPU_THROTTLE_HW_THERMAL] = {"hw-thermal", 0x40},
	[GPU_THROTTLE_POWER_BRAKE] = {"power-brake", 0x80},
	[GPU_THROTTLE_HW] = {"hw-slowdown", 0x8},
};

const char *gpu_throttle_name(enum gpu_throttle why)
{
	return reasons[why].name;
}

static bool load(struct gpu_meter *meter)
{
	const struct symbol symbols[] = {
		{"nvmlInit_v2", &meter->init, true},
		{"nvmlShutdown", &meter->shutdown, true},
		{"nvmlDeviceGetHandleByUUID", &meter->by_uuid, true},
		{"nvmlDeviceGetMemoryInfo", &meter->memory, true},
		{"nvmlDeviceGetUtilizationRates", &meter->use, false},
		{"nvmlDeviceGetPowerUsage", &meter->power_mw, false},
		{"nvmlDeviceGetCurrentClocksThrottleReasons", &meter->throttled, false},
		{"nvmlDeviceGetComputeRunningProcesses_v3", &meter->processes, false},
	};

	return !symbols_find(meter->library, symbols, sizeof symbols / sizeof *symbols);
}

/* CUDA tells a MIG device's own number, which NVML knows under another name. */
static int find_handle(struct gpu_meter *meter, const char *uuid)
{
	char mig[64];

	if (!meter->by_uuid(uuid, &meter->handle))
		return 0;
	if (strncmp(uuid, "GPU-", 4))
		return -1;
	snprintf(mig, sizeof mig, "MIG-%s", uuid + 4);
	return meter->by_uuid(mig, &meter->handle);
}

struct gpu_meter *gpu_meter_open(const char *uuid, const char *library)
{
	struct gpu_meter *meter = calloc(1, sizeof *meter);

	if (!meter)
		return NULL;
	meter->library = dlopen(library ? library : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!meter->library || !load(meter) || meter->init()) {
		if (meter->library)
			dlclose(meter->library);
		free(meter);
		return NULL;
	}
	if (find_handle(meter, uuid)) {
		gpu_meter_close(meter);
		return NULL;
	}
	return meter;
}

void gpu_meter_close(struct gpu_meter *meter)
{
	if (!meter)
		return;
	meter->shutdown();
	dlclose(meter->library);
	free(meter);
}

void gpu_meter_read(const struct gpu_meter *meter, struct gpu_reading *out)
{
	struct nvml_memory memory;
	struct nvml_use use;
	unsigned long long throttled = 0;
	unsigned power_mw;

	*out = (struct gpu_reading){.utilization = NAN, .memory_bytes = NAN, .power_w = NAN};
	if (!meter)
		return;
	if (!meter->memory(meter->handle, &memory))
		out->memory_bytes = (double)memory.used;
	if (meter->use && !meter->use(meter->handle, &use))
		out->utilization = use.gpu;
	if (meter->power_mw && !meter->power_mw(meter->handle, &power_mw))
		out->power_w = power_mw / 1e3;
	if (!meter->throttled || meter->throttled(meter->handle, &throttled))
		return;
	for (int why = 0; why < GPU_THROTTLE_COUNT; why++)
		out->throttled[why] = throttled & reasons[why].bit;
}

static void process_text(const struct nvml_process *process, char *text, size_t size)
{
	char path[64], memory[32] = "", *name = NULL;
	size_t length = 0;

	snprintf(path, sizeof path, "/proc/%u/comm", process->pid);
	if (!file_read(path, 256, &name, &length, NULL) && length && name[length - 1] == '\n')
		name[length - 1] = 0;
	if (process->memory != ~0ULL)
		snprintf(memory, sizeof memory, "%llu MiB", process->memory >> 20);
	if (process->pid == (unsigned)getpid())
		snprintf(text, size, "this process (%s)", *memory ? memory : "unknown");
	else
		snprintf(text, size, "pid %u%s%.40s%s%s%s", process->pid,
			 name || *memory ? " (" : "", name ? name : "", name && *memory ? ", " : "",
			 memory, name || *memory ? ")" : "");
	free(name);
}

void gpu_processes_text(const char *uuid, const char *library, char *text, size_t size)
{
	struct gpu_meter *meter = gpu_meter_open(uuid, library);
	struct nvml_process list[PROCESSES_MAX];
	unsigned count = PROCESSES_MAX;
	size_t at = 0;

	*text = 0;
	if (meter && meter->processes && !meter->processes(meter->handle, &count, list))
		for (unsigned i = 0; i < count && i < PROCESSES_MAX && at + 1 < size; i++) {
			char one[128];
			int n;

			process_text(&list[i], one, sizeof one);
			n = snprintf(text + at, size - at, "%s%s", i ? ", " : "held by ", one);
			at += n > 0 ? (size_t)n : 0;
		}
	gpu_meter_close(meter);
}

/* What is not known is smaller than all that is. */
static double known(double value)
{
	return isnan(value) ? -INFINITY : value;
}

static double unknown(double value)
{
	return isinf(value) ? NAN : value;
}

void gpu_reading_pack(const struct gpu_reading *reading, double values[GPU_READING_VALUES])
{
	values[0] = known(-reading->utilization);
	values[1] = known(reading->memory_bytes);
	values[2] = known(reading->power_w);
	for (int why = 0; why < GPU_THROTTLE_COUNT; why++)
		values[3 + why] = reading->throttled[why];
}

void gpu_reading_unpack(const double values[GPU_READING_VALUES], struct gpu_reading *out)
{
	*out = (struct gpu_reading){.utilization = unknown(-values[0]) + 0.0,
				    .memory_bytes = unknown(values[1]),
				    .power_w = unknown(values[2])};
	for (int why = 0; why < GPU_THROTTLE_COUNT; why++)
		out->throttled[why] = values[3 + why] > 0;
}
