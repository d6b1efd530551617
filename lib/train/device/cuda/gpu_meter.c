/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cuda/gpu_meter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/nvml.h"

struct gpu_meter {
	struct nvml nvml;
	struct nvml_device *device;
};

/* The bits of nvmlClocksThrottleReason... */
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

struct gpu_meter *gpu_meter_open(const char *uuid, const char *library)
{
	struct gpu_meter *meter = calloc(1, sizeof *meter);

	if (meter && !nvml_open(library, &meter->nvml, NULL) &&
	    !nvml_device_by_uuid(&meter->nvml, uuid, &meter->device))
		return meter;
	gpu_meter_close(meter);
	return NULL;
}

void gpu_meter_close(struct gpu_meter *meter)
{
	if (!meter)
		return;
	nvml_close(&meter->nvml);
	free(meter);
}

void gpu_meter_read(const struct gpu_meter *meter, struct gpu_reading *out)
{
	struct nvml_memory memory;
	struct nvml_utilization use;
	unsigned long long throttled = 0;
	unsigned power_mw;

	*out = (struct gpu_reading){.utilization = NAN, .memory_bytes = NAN, .power_w = NAN};
	if (!meter)
		return;

	const struct nvml *nvml = &meter->nvml;

	if (!nvml->memory(meter->device, &memory))
		out->memory_bytes = (double)memory.used;
	if (nvml->utilization && !nvml->utilization(meter->device, &use))
		out->utilization = use.gpu;
	if (nvml->power_mw && !nvml->power_mw(meter->device, &power_mw))
		out->power_w = power_mw / 1e3;
	if (!nvml->throttle_reasons || nvml->throttle_reasons(meter->device, &throttled))
		return;
	for (int why = 0; why < GPU_THROTTLE_COUNT; why++)
		out->throttled[why] = throttled & reasons[why].bit;
}

static void process_text(const struct nvml_process *process, char *text, size_t size)
{
	char path[64], memory[32] = "", name[64];

	snprintf(path, sizeof path, "/proc/%u/comm", process->pid);
	file_read_line(path, name, sizeof name);
	if (process->memory_bytes != NVML_MEMORY_UNKNOWN)
		snprintf(memory, sizeof memory, "%llu MiB", process->memory_bytes >> 20);
	if (process->pid == (unsigned)getpid())
		snprintf(text, size, "this process (%s)", *memory ? memory : "unknown");
	else
		snprintf(text, size, "pid %u%s%.40s%s%s%s", process->pid,
			 *name || *memory ? " (" : "", name, *name && *memory ? ", " : "", memory,
			 *name || *memory ? ")" : "");
}

void gpu_processes_text(const char *uuid, const char *library, char *text, size_t size)
{
	struct gpu_meter *meter = gpu_meter_open(uuid, library);
	struct nvml_process list[NVML_PROCESSES_MAX];
	unsigned count = NVML_PROCESSES_MAX;

	*text = 0;
	if (meter && meter->nvml.processes && !meter->nvml.processes(meter->device, &count, list))
		for (unsigned i = 0; i < count && i < NVML_PROCESSES_MAX; i++) {
			char one[128];

			process_text(&list[i], one, sizeof one);
			text_append(text, size, "%s%s", i ? ", " : "held by ", one);
		}
	gpu_meter_close(meter);
}

/* Unknown values compare lower than all known ones. */
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
