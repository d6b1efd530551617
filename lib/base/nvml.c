/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/nvml.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/module.h"

/* One list serves all users: every driver that CUDA 11 supports has the required functions. A
 * function that a newer driver introduced, or a later one may drop, is optional. */
static bool find_functions(struct nvml *nvml)
{
	const struct symbol symbols[] = {
		{"nvmlInit_v2", &nvml->init, true},
		{"nvmlShutdown", &nvml->shutdown, true},
		{"nvmlErrorString", &nvml->error_string, true},
		{"nvmlDeviceGetCount_v2", &nvml->count, true},
		{"nvmlDeviceGetHandleByIndex_v2", &nvml->by_index, true},
		{"nvmlDeviceGetHandleByPciBusId_v2", &nvml->by_address, true},
		{"nvmlDeviceGetHandleByUUID", &nvml->by_uuid, true},
		{"nvmlDeviceGetPciInfo_v3", &nvml->pci_info, true},
		{"nvmlDeviceGetUUID", &nvml->uuid, true},
		{"nvmlDeviceGetName", &nvml->name, true},
		{"nvmlDeviceGetMemoryInfo", &nvml->memory, true},
		{"nvmlDeviceGetMigMode", &nvml->mig_mode, false},
		{"nvmlDeviceGetMaxMigDeviceCount", &nvml->mig_max, false},
		{"nvmlDeviceGetMigDeviceHandleByIndex", &nvml->mig_by_index, false},
		{"nvmlDeviceGetGpuInstanceId", &nvml->gpu_instance, false},
		{"nvmlDeviceGetComputeInstanceId", &nvml->compute_instance, false},
		{"nvmlDeviceGetRemappedRows", &nvml->remapped_rows, false},
		{"nvmlDeviceGetTotalEccErrors", &nvml->ecc_errors, false},
		{"nvmlDeviceGetUtilizationRates", &nvml->utilization, false},
		{"nvmlDeviceGetPowerUsage", &nvml->power_mw, false},
		{"nvmlDeviceGetCurrentClocksThrottleReasons", &nvml->throttle_reasons, false},
		{"nvmlDeviceGetComputeRunningProcesses_v3", &nvml->processes, false},
	};

	return !symbols_find(nvml->library, symbols, sizeof symbols / sizeof *symbols);
}

int nvml_open(const char *library, struct nvml *out, struct error *err)
{
	const char *name = library ? library : "libnvidia-ml.so.1";
	struct nvml nvml = {.library = dlopen(name, RTLD_NOW | RTLD_LOCAL)};
	int result, rc = 0;

	if (!nvml.library)
		return error_set(err, ERR_UNAVAILABLE, "%s: not found", name);
	if (!find_functions(&nvml))
		rc = error_set(err, ERR_UNAVAILABLE, "%s: too old", name);
	else if ((result = nvml.init()) != NVML_SUCCESS)
		rc = error_set(err, ERR_IO,
			       "cannot initialize NVML: %s; check that the NVIDIA driver is loaded",
			       nvml.error_string(result));
	if (rc)
		dlclose(nvml.library);
	else
		*out = nvml;
	return rc;
}

void nvml_close(struct nvml *nvml)
{
	if (!nvml->library)
		return;
	nvml->shutdown();
	dlclose(nvml->library);
	*nvml = (struct nvml){0};
}

int nvml_device_by_uuid(const struct nvml *nvml, const char *uuid, struct nvml_device **out)
{
	char mig[64];
	int result = nvml->by_uuid(uuid, out);

	if (result == NVML_SUCCESS || strncmp(uuid, "GPU-", 4) != 0)
		return result;
	snprintf(mig, sizeof mig, "MIG-%s", uuid + 4);
	return nvml->by_uuid(mig, out);
}
