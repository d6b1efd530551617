/* SPDX-License-Identifier: BSD-3-Clause */
/* Complete the GPUs with what NVML knows: UUIDs, MIG devices, memory, health, and which of them
 * this container may use. */
#include "inventory/sys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/nvml.h"

#define UUID_SIZE 96
#define MIG_MAX 64

static char *copy(const char *text)
{
	return text && *text ? strdup(text) : NULL;
}

static void set_fault(struct inventory_gpu *gpu, const char *text)
{
	if (!gpu->fault)
		gpu->fault = strdup(text);
}

/* Record a lost or hung GPU as its fault. Return true if the call succeeded. */
static bool check_health(const struct nvml *nvml, struct inventory_gpu *gpu, int result)
{
	char text[256];

	if (result == NVML_GPU_IS_LOST || result == NVML_RESET_REQUIRED) {
		snprintf(text, sizeof text,
			 result == NVML_GPU_IS_LOST
				 ? "NVML: %s; the node must be rebooted (look for Xid in dmesg)"
				 : "NVML: %s; ask an administrator to reset the GPU (nvidia-smi "
				   "--gpu-reset)",
			 nvml->error_string(result));
		set_fault(gpu, text);
	}
	return result == NVML_SUCCESS;
}

static void read_health(const struct nvml *nvml, struct nvml_device *device,
			struct inventory_gpu *gpu)
{
	unsigned corrected, uncorrected, pending = 0, failed = 0;

	if (!nvml->remapped_rows ||
	    !check_health(nvml, gpu,
			  nvml->remapped_rows(device, &corrected, &uncorrected, &pending, &failed)))
		return;
	if (failed)
		set_fault(gpu, "NVML: row remapping failed because the GPU's memory is worn out; "
			       "the GPU must be replaced");
}

/* Read what NVML reports about device, which is gpu or one of its MIG devices. */
static void read_device(const struct nvml *nvml, struct nvml_device *device,
			struct inventory_gpu *gpu)
{
	char text[UUID_SIZE] = "";
	struct nvml_memory memory;

	if (check_health(nvml, gpu, nvml->uuid(device, text, sizeof text))) {
		text[sizeof text - 1] = '\0';
		free(gpu->uuid);
		gpu->uuid = copy(text);
	}
	if (check_health(nvml, gpu, nvml->name(device, text, sizeof text))) {
		text[sizeof text - 1] = '\0';
		free(gpu->name);
		gpu->name = copy(text);
	}
	if (check_health(nvml, gpu, nvml->memory(device, &memory)) && memory.total < INT64_MAX)
		gpu->memory_bytes = (int64_t)memory.total;
}

/* "MIG-GPU-uuid/gi/ci", the name of a MIG device in older lists. */
static char *mig_name(const struct nvml *nvml, struct nvml_device *mig, const char *parent)
{
	unsigned gi, ci;
	char *name = NULL;

	if (!parent || !nvml->gpu_instance || !nvml->compute_instance ||
	    nvml->gpu_instance(mig, &gi) || nvml->compute_instance(mig, &ci) ||
	    asprintf(&name, "MIG-%s/%u/%u", parent, gi, ci) < 0)
		return NULL;
	return name;
}

/* If MIG is on, replace gpus[at] by its MIG devices, one entry each. */
static int read_mig(struct discovery *discovery, const struct nvml *nvml,
		    struct nvml_device *device, size_t at, struct error *err)
{
	struct inventory *inventory = discovery->inventory;
	unsigned current = 0, pending, max = 0;
	int found = 0, rc = 0;

	if (!nvml->mig_mode || !nvml->mig_max || !nvml->mig_by_index ||
	    nvml->mig_mode(device, &current, &pending) != NVML_SUCCESS || !current ||
	    nvml->mig_max(device, &max) != NVML_SUCCESS)
		return 0;

	char *parent = copy(inventory->gpus[at].uuid);

	for (unsigned i = 0; !rc && i < max && i < MIG_MAX; i++) {
		struct nvml_device *mig;

		if (nvml->mig_by_index(device, i, &mig) != NVML_SUCCESS)
			continue; /* indices may have holes */
		if (found)
			rc = gpu_add_partition(discovery, at++, err);
		if (rc)
			break;
		inventory->gpus[at].partition = found++;
		read_device(nvml, mig, &inventory->gpus[at]);
		free(inventory->gpus[at].mig);
		inventory->gpus[at].mig = mig_name(nvml, mig, parent);
	}
	free(parent);
	if (!rc && !found)
		set_fault(&inventory->gpus[at], "MIG mode is on, but no MIG device exists; ask an "
						"administrator to create some or to turn MIG off");
	return rc;
}

/* The entry at id, or a new one if hwloc has no such function (a container without PCI). */
static int find_or_add(struct discovery *discovery, struct pci_id id, const struct nvml_pci *info,
		       size_t *at, struct error *err)
{
	struct inventory *inventory = discovery->inventory;
	struct pci_id other;
	struct locality locality;

	/* The list is in PCI order, and stays so. */
	for (*at = 0; *at < inventory->gpu_count; ++*at) {
		if (pci_parse(inventory->gpus[*at].pci, &other) != 0)
			continue;
		if (pci_compare(id, other) == 0)
			return 0;
		if (pci_compare(id, other) < 0)
			break;
	}

	int rc = gpu_insert(discovery, *at, err);

	if (rc)
		return rc;

	struct inventory_gpu *gpu = &inventory->gpus[*at];
	const char *root = discovery->source->sys_root ? discovery->source->sys_root : "";

	pci_format(id, gpu->pci);
	gpu->vendor = (uint16_t)info->device_and_vendor;
	gpu->device = (uint16_t)(info->device_and_vendor >> 16);
	/* 3D, as gpu.c expects NVIDIA's GPUs to be. */
	gpu->pci_class = 0x0302;
	gpu->os_devices = strdup("");
	rc = topology_locality_of_numa(
		discovery,
		(int)sys_number(-1, "%s/sys/bus/pci/devices/%s/numa_node", root, gpu->pci),
		&locality, err);
	if (rc)
		return rc;
	gpu_set_locality(gpu, &locality);
	return gpu->os_devices ? 0 : error_memory(err, "the GPUs");
}

static int read_gpu(struct discovery *discovery, const struct nvml *nvml,
		    struct nvml_device *device, struct error *err)
{
	struct nvml_pci info = {0};
	struct pci_id id;
	size_t at;
	int result = nvml->pci_info(device, &info);

	info.bus_id[sizeof info.bus_id - 1] = '\0';
	if (result != NVML_SUCCESS || pci_parse(info.bus_id, &id) != 0) {
		inventory_note(discovery->inventory,
			       "NVML reports a GPU without a PCI address (%s)",
			       nvml->error_string(result));
		return 0;
	}

	int rc = find_or_add(discovery, id, &info, &at, err);

	if (rc)
		return rc;

	struct inventory_gpu *gpu = &discovery->inventory->gpus[at];

	gpu->allowed = true;
	read_device(nvml, device, gpu);
	read_health(nvml, device, gpu);
	return read_mig(discovery, nvml, device, at, err);
}

static void disallow_unseen(struct inventory *inventory)
{
	for (size_t i = 0; i < inventory->gpu_count; i++)
		if (inventory->gpus[i].vendor == 0x10de)
			inventory->gpus[i].allowed = false;
}

/* GPUs on the bus that NVML did not list. Queried by address, NVML distinguishes a broken GPU from
 * one that this job or container may not use. */
static void diagnose_unseen(const struct nvml *nvml, struct inventory *inventory)
{
	for (size_t i = 0; i < inventory->gpu_count; i++) {
		struct inventory_gpu *gpu = &inventory->gpus[i];
		struct nvml_device *device;
		char text[256];

		if (gpu->vendor != 0x10de || gpu->allowed)
			continue;

		int result = nvml->by_address(gpu->pci, &device);

		if (result == NVML_SUCCESS || result == NVML_INVALID_ARGUMENT ||
		    result == NVML_NO_PERMISSION || result == NVML_NOT_FOUND)
			continue;
		gpu->allowed = true;
		if (check_health(nvml, gpu, result) || gpu->fault)
			continue;
		snprintf(text, sizeof text, "NVML cannot open the GPU: %s",
			 nvml->error_string(result));
		set_fault(gpu, text);
	}
}

static int read_all(struct discovery *discovery, const struct nvml *nvml, struct error *err)
{
	unsigned count = 0;
	int result = nvml->count(&count), rc = 0;

	if (result != NVML_SUCCESS) {
		inventory_note(discovery->inventory, "NVML cannot count the GPUs: %s",
			       nvml->error_string(result));
		return 0;
	}
	/* In a container the bus may show all GPUs; NVML lists those that it may use. */
	disallow_unseen(discovery->inventory);
	for (unsigned i = 0; !rc && i < count; i++) {
		struct nvml_device *device;

		if (nvml->by_index(i, &device) == NVML_SUCCESS)
			rc = read_gpu(discovery, nvml, device, err);
	}
	diagnose_unseen(nvml, discovery->inventory);
	return rc;
}

int nvml_read(struct discovery *discovery, struct error *err)
{
	const char *name = discovery->source->nvml_library;
	struct nvml nvml;
	struct error why = {0};

	if (name && !*name)
		return 0;

	int rc = nvml_open(name, &nvml, &why);

	/* Without NVIDIA's GPUs, nothing is missing. */
	if (rc == -ERR_UNAVAILABLE && inventory_has_vendor(discovery->inventory, 0x10de))
		inventory_note(discovery->inventory,
			       "%s; UUIDs, MIG and health of the GPUs are unknown", why.text);
	else if (rc && rc != -ERR_UNAVAILABLE)
		inventory_note(discovery->inventory, "%s", why.text);
	if (rc)
		return 0;
	rc = read_all(discovery, &nvml, err);
	nvml_close(&nvml);
	return rc;
}
