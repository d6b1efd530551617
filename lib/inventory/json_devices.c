/* SPDX-License-Identifier: BSD-3-Clause */
/* The GPUs and NICs of a card from the wire. */
#include <stdlib.h>
#include <string.h>

#include "inventory/json_read.h"

/* "10de:2335" and "0302": exactly so many hexadecimal digits. */
static int hex4(const char *text, uint16_t *out)
{
	if (strspn(text, "0123456789abcdef") < 4)
		return -1;

	char digits[5] = {text[0], text[1], text[2], text[3], '\0'};

	*out = (uint16_t)strtoul(digits, NULL, 16);
	return 0;
}

static int ids_from_json(const json_t *row, uint16_t *vendor, uint16_t *device, uint16_t *pci_class,
			 struct error *err)
{
	const char *id, *class;
	int rc = inventory_get_text(row, "id", 9, &id, err);

	if (!rc)
		rc = inventory_get_text(row, "class", 4, &class, err);
	if (rc)
		return rc;
	if (strlen(id) != 9 || id[4] != ':' || hex4(id, vendor) || hex4(id + 5, device) ||
	    hex4(class, pci_class))
		return error_set(err, ERR_DATA,
				 INVENTORY_NAME
				 ": id \"%s\", class \"%s\"; expected \"10de:2335\", \"0302\"",
				 id, class);
	return 0;
}

static int gpu_from_json(const json_t *row, int packages, struct inventory_gpu *gpu,
			 struct error *err)
{
	int64_t memory = -1;
	int rc = inventory_copy_text(gpu->pci, sizeof gpu->pci, row, "pci", err);

	gpu->partition = -1;
	if (!rc)
		rc = ids_from_json(row, &gpu->vendor, &gpu->device, &gpu->pci_class, err);
	if (!rc)
		rc = inventory_get_set(row, "numa", &gpu->numa_os, err);
	if (!rc)
		rc = inventory_get_set(row, "cpus", &gpu->cpus_os, err);
	if (!rc)
		rc = inventory_get_number(row, "package", -1, packages - 1, &gpu->package, err);
	if (!rc)
		rc = inventory_get_flag(row, "known", &gpu->local_known, err);
	if (!rc)
		rc = inventory_get_flag(row, "allowed", &gpu->allowed, err);
	if (!rc && json_object_get(row, "partition"))
		rc = inventory_get_number(row, "partition", 0, MAX_GPUS, &gpu->partition, err);
	if (!rc && json_object_get(row, "memory"))
		rc = json_get_int(INVENTORY_NAME, row, "memory", 0, INT64_MAX, &memory, err);
	gpu->memory_bytes = memory;
	if (!rc)
		rc = inventory_dup_text(&gpu->name, row, "name", false, err);
	if (!rc)
		rc = inventory_dup_text(&gpu->os_devices, row, "os", false, err);
	if (!rc && !gpu->os_devices && !(gpu->os_devices = strdup("")))
		rc = error_memory(err, INVENTORY_NAME);
	if (!rc)
		rc = inventory_dup_text(&gpu->uuid, row, "uuid", false, err);
	if (!rc)
		rc = inventory_dup_text(&gpu->mig, row, "mig", false, err);
	return rc ? rc : inventory_dup_text(&gpu->fault, row, "fault", false, err);
}

int inventory_gpus_from_json(const json_t *json, struct inventory *inventory, struct error *err)
{
	json_t *rows, *row;
	size_t i;
	int rc = inventory_get_list(json, "gpus", MAX_GPUS, &rows, err);

	if (rc)
		return rc;
	inventory->gpus = calloc(json_array_size(rows) + 1, sizeof *inventory->gpus);
	if (!inventory->gpus)
		return error_memory(err, INVENTORY_NAME);
	json_array_foreach(rows, i, row)
	{
		inventory->gpu_count = i + 1;
		inventory->gpus[i].index = (int)i;
		rc = gpu_from_json(row, (int)inventory->package_count, &inventory->gpus[i], err);
		if (rc)
			return rc;
	}
	return 0;
}

static int nic_from_json(const json_t *row, int packages, struct inventory_nic *nic,
			 struct error *err)
{
	const char *kind;
	int state = NIC_STATE_UNKNOWN;
	int rc = inventory_copy_text(nic->net, sizeof nic->net, row, "net", err);

	if (!rc)
		rc = inventory_copy_text(nic->rdma, sizeof nic->rdma, row, "rdma", err);
	if (!rc)
		rc = inventory_get_number(row, "port", 1, 255, &nic->port, err);
	if (!rc)
		rc = inventory_copy_text(nic->pci, sizeof nic->pci, row, "pci", err);
	if (!rc)
		rc = ids_from_json(row, &nic->vendor, &nic->device, &nic->pci_class, err);
	if (!rc)
		rc = inventory_get_text(row, "kind", 32, &kind, err);
	if (!rc && inventory_parse_kind(kind, &nic->kind) != 0)
		rc = error_set(err, ERR_DATA,
			       INVENTORY_NAME ": a NIC of kind \"%s\"; expected \"infiniband\", "
					      "\"slingshot\", \"efa\", \"fabric\", \"roce\" or "
					      "\"ethernet\"",
			       kind);
	if (!rc)
		rc = inventory_get_number(row, "state", NIC_STATE_UNKNOWN, NIC_STATE_UP, &state,
					  err);
	nic->state = (enum nic_state)state;
	if (!rc)
		rc = json_get_int(INVENTORY_NAME, row, "speed", -1, INT64_MAX, &nic->speed_mbps,
				  err);
	if (!rc)
		rc = inventory_get_set(row, "numa", &nic->numa_os, err);
	if (!rc)
		rc = inventory_get_set(row, "cpus", &nic->cpus_os, err);
	if (!rc)
		rc = inventory_get_number(row, "package", -1, packages - 1, &nic->package, err);
	return rc ? rc : inventory_get_flag(row, "management", &nic->management, err);
}

int inventory_nics_from_json(const json_t *json, struct inventory *inventory, struct error *err)
{
	json_t *rows, *row;
	size_t i;
	int rc = inventory_get_list(json, "nics", MAX_NICS, &rows, err);

	if (rc)
		return rc;
	inventory->nics = calloc(json_array_size(rows) + 1, sizeof *inventory->nics);
	if (!inventory->nics)
		return error_memory(err, INVENTORY_NAME);
	json_array_foreach(rows, i, row)
	{
		inventory->nic_count = i + 1;
		rc = nic_from_json(row, (int)inventory->package_count, &inventory->nics[i], err);
		if (rc)
			return rc;
	}
	return 0;
}
