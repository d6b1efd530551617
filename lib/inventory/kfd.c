/* SPDX-License-Identifier: BSD-3-Clause */
/* AMD's GPUs as their driver shows them below class/kfd: which of them this container may use (the
 * driver makes the others unreadable), partitions, UUIDs, memory. */
#include "inventory/sys.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/file.h"

#define AMD 0x1002

struct kfd_node {
	struct pci_id id; /* not all modes report the function's number */
	uint64_t unique_id;
	int64_t memory_bytes;
};

/* The number after "key " at a line's beginning, or 0. */
static uint64_t property(const char *text, const char *key)
{
	size_t length = strlen(key);

	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, key, length) == 0 && line[length] == ' ')
			return strtoull(line + length + 1, NULL, 10);
		if (!*line)
			break;
	}
	return 0;
}

static char *properties_of(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *properties_of(const char *format, ...)
{
	char path[PATH_MAX], *text = NULL;
	size_t size;
	va_list ap;

	va_start(ap, format);
	int n = vsnprintf(path, sizeof path, format, ap);
	va_end(ap);
	if (n < 0 || (size_t)n >= sizeof path || file_read(path, 65536, &text, &size, NULL) != 0)
		return NULL;
	return text;
}

/* Device memory: the banks of heap types 1 and 2 (frame buffer). */
static int64_t memory_of(const char *dir, const char *node)
{
	char path[PATH_MAX];
	struct dirent **banks;
	uint64_t bytes = 0;

	snprintf(path, sizeof path, "%s/%s/mem_banks", dir, node);

	int count = sys_list(path, &banks);

	for (int i = 0; i < count; i++) {
		char *text = properties_of("%s/%s/properties", path, banks[i]->d_name);
		uint64_t heap = text ? property(text, "heap_type") : 0;

		if (heap == 1 || heap == 2)
			bytes += property(text, "size_in_bytes");
		free(text);
	}
	sys_list_free(banks, count);
	return bytes && bytes < INT64_MAX ? (int64_t)bytes : -1;
}

/* Read the node if it is a GPU that this process may read. */
static bool read_node(const char *dir, const char *name, struct kfd_node *out)
{
	char *text = properties_of("%s/%s/properties", dir, name);
	bool gpu = text && property(text, "simd_count") > 0;

	if (gpu) {
		/* Bus, device and function: 8, 5 and 3 bits. */
		uint64_t location = property(text, "location_id");

		out->id = (struct pci_id){.domain = (unsigned)property(text, "domain"),
					  .bus = location >> 8 & 0xff,
					  .dev = location >> 3 & 0x1f};
		out->unique_id = property(text, "unique_id");
		out->memory_bytes = memory_of(dir, name);
	}
	free(text);
	return gpu;
}

static bool is_at(const struct inventory_gpu *gpu, const struct kfd_node *node)
{
	struct pci_id id;

	return gpu->vendor == AMD && pci_parse(gpu->pci, &id) == 0 &&
	       id.domain == node->id.domain && id.bus == node->id.bus && id.dev == node->id.dev;
}

/* The nodes of one function are adjacent; gpus[at] is the function's first entry. */
static int add_nodes(struct discovery *discovery, size_t at, const struct kfd_node *nodes,
		     size_t count, struct error *err)
{
	/* hwloc may show the partitions itself; then each of them has an entry already. */
	bool single = discovery->inventory->gpus[at].partition < 0;

	for (size_t i = 0; i < count; i++) {
		struct inventory_gpu *gpu;

		if (single && i) {
			int rc = gpu_add_partition(discovery, at + i - 1, err);

			if (rc)
				return rc;
		} else if (at + i >= discovery->inventory->gpu_count ||
			   !is_at(&discovery->inventory->gpus[at + i], &nodes[i])) {
			return 0;
		}
		gpu = &discovery->inventory->gpus[at + i];
		if (single && count > 1)
			gpu->partition = (int)i;
		gpu->allowed = true;
		if (nodes[i].memory_bytes >= 0)
			gpu->memory_bytes = nodes[i].memory_bytes;
		/* Partitions may share an id, which would then name several devices. */
		if (count == 1 && nodes[i].unique_id && !gpu->uuid &&
		    !(gpu->uuid = text_format("GPU-%016" PRIx64, nodes[i].unique_id)))
			return error_memory(err, "the GPUs");
	}
	return 0;
}

/* Make the entries of each function that has nodes. AMD's other GPUs are not available to this
 * job. */
static int merge_nodes(struct discovery *discovery, const struct kfd_node *nodes, size_t count,
		       struct error *err)
{
	struct inventory *inventory = discovery->inventory;

	for (size_t g = 0; g < inventory->gpu_count; g++)
		if (inventory->gpus[g].vendor == AMD)
			inventory->gpus[g].allowed = false;
	for (size_t g = 0; g < inventory->gpu_count; g++) {
		struct kfd_node *here = NULL;
		size_t found = 0;

		if (g && strcmp(inventory->gpus[g].pci, inventory->gpus[g - 1].pci) == 0)
			continue;
		for (size_t n = 0; n < count; n++) {
			if (!is_at(&inventory->gpus[g], &nodes[n]))
				continue;

			struct kfd_node *node = array_add(&here, &found, sizeof *node);

			if (!node) {
				free(here);
				return error_memory(err, "the GPUs");
			}
			*node = nodes[n];
		}

		int rc = add_nodes(discovery, g, here, found, err);

		free(here);
		if (rc)
			return rc;
	}
	return 0;
}

static int by_number(const void *a, const void *b)
{
	/* As numbers: as text, 10 would come before 2. */
	long one = strtol((*(struct dirent *const *)a)->d_name, NULL, 10);
	long two = strtol((*(struct dirent *const *)b)->d_name, NULL, 10);

	return (one > two) - (one < two);
}

int kfd_read(struct discovery *discovery, struct error *err)
{
	const char *root = discovery->source->sys_root ? discovery->source->sys_root : "";
	char dir[PATH_MAX];
	struct dirent **list;
	struct kfd_node *nodes = NULL;
	size_t found = 0;
	int rc = 0;

	snprintf(dir, sizeof dir, "%s/sys/class/kfd/kfd/topology/nodes", root);

	int count = sys_list(dir, &list);

	if (count > 0)
		qsort(list, (size_t)count, sizeof *list, by_number);
	for (int i = 0; !rc && i < count; i++) {
		struct kfd_node node, *added;

		if (!read_node(dir, list[i]->d_name, &node))
			continue;
		added = array_add(&nodes, &found, sizeof node);
		if (!added)
			rc = error_memory(err, "the GPUs");
		else
			*added = node;
	}
	/* Without the driver's directory nothing is known, so all GPUs stay as they are. */
	if (!rc && count > 0)
		rc = merge_nodes(discovery, nodes, found, err);
	free(nodes);
	sys_list_free(list, count);
	return rc;
}
