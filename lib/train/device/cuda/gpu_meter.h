/* SPDX-License-Identifier: BSD-3-Clause */
/* How a rank's GPU does while it trains, as NVML says: loaded where it is there, asked where a row
 * of metrics is written. */
#ifndef BERTH_TRAIN_DEVICE_CUDA_GPU_METER_H
#define BERTH_TRAIN_DEVICE_CUDA_GPU_METER_H

#include <stdbool.h>
#include <stddef.h>

struct gpu_meter; /* opaque; NULL measures nothing */

/* Why a GPU runs slower than it could. */
enum gpu_throttle {
	GPU_THROTTLE_POWER,	  /* its power limit */
	GPU_THROTTLE_THERMAL,	  /* too warm: software */
	GPU_THROTTLE_HW_THERMAL,  /* too warm: hardware */
	GPU_THROTTLE_POWER_BRAKE, /* the machine's power supply */
	GPU_THROTTLE_HW,	  /* hardware, other */
	GPU_THROTTLE_COUNT
};
const char *gpu_throttle_name(enum gpu_throttle why); /* "power-cap", ... */

/* Numbers that are not known are NaN, and of why all are false. */
struct gpu_reading {
	double utilization;  /* per cent of NVML's last sample in which some kernel ran */
	double memory_bytes; /* in use, by all programs */
	double power_w;
	bool throttled[GPU_THROTTLE_COUNT];
};

/* The GPU of that UUID. library: NULL for libnvidia-ml.so.1. NULL: there is no NVML, or no such
 * GPU; then there is nothing to say. */
struct gpu_meter *gpu_meter_open(const char *uuid, const char *library);
void gpu_meter_read(const struct gpu_meter *meter, struct gpu_reading *out);
void gpu_meter_close(struct gpu_meter *meter); /* NULL is fine */
/* Who computes on the GPU of that UUID and holds its memory: "held by this process (1200 MiB), pid
 * 812 (python, 61000 MiB)", "" where NVML is not there or does not tell. Programs of another
 * container show a number alone. */
void gpu_processes_text(const char *uuid, const char *library, char *text, size_t size);

/* Over all ranks by one reduction to the largest values: the least use, the most memory and power,
 * and every reason that some GPU has. */
#define GPU_READING_VALUES (3 + GPU_THROTTLE_COUNT)
void gpu_reading_pack(const struct gpu_reading *reading, double values[GPU_READING_VALUES]);
void gpu_reading_unpack(const double values[GPU_READING_VALUES], struct gpu_reading *out);

#endif
