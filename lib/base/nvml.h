/* SPDX-License-Identifier: BSD-3-Clause */
/* NVML, NVIDIA's management library. berth loads it at run time, because berth must start on
 * machines without an NVIDIA driver, and builds without NVML's header. The declarations below are
 * the part of NVML's stable ABI (its versioned names) that berth uses. No call creates a context
 * on a GPU. */
#ifndef BERTH_BASE_NVML_H
#define BERTH_BASE_NVML_H

#include "base/error.h"

struct nvml_device; /* NVML's own; valid until nvml_close */

/* nvmlReturn_t: the values that berth tells apart. */
enum nvml_result {
	NVML_SUCCESS = 0,
	NVML_INVALID_ARGUMENT = 2,
	NVML_NO_PERMISSION = 4,
	NVML_NOT_FOUND = 6,
	NVML_INSUFFICIENT_SIZE = 7,
	NVML_GPU_IS_LOST = 15,
	NVML_RESET_REQUIRED = 16,
};

struct nvml_pci { /* nvmlPciInfo_t, version 3 */
	char legacy[16];
	unsigned domain, bus, device, device_and_vendor, subsystem;
	char bus_id[32]; /* "00000000:03:00.0" */
};

struct nvml_memory { /* nvmlMemory_t; bytes */
	unsigned long long total, free, used;
};

struct nvml_utilization { /* nvmlUtilization_t; per cent of the last sample */
	unsigned gpu, memory;
};

#define NVML_PROCESSES_MAX 64 /* the room that berth offers for a list */
#define NVML_MEMORY_UNKNOWN (~0ULL)

struct nvml_process { /* nvmlProcessInfo_t since driver 510, of the _v3 call */
	unsigned pid;
	unsigned long long memory_bytes; /* or NVML_MEMORY_UNKNOWN */
	unsigned gpu_instance, compute_instance;
};

#define NVML_ECC_UNCORRECTED 1 /* nvmlMemoryErrorType_t */
#define NVML_ECC_VOLATILE 0    /* nvmlEccCounterType_t: since the driver was loaded */

/* An open library; all zeros if it is closed. Each function that returns an int returns an
 * nvmlReturn_t. */
struct nvml {
	void *library; /* dlopen's */
	int (*init)(void);
	int (*shutdown)(void);
	const char *(*error_string)(int result); /* the text belongs to the library */
	int (*count)(unsigned *count);
	int (*by_index)(unsigned index, struct nvml_device **out);
	int (*by_address)(const char *pci, struct nvml_device **out);
	int (*by_uuid)(const char *uuid, struct nvml_device **out);
	int (*pci_info)(struct nvml_device *device, struct nvml_pci *out);
	int (*uuid)(struct nvml_device *device, char *out, unsigned size);
	int (*name)(struct nvml_device *device, char *out, unsigned size);
	int (*memory)(struct nvml_device *device, struct nvml_memory *out);
	/* The rest is optional: a function that the driver lacks is NULL. */
	int (*mig_mode)(struct nvml_device *device, unsigned *current, unsigned *pending);
	int (*mig_max)(struct nvml_device *device, unsigned *count);
	int (*mig_by_index)(struct nvml_device *device, unsigned index, struct nvml_device **out);
	int (*gpu_instance)(struct nvml_device *mig, unsigned *id);
	int (*compute_instance)(struct nvml_device *mig, unsigned *id);
	int (*remapped_rows)(struct nvml_device *device, unsigned *corrected, unsigned *uncorrected,
			     unsigned *pending, unsigned *failed);
	int (*ecc_errors)(struct nvml_device *device, int type, int counter,
			  unsigned long long *count);
	int (*utilization)(struct nvml_device *device, struct nvml_utilization *out);
	int (*power_mw)(struct nvml_device *device, unsigned *out);
	int (*throttle_reasons)(struct nvml_device *device, unsigned long long *bits);
	/* Processes that compute on the device. *count is the room in list and becomes the number
	 * of processes. If they exceed the room the result is NVML_INSUFFICIENT_SIZE. */
	int (*processes)(struct nvml_device *device, unsigned *count, struct nvml_process *list);
};

/* Load NVML and initialise it. library is a name or path for dlopen; NULL is libnvidia-ml.so.1.
 * Return 0, and the caller closes *out with nvml_close. On failure *out is untouched, err (may be
 * NULL) holds the reason, and the return value is
 * -ERR_UNAVAILABLE if the library is missing or lacks a required function,
 * -ERR_IO if NVML did not initialise, for instance because the driver is not loaded. */
int nvml_open(const char *library, struct nvml *out, struct error *err);
/* Shut NVML down, unload it and clear *nvml. If it is closed, do nothing. */
void nvml_close(struct nvml *nvml);

/* Find a GPU or MIG device by its UUID as CUDA reports it. CUDA's UUIDs have no prefix, so callers
 * write "GPU-..." for both; NVML knows a MIG device as "MIG-...". Return an nvmlReturn_t. */
int nvml_device_by_uuid(const struct nvml *nvml, const char *uuid, struct nvml_device **out);

#endif
