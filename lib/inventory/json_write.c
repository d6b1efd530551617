/* SPDX-License-Identifier: BSD-3-Clause */
/* The card as JSON. Small, because a head holds one a node:
 *
 *   {"format":"berth.card/1","node":"x1","this_system":true,"source":"this machine",
 *    "packages":2,"allowed":"0-127","memory_limit":null,
 *    "cores":[[package, numa, "cpus of the first", how many, step]],
 *        a row is cores that follow each other: the k-th has the first's CPUs plus k*step
 *    "numas":[[numa, package, "cpus", bytes]],
 *    "gpus":[{"pci":"0000:03:00.0","id":"10de:2335","class":"0302","numa":"3","cpus":"48-55",
 *        "package":0,"known":true,"allowed":true, and where they are: partition, name, os,
 *        uuid, mig, fault, memory}],
 *    "nics":[{"net":"hsn0","rdma":"cxi0","port":1,"pci":"..","id":"17db:0501","class":"0200",
 *        "kind":"slingshot","state":1,"speed":200000,"numa":"3","cpus":"48-55","package":0,
 *        "management":false}],
 *    "paths":["0123"],  a text a GPU: a digit of enum path_class a NIC
 *    "addresses":[["hsn0","10.0.0.1",prefix,scope,sort,up,speed,nic,kind]],
 *    "notes":["..."]}
 *
 * json_read.c reads it back. */
#include "inventory/inventory.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static json_t *set_to_json(const struct idset *set)
{
	char *text = idset_format(set);
	json_t *json = text ? json_string(text) : NULL;

	free(text);
	return json;
}

/* Is b the set a with every id step higher? */
static bool is_shifted(const struct idset *a, const struct idset *b, int step)
{
	int x = idset_next(a, -1), y = idset_next(b, -1);

	for (; x >= 0 && y >= 0; x = idset_next(a, x), y = idset_next(b, y))
		if (y != x + step)
			return false;
	return x < 0 && y < 0;
}

static json_t *cores_to_json(const struct inventory *inventory)
{
	json_t *rows = json_array();

	for (size_t i = 0, next; i < inventory->core_count; i = next) {
		const struct inventory_core *first = &inventory->cores[i];
		int step = 0;

		for (next = i + 1; next < inventory->core_count; next++) {
			const struct inventory_core *core = &inventory->cores[next];

			if (next == i + 1)
				step = idset_next(core->cpus_os, -1) -
				       idset_next(first->cpus_os, -1);
			if (core->package != first->package || core->numa_os != first->numa_os ||
			    step <= 0 ||
			    !is_shifted(first->cpus_os, core->cpus_os, (int)(next - i) * step))
				break;
		}
		json_array_append_new(rows, json_pack("[i,i,o,i,i]", first->package, first->numa_os,
						      set_to_json(first->cpus_os), (int)(next - i),
						      step > 0 ? step : 1));
	}
	return rows;
}

static json_t *numas_to_json(const struct inventory *inventory)
{
	json_t *rows = json_array();

	for (size_t i = 0; i < inventory->numa_count; i++) {
		const struct inventory_numa *numa = &inventory->numas[i];

		json_array_append_new(rows, json_pack("[i,i,o,I]", numa->numa_os, numa->package,
						      set_to_json(numa->cpus_os),
						      (json_int_t)numa->memory_bytes));
	}
	return rows;
}

static json_t *id_to_json(uint16_t vendor, uint16_t device)
{
	char text[16];

	snprintf(text, sizeof text, "%04x:%04x", vendor, device);
	return json_string(text);
}

static json_t *class_to_json(uint16_t pci_class)
{
	char text[8];

	snprintf(text, sizeof text, "%04x", pci_class);
	return json_string(text);
}

static void set_text(json_t *object, const char *key, const char *text)
{
	if (text && *text)
		json_object_set_new(object, key, json_text(text));
}

static json_t *gpus_to_json(const struct inventory *inventory)
{
	json_t *list = json_array();

	for (size_t i = 0; i < inventory->gpu_count; i++) {
		const struct inventory_gpu *gpu = &inventory->gpus[i];
		json_t *row =
			json_pack("{s:s,s:o,s:o,s:o,s:o,s:i,s:b,s:b}", "pci", gpu->pci, "id",
				  id_to_json(gpu->vendor, gpu->device), "class",
				  class_to_json(gpu->pci_class), "numa", set_to_json(gpu->numa_os),
				  "cpus", set_to_json(gpu->cpus_os), "package", gpu->package,
				  "known", gpu->local_known, "allowed", gpu->allowed);

		if (gpu->partition >= 0)
			json_object_set_new(row, "partition", json_integer(gpu->partition));
		set_text(row, "name", gpu->name);
		set_text(row, "os", gpu->os_devices);
		set_text(row, "uuid", gpu->uuid);
		set_text(row, "mig", gpu->mig);
		set_text(row, "fault", gpu->fault);
		if (gpu->memory_bytes >= 0)
			json_object_set_new(row, "memory", json_integer(gpu->memory_bytes));
		json_array_append_new(list, row);
	}
	return list;
}

static json_t *nics_to_json(const struct inventory *inventory)
{
	json_t *list = json_array();

	for (size_t i = 0; i < inventory->nic_count; i++) {
		const struct inventory_nic *nic = &inventory->nics[i];

		json_array_append_new(
			list,
			json_pack("{s:o,s:o,s:i,s:s,s:o,s:o,s:s,s:i,s:I,s:o,s:o,s:i,s:b}", "net",
				  json_text(nic->net), "rdma", json_text(nic->rdma), "port",
				  nic->port, "pci", nic->pci, "id",
				  id_to_json(nic->vendor, nic->device), "class",
				  class_to_json(nic->pci_class), "kind", nic_kind_name(nic->kind),
				  "state", (int)nic->state, "speed", (json_int_t)nic->speed_mbps,
				  "numa", set_to_json(nic->numa_os), "cpus",
				  set_to_json(nic->cpus_os), "package", nic->package, "management",
				  nic->management));
	}
	return list;
}

static json_t *paths_to_json(const struct inventory *inventory)
{
	json_t *list = json_array();
	char *text = malloc(inventory->nic_count + 1);

	for (size_t g = 0; text && inventory->path && g < inventory->gpu_count; g++) {
		for (size_t n = 0; n < inventory->nic_count; n++)
			text[n] = (char)('0' + inventory->path[g * inventory->nic_count + n]);
		text[inventory->nic_count] = '\0';
		json_array_append_new(list, json_string(text));
	}
	if (!text) {
		json_decref(list);
		list = NULL;
	}
	free(text);
	return list;
}

static json_t *addresses_to_json(const struct inventory *inventory)
{
	json_t *list = json_array();

	for (size_t i = 0; i < inventory->address_count; i++) {
		const struct inventory_address *at = &inventory->addresses[i];
		char text[INET6_ADDRSTRLEN] = "";

		inet_ntop(at->family, at->bytes, text, sizeof text);
		json_array_append_new(list,
				      json_pack("[o,s,i,I,i,b,I,i,s]", json_text(at->iface), text,
						at->prefix, (json_int_t)at->scope, (int)at->type,
						at->up, (json_int_t)at->speed_mbps, at->nic,
						nic_kind_name(at->kind)));
	}
	return list;
}

static json_t *notes_to_json(const struct inventory *inventory)
{
	json_t *list = json_array();

	for (size_t i = 0; i < inventory->note_count; i++)
		json_array_append_new(list, json_text(inventory->notes[i]));
	return list;
}

/* A row that memory was short for is missing, and must not go unnoticed. */
static bool is_whole(const json_t *json, const struct inventory *inventory)
{
	return json && json_array_size(json_object_get(json, "numas")) == inventory->numa_count &&
	       json_array_size(json_object_get(json, "gpus")) == inventory->gpu_count &&
	       json_array_size(json_object_get(json, "nics")) == inventory->nic_count &&
	       json_array_size(json_object_get(json, "addresses")) == inventory->address_count &&
	       json_array_size(json_object_get(json, "notes")) == inventory->note_count;
}

json_t *inventory_to_json(const struct inventory *inventory)
{
	json_t *limit = inventory->memory_limit_bytes >= 0
				? json_integer(inventory->memory_limit_bytes)
				: json_null();

	json_t *json =
		json_pack("{s:s,s:o,s:b,s:o,s:I,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "format",
			  "berth.card/1", "node", json_text(inventory->node), "this_system",
			  inventory->this_system, "source", json_text(inventory->source),
			  "packages", (json_int_t)inventory->package_count, "allowed",
			  set_to_json(inventory->allowed_cpus_os), "memory_limit", limit, "cores",
			  cores_to_json(inventory), "numas", numas_to_json(inventory), "gpus",
			  gpus_to_json(inventory), "nics", nics_to_json(inventory), "paths",
			  paths_to_json(inventory), "addresses", addresses_to_json(inventory),
			  "notes", notes_to_json(inventory));

	if (!is_whole(json, inventory)) {
		json_decref(json);
		json = NULL;
	}
	return json;
}
