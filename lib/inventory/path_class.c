/* SPDX-License-Identifier: BSD-3-Clause */
/* How close each NIC is to each GPU, in nvidia-smi's classes, from hwloc's tree. */
#include "inventory/inventory_internal.h"

#include <stdlib.h>

static bool is_bridge_to(hwloc_obj_t obj, hwloc_obj_bridge_type_t upstream)
{
	return obj->type == HWLOC_OBJ_BRIDGE && obj->attr->bridge.upstream_type == upstream;
}

/* PCI-PCI bridges strictly between obj and its ancestor. */
static int bridges_below(hwloc_obj_t ancestor, hwloc_obj_t obj)
{
	int count = 0;

	for (hwloc_obj_t at = obj->parent; at && at != ancestor; at = at->parent)
		count += at->type == HWLOC_OBJ_BRIDGE;
	return count;
}

static int height_of(hwloc_obj_t obj)
{
	int height = 0;

	for (; obj->parent; obj = obj->parent)
		height++;
	return height;
}

/* hwloc_get_common_ancestor_obj() compares depths, which I/O objects lack. */
static hwloc_obj_t common_bridge(hwloc_obj_t a, hwloc_obj_t b)
{
	int above_a = height_of(a), above_b = height_of(b);

	for (; above_a > above_b; above_a--)
		a = a->parent;
	for (; above_b > above_a; above_b--)
		b = b->parent;
	while (a != b) {
		a = a->parent;
		b = b->parent;
	}
	return a;
}

/* The class by the PCI tree; PATH_UNKNOWN if they meet above the host bridges. */
static enum path_class class_by_tree(hwloc_obj_t a, hwloc_obj_t b)
{
	hwloc_obj_t ancestor = common_bridge(a, b);

	if (ancestor->type == HWLOC_OBJ_PCI_DEVICE) /* a NIC's OS device on the GPU's function */
		return PATH_PIX;
	if (is_bridge_to(ancestor, HWLOC_OBJ_BRIDGE_PCI))
		/* One switch: an upstream port, where they meet, and one downstream port each. */
		return bridges_below(ancestor, a) <= 1 && bridges_below(ancestor, b) <= 1
			       ? PATH_PIX
			       : PATH_PXB;
	if (is_bridge_to(ancestor, HWLOC_OBJ_BRIDGE_HOST))
		return PATH_PHB;
	return PATH_UNKNOWN;
}

/* The class by NUMA node and package, if the tree gives no more. */
static enum path_class class_by_locality(const struct inventory *inventory,
					 const struct inventory_gpu *gpu,
					 const struct inventory_nic *nic)
{
	if (idset_count(gpu->numa_os) == 1 && idset_equal(gpu->numa_os, nic->numa_os))
		return PATH_NODE;
	if (gpu->package >= 0 && nic->package >= 0 &&
	    (inventory->package_count > 1 || idset_count(nic->numa_os)))
		return gpu->package == nic->package ? PATH_PKG : PATH_SYS;
	return PATH_UNKNOWN;
}

int locality_read(struct discovery *discovery, struct error *err)
{
	struct inventory *inventory = discovery->inventory;
	size_t cells = inventory->gpu_count * inventory->nic_count;

	if (!cells)
		return 0;
	inventory->path = malloc(cells);
	if (!inventory->path)
		return error_memory(err, "the paths");
	for (size_t g = 0; g < inventory->gpu_count; g++) {
		for (size_t n = 0; n < inventory->nic_count; n++) {
			enum path_class path = PATH_UNKNOWN;

			if (discovery->gpu_objs[g] && discovery->nic_objs[n])
				path = class_by_tree(discovery->gpu_objs[g],
						     discovery->nic_objs[n]);
			if (path == PATH_UNKNOWN)
				path = class_by_locality(inventory, &inventory->gpus[g],
							 &inventory->nics[n]);
			inventory->path[g * inventory->nic_count + n] = (uint8_t)path;
		}
	}
	return 0;
}
