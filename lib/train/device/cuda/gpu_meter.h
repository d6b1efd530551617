/* SPDX-License-Identifier: BSD-3-Clause */
/* The state of a rank's GPU during training, as reported by NVML. NVML is loaded if present, and
 * queried when a row of metrics is written. */
#ifndef BERTH_TRAIN_DEVICE_CUDA_GPU_METER_H
#define BERTH_TRAIN_DEVICE_CUDA_GPU_METER_H

#include <stdbool.h>
#include <stddef.h>

struct gpu_meter; /* opaque; NULL measures nothing */

/* Why a GPU is slower than it could be. */
enum gpu_throttle {
	GPU_THROTTLE_POWER,	  /* its power limit */
	GPU_THROTTLE_THERMAL,	  /* too hot: software */
	GPU_THROTTLE_HW_THERMAL,  /* too hot: hardware */
	GPU_THROTTLE_POWER_BRAKE, /* the machine's power supply */
	GPU_THROTTLE_HW,	  /* hardware, other */
	GPU_THROTTLE_COUNT
};
const char *gpu_throttle_name(enum gpu_throttle why); /* "power-cap", ... */

/* Unknown numbers are NaN; if no reason is known, all are false. */
struct gpu_reading {
	double utilization;  /* per cent of NVML's last sample during which a kernel ran */
	double memory_bytes; /* in use by all programs */
	double power_w;
	bool throttled[GPU_THROTTLE_COUNT];
};

/* Open the GPU with that UUID. library: NULL for libnvidia-ml.so.1. Return NULL if there is no NVML
 * or no such GPU. */
struct gpu_meter *gpu_meter_open(const char *uuid, const char *library);
void gpu_meter_read(const struct gpu_meter *meter, struct gpu_reading *out);
void gpu_meter_close(struct gpu_meter *meter); /* NULL is fine */
/* List the processes that compute on the GPU with that UUID and use its memory: "held by this
 * process (1200 MiB), pid 812 (python, 61000 MiB)". "" if NVML is missing or does not report it.
 * Programs of another container appear as a bare number. */
void gpu_processes_text(const char *uuid, const char *library, char *text, size_t size);

/* Combine readings over all ranks with one maximum reduction: the lowest utilization, the highest
 * memory and power, and every reason that some GPU has. */
#define GPU_READING_VALUES (3 + GPU_THROTTLE_COUNT)
void gpu_reading_pack(const struct gpu_reading *reading, double values[GPU_READING_VALUES]);
void gpu_reading_unpack(const double values[GPU_READING_VALUES], struct gpu_reading *out);

#endif
