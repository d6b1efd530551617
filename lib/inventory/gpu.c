/* SPDX-License-Identifier: BSD-3-Clause */
/* GPUs: PCI functions of a known vendor and a computing class, whatever OS devices hwloc has for
 * them (none on many clusters, five on others). If several partitions share a function, each is an
 * entry. nvml.c and kfd.c add what the drivers report. */
#include "inventory/sys.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

#define VENDOR_AMD 0x1002
#define VENDOR_NVIDIA 0x10de
#define VENDOR_INTEL 0x8086

/* Graphics of server management boards and chip sets from vendors that also make GPUs. */
static bool display_only(const struct hwloc_pcidev_attr_s *pci)
{
	if (pci->vendor_id == VENDOR_AMD) /* Rage XL, RV100, ES1000: HP's and Dell's old BMCs */
		return pci->device_id == 0x4752 || pci->device_id == 0x5159 ||
		       pci->device_id == 0x515e || pci->device_id == 0x5969;
	/* Intel's integrated graphics are always function 0:02.0. */
	return pci->vendor_id == VENDOR_INTEL && pci->domain == 0 && pci->bus == 0 && pci->dev == 2;
}

static bool is_gpu(const struct hwloc_pcidev_attr_s *pci)
{
	switch (pci->class_id) {
	case 0x0300: /* VGA: corona's MI60 */
	case 0x0302: /* 3D: NVIDIA's */
	case 0x0380: /* display: AMD's, Intel's */
		return (pci->vendor_id == VENDOR_AMD || pci->vendor_id == VENDOR_NVIDIA ||
			pci->vendor_id == VENDOR_INTEL) &&
		       !display_only(pci);
	case 0x1200: /* accelerator: MI300A; Intel's of this class are FPGAs */
		return pci->vendor_id == VENDOR_AMD;
	default:
		return false;
	}
}

bool gpu_on_bus(const char *sys_root)
{
	char dir[PATH_MAX];
	struct dirent **list;
	bool found = false;

	snprintf(dir, sizeof dir, "%s/sys/bus/pci/devices", sys_root);

	int count = sys_list(dir, &list);

	for (int i = 0; !found && i < count; i++) {
		const char *name = list[i]->d_name;
		struct hwloc_pcidev_attr_s pci = {
			.class_id = (unsigned short)(sys_number(0, "%s/%s/class", dir, name) >> 8)};
		struct pci_id id;

		if ((pci.class_id >> 8 != 0x03 && pci.class_id >> 8 != 0x12) ||
		    pci_parse(name, &id) != 0)
			continue;
		pci.domain = id.domain;
		pci.bus = (unsigned char)id.bus;
		pci.dev = (unsigned char)id.dev;
		pci.vendor_id = (unsigned short)sys_number(0, "%s/%s/vendor", dir, name);
		pci.device_id = (unsigned short)sys_number(0, "%s/%s/device", dir, name);
		found = is_gpu(&pci);
	}
	sys_list_free(list, count);
	return found;
}

static int make_gap(void *array, size_t count, size_t at, size_t size)
{
	size_t after = count - at;
	char *last = array_add(array, &count, size), *gap;

	if (!last)
		return -1;
	gap = last - after * size;
	memmove(gap + size, gap, after * size);
	memset(gap, 0, size);
	return 0;
}

int gpu_insert(struct discovery *discovery, size_t at, struct error *err)
{
	struct inventory *inventory = discovery->inventory;

	if (make_gap(&discovery->gpu_objs, inventory->gpu_count, at, sizeof *discovery->gpu_objs) ||
	    make_gap(&inventory->gpus, inventory->gpu_count, at, sizeof *inventory->gpus))
		return error_memory(err, "the GPUs");
	inventory->gpu_count++;
	inventory->gpus[at].partition = -1;
	inventory->gpus[at].package = -1;
	inventory->gpus[at].memory_bytes = -1;
	inventory->gpus[at].allowed = true;
	return 0;
}

int gpu_add_partition(struct discovery *discovery, size_t at, struct error *err)
{
	int rc = gpu_insert(discovery, at + 1, err);

	if (rc)
		return rc;

	const struct inventory_gpu *from = &discovery->inventory->gpus[at];
	struct inventory_gpu *to = &discovery->inventory->gpus[at + 1];

	*to = *from;
	to->name = from->name ? strdup(from->name) : NULL;
	to->fault = from->fault ? strdup(from->fault) : NULL;
	to->uuid = to->mig = NULL;
	to->os_devices = strdup(from->os_devices);
	to->numa_os = idset_copy(from->numa_os);
	to->cpus_os = idset_copy(from->cpus_os);
	discovery->gpu_objs[at + 1] = discovery->gpu_objs[at];
	if (!to->os_devices || !to->numa_os || !to->cpus_os)
		return error_memory(err, "the GPUs");
	return 0;
}

void gpu_set_locality(struct inventory_gpu *gpu, const struct locality *locality)
{
	gpu->numa_os = locality->numa_os;
	gpu->cpus_os = locality->cpus_os;
	gpu->package = locality->package;
	gpu->local_known = locality->known;
}

/* A backend's whole device, not a part of one: "rsmi3" or "ze0", but not Level Zero's "ze0.1". */
static bool whole_device(const char *name, const char *backend)
{
	size_t length = strlen(backend);

	return strncmp(name, backend, length) == 0 && isdigit((unsigned char)name[length]) &&
	       !strchr(name, '.');
}

static bool is_os_device_of_gpu(hwloc_obj_t obj)
{
	return obj->type == HWLOC_OBJ_OS_DEVICE && obj->name &&
	       (obj->attr->osdev.type == HWLOC_OBJ_OSDEV_GPU ||
		obj->attr->osdev.type == HWLOC_OBJ_OSDEV_COPROC);
}

/* How many devices the one backend that shows partitions reports on this function. */
static int count_partitions(hwloc_obj_t pci, const char **backend)
{
	static const char *const backends[] = {"rsmi", "ze"};

	for (size_t b = 0; b < sizeof backends / sizeof *backends; b++) {
		int count = 0;

		for (hwloc_obj_t at = pci->io_first_child; at; at = at->next_sibling)
			count += is_os_device_of_gpu(at) && whole_device(at->name, backends[b]);
		if (count > 1) {
			*backend = backends[b];
			return count;
		}
	}
	*backend = NULL;
	return 1;
}

static int append_name(char **names, const char *name)
{
	char *longer = NULL;

	if (asprintf(&longer, "%s%s%s", *names, **names ? "," : "", name) < 0)
		return -1;
	free(*names);
	*names = longer;
	return 0;
}

static int64_t info_kib(hwloc_obj_t obj, const char *key)
{
	const char *text = topology_obj_info(obj, key);

	return text ? strtoll(text, NULL, 10) * 1024 : 0;
}

/* A meaningful info: partitions come with empty names and all-zero UUIDs. */
static const char *info_text(hwloc_obj_t obj, const char *key)
{
	const char *text = topology_obj_info(obj, key);

	return text && text[strspn(text, "0x-")] ? text : NULL;
}

/* Copy what an OS device's infos contain about its GPU. */
static int read_infos(struct inventory_gpu *gpu, hwloc_obj_t obj)
{
	static const char *const sizes[] = {"CUDAGlobalMemorySize", "RSMIVRAMSize",
					    "LevelZeroHBMSize", "OpenCLGlobalMemorySize"};
	const char *model = info_text(obj, "GPUModel");
	const char *uuid = info_text(obj, "NVIDIAUUID");

	if (!uuid)
		uuid = info_text(obj, "AMDUUID");
	if (model && !gpu->name && !(gpu->name = strdup(model)))
		return -1;
	if (uuid && !gpu->uuid && !(gpu->uuid = strdup(uuid)))
		return -1;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes && gpu->memory_bytes < 0; i++) {
		int64_t bytes = info_kib(obj, sizes[i]);

		if (bytes > 0)
			gpu->memory_bytes = bytes;
	}
	return 0;
}

/* Names and infos of the OS devices below pci. Of the backend that shows partitions, take only
 * device number partition. */
static int read_os_devices(struct inventory_gpu *gpu, hwloc_obj_t pci, const char *backend,
			   int partition)
{
	int seen = 0;

	gpu->os_devices = strdup("");
	if (!gpu->os_devices)
		return -1;
	for (hwloc_obj_t at = pci->io_first_child; at; at = at->next_sibling) {
		if (!is_os_device_of_gpu(at))
			continue;
		if (backend && whole_device(at->name, backend) && seen++ != partition)
			continue;
		if (append_name(&gpu->os_devices, at->name) != 0 || read_infos(gpu, at) != 0)
			return -1;
	}
	return 0;
}

static int add_function(struct discovery *discovery, hwloc_obj_t obj, struct error *err)
{
	const struct hwloc_pcidev_attr_s *attr = &obj->attr->pcidev;
	struct pci_id id = {attr->domain, attr->bus, attr->dev, attr->func};
	struct inventory *inventory = discovery->inventory;
	const char *backend;
	int partitions = count_partitions(obj, &backend);
	size_t at = 0;

	for (struct pci_id other; at < inventory->gpu_count; at++)
		if (pci_parse(inventory->gpus[at].pci, &other) == 0 && pci_compare(id, other) < 0)
			break;
	for (int i = 0; i < partitions; i++, at++) {
		int rc = gpu_insert(discovery, at, err);

		if (rc)
			return rc;

		struct inventory_gpu *gpu = &inventory->gpus[at];
		struct locality locality;

		pci_format(id, gpu->pci);
		gpu->vendor = attr->vendor_id;
		gpu->device = attr->device_id;
		gpu->pci_class = attr->class_id;
		gpu->partition = partitions > 1 ? i : -1;
		discovery->gpu_objs[at] = obj;
		rc = topology_locality_of(discovery, obj, &locality, err);
		if (rc)
			return rc;
		gpu_set_locality(gpu, &locality);
		if (read_os_devices(gpu, obj, backend, i) != 0)
			return error_memory(err, "the GPUs");

		const char *model = info_text(obj, "PCIDevice");

		if (!gpu->name && model && !(gpu->name = strdup(model)))
			return error_memory(err, "the GPUs");
	}
	return 0;
}

int gpu_read(struct discovery *discovery, struct error *err)
{
	hwloc_obj_t obj = NULL;
	int rc = 0;

	while (!rc && (obj = hwloc_get_next_pcidev(discovery->topology, obj)))
		if (is_gpu(&obj->attr->pcidev))
			rc = add_function(discovery, obj, err);
	return rc;
}
