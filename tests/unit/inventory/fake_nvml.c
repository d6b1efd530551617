/* SPDX-License-Identifier: BSD-3-Clause */
/* A fake libnvidia-ml for the tests. BERTH_FAKE_NVML selects what it reports:
 *   (unset)  0000:01:00.0 healthy, 0000:02:00.0 with failed row remapping
 *   mig      0000:01:00.0 with MIG devices at indices 0 and 2, 0000:02:00.0 healthy
 *   migless  0000:01:00.0 with MIG on and no MIG device
 *   lost     0000:02:00.0 has fallen off the bus: it is counted but cannot be opened
 *   reset    0000:02:00.0 needs a reset
 *   one      only 0000:02:00.0 is available to this container
 *   nopci    one GPU at 0000:77:00.0
 *   held     0000:01:00.0 is used by the process that started this one
 *   ecc      0000:02:00.0 has had uncorrected memory errors
 *   slow     0000:01:00.0 is slowed down by its power limit and by its temperature
 *   driver   the driver is not loaded */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

struct nvml_pci {
	char legacy[16];
	unsigned domain, bus, device, device_and_vendor, subsystem;
	char bus_id[32];
};

struct nvml_memory {
	unsigned long long total, free, used;
};

struct fake {
	int gpu, mig; /* mig -1: the GPU itself, not a MIG device */
};

static struct fake gpus[2] = {{0, -1}, {1, -1}};
static struct fake migs[3] = {{0, 0}, {0, 1}, {0, 2}};
static int started;

static int is(const char *mode)
{
	const char *set = getenv("BERTH_FAKE_NVML");

	return set && strcmp(set, mode) == 0;
}

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int result);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct fake **out);
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, struct fake **out);
int nvmlDeviceGetPciInfo_v3(struct fake *device, struct nvml_pci *out);
int nvmlDeviceGetUUID(struct fake *device, char *out, unsigned size);
int nvmlDeviceGetName(struct fake *device, char *out, unsigned size);
int nvmlDeviceGetMemoryInfo(struct fake *device, struct nvml_memory *out);
int nvmlDeviceGetMigMode(struct fake *device, unsigned *current, unsigned *pending);
int nvmlDeviceGetMaxMigDeviceCount(struct fake *device, unsigned *out);
int nvmlDeviceGetMigDeviceHandleByIndex(struct fake *device, unsigned index, struct fake **out);
int nvmlDeviceGetGpuInstanceId(struct fake *device, unsigned *out);
int nvmlDeviceGetComputeInstanceId(struct fake *device, unsigned *out);
int nvmlDeviceGetRemappedRows(struct fake *device, unsigned *corrected, unsigned *uncorrected,
			      unsigned *pending, unsigned *failed);

EXPORT int nvmlInit_v2(void)
{
	if (is("driver"))
		return 9;
	started++;
	return 0;
}

EXPORT int nvmlShutdown(void)
{
	return --started == 0 ? 0 : 1;
}

EXPORT const char *nvmlErrorString(int result)
{
	switch (result) {
	case 9:
		return "Driver Not Loaded";
	case 15:
		return "GPU is lost";
	case 16:
		return "GPU requires reset";
	default:
		return "an error";
	}
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
	*count = is("one") || is("nopci") ? 1 : 2;
	return 0;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct fake **out)
{
	if (is("lost") && index == 1)
		return 15;
	*out = &gpus[is("one") ? 1 : index];
	return 0;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *address, struct fake **out)
{
	if (is("lost") && strcmp(address, "0000:02:00.0") == 0)
		return 15;
	return 6;
}

EXPORT int nvmlDeviceGetPciInfo_v3(struct fake *device, struct nvml_pci *out)
{
	memset(out, 0, sizeof *out);
	snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0",
		 is("nopci") ? 0x77 : device->gpu + 1);
	out->device_and_vendor = 0x233510de;
	return 0;
}

EXPORT int nvmlDeviceGetUUID(struct fake *device, char *out, unsigned size)
{
	if (device->mig >= 0)
		snprintf(out, size, "MIG-%08x-1111-2222-3333-444444444444", device->mig + 0x10);
	else
		snprintf(out, size, "GPU-%08x-aaaa-bbbb-cccc-dddddddddddd", device->gpu + 0xf0);
	return 0;
}

EXPORT int nvmlDeviceGetName(struct fake *device, char *out, unsigned size)
{
	snprintf(out, size, "NVIDIA H200%s", device->mig >= 0 ? " MIG 1g.18gb" : "");
	return 0;
}

EXPORT int nvmlDeviceGetMemoryInfo(struct fake *device, struct nvml_memory *out)
{
	if (is("reset") && device->gpu == 1)
		return 16;
	out->total = device->mig >= 0 ? 18ULL << 30 : 141ULL << 30;
	out->used = device->gpu == 0 && device->mig < 0 ? 40ULL << 30 : 0;
	out->free = out->total - out->used;
	return 0;
}

EXPORT int nvmlDeviceGetMigMode(struct fake *device, unsigned *current, unsigned *pending)
{
	*current = *pending = (is("mig") || is("migless")) && device->gpu == 0;
	return 0;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(struct fake *device, unsigned *out)
{
	*out = 7;
	return 0;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(struct fake *device, unsigned index,
					       struct fake **out)
{
	if (!is("mig") || (index != 0 && index != 2))
		return 6;
	*out = &migs[index];
	return 0;
}

EXPORT int nvmlDeviceGetGpuInstanceId(struct fake *device, unsigned *out)
{
	*out = (unsigned)device->mig + 7;
	return 0;
}

EXPORT int nvmlDeviceGetComputeInstanceId(struct fake *device, unsigned *out)
{
	*out = 0;
	return 0;
}

EXPORT int nvmlDeviceGetRemappedRows(struct fake *device, unsigned *corrected,
				     unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
	*corrected = *uncorrected = *pending = 0;
	*failed = !getenv("BERTH_FAKE_NVML") && device->gpu == 1;
	return 0;
}

struct nvml_process {
	unsigned pid;
	unsigned long long memory;
	unsigned gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(struct fake *device, unsigned *count,
					    struct nvml_process *out);
int nvmlDeviceGetTotalEccErrors(struct fake *device, int kind, int counter,
				unsigned long long *out);

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(struct fake *device, unsigned *count,
						   struct nvml_process *out)
{
	int held = is("held") && device->gpu == 0;

	if (held && *count < 1)
		return 7;
	*count = held ? 1 : 0;
	if (held)
		*out = (struct nvml_process){(unsigned)getppid(), 3ull << 30, ~0u, ~0u};
	return 0;
}

EXPORT int nvmlDeviceGetTotalEccErrors(struct fake *device, int kind, int counter,
				       unsigned long long *out)
{
	/* Uncorrected errors since the driver was loaded. */
	*out = is("ecc") && device->gpu == 1 && kind == 1 && counter == 0 ? 7 : 0;
	return 0;
}

/* ---- while it works ---- */

struct nvml_use {
	unsigned gpu, memory;
};

int nvmlDeviceGetHandleByUUID(const char *uuid, struct fake **out);
int nvmlDeviceGetUtilizationRates(struct fake *device, struct nvml_use *out);
int nvmlDeviceGetPowerUsage(struct fake *device, unsigned *out);
int nvmlDeviceGetCurrentClocksThrottleReasons(struct fake *device, unsigned long long *out);

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, struct fake **out)
{
	char own[96];

	for (int i = 0; i < 2; i++) {
		nvmlDeviceGetUUID(&gpus[i], own, sizeof own);
		if (strcmp(own, uuid) == 0) {
			*out = &gpus[i];
			return 0;
		}
	}
	nvmlDeviceGetUUID(&migs[2], own, sizeof own);
	if (is("mig") && strcmp(own, uuid) == 0) {
		*out = &migs[2];
		return 0;
	}
	return 6;
}

EXPORT int nvmlDeviceGetUtilizationRates(struct fake *device, struct nvml_use *out)
{
	*out = (struct nvml_use){87, 55};
	return is("mig") || device->mig >= 0 ? 3 : 0;
}

EXPORT int nvmlDeviceGetPowerUsage(struct fake *device, unsigned *out)
{
	*out = 612500;
	return is("mig") ? 3 : 0;
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(struct fake *device, unsigned long long *out)
{
	*out = is("slow") ? 0x4 | 0x40 : 0x2;
	return 0;
}
