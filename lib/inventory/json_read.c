/* SPDX-License-Identifier: BSD-3-Clause */
/* A card from the wire. Nothing is trusted: counts, ids and texts have the limits of
 * json_read.h. What the members mean is in json_write.c. */
#include "inventory/inventory.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inventory/json_read.h"

/* One row of cores: the k-th has first's CPUs plus k*step. seen: CPUs of all cores so far. */
struct core_row {
	const struct idset *first;
	int package, numa, count, step;
};

static int add_core(struct inventory *inventory, const struct core_row *row, int k,
		    struct idset *seen, struct error *err)
{
	struct inventory_core *core = &inventory->cores[inventory->core_count];

	*core = (struct inventory_core){.core_logical = (int)inventory->core_count,
					.package = row->package,
					.numa_os = row->numa,
					.cpus_os = idset_new()};
	inventory->core_count++;
	if (!core->cpus_os)
		return error_memory(err, INVENTORY_NAME);
	for (int id = idset_next(row->first, -1); id >= 0; id = idset_next(row->first, id)) {
		int cpu = id + k * row->step;

		if (cpu > MAX_CPU || idset_has(seen, cpu))
			return error_set(err, ERR_DATA,
					 INVENTORY_NAME ": CPU %d in two cores or over %d", cpu,
					 MAX_CPU);
		if (idset_add(core->cpus_os, cpu) != 0 || idset_add(seen, cpu) != 0)
			return error_memory(err, INVENTORY_NAME);
	}
	return 0;
}

static int core_row_from_json(json_t *json, size_t i, struct inventory *inventory,
			      struct idset *seen, struct error *err)
{
	struct core_row row;
	struct idset *first = NULL;
	const char *cpus;

	if (json_unpack(json, "[i,i,s,i,i!]", &row.package, &row.numa, &cpus, &row.count,
			&row.step) != 0 ||
	    row.package < 0 || row.package >= (int)inventory->package_count || row.numa < -1 ||
	    row.numa > MAX_CPU || row.count < 1 || row.step < 1 || row.step > MAX_CPU ||
	    row.count > MAX_CORES - (int)inventory->core_count)
		return inventory_bad_row("cores", i, "[package, numa, \"cpus\", count, step]", err);

	int rc = inventory_parse_set(cpus, &first, err);

	if (!rc && !idset_count(first))
		rc = inventory_bad_row("cores", i, "at least one CPU", err);
	row.first = first;
	for (int k = 0; !rc && k < row.count; k++)
		rc = add_core(inventory, &row, k, seen, err);
	idset_free(first);
	return rc;
}

static int cores_from_json(const json_t *json, struct inventory *inventory, struct error *err)
{
	json_t *rows, *row;
	size_t i;
	int rc = inventory_get_list(json, "cores", MAX_CORES, &rows, err);

	if (rc)
		return rc;

	struct idset *seen = idset_new();

	inventory->cores = calloc(MAX_CORES, sizeof *inventory->cores);
	if (!seen || !inventory->cores)
		rc = error_memory(err, INVENTORY_NAME);
	for (i = 0; !rc && i < json_array_size(rows); i++) {
		row = json_array_get(rows, i);
		rc = core_row_from_json(row, i, inventory, seen, err);
	}
	idset_free(seen);
	if (rc)
		return rc;

	struct inventory_core *fit =
		realloc(inventory->cores, (inventory->core_count + 1) * sizeof *fit);

	inventory->cores = fit ? fit : inventory->cores;
	return 0;
}

static int numas_from_json(const json_t *json, struct inventory *inventory, struct error *err)
{
	json_t *rows, *row;
	size_t i;
	int rc = inventory_get_list(json, "numas", MAX_NUMAS, &rows, err);

	if (rc)
		return rc;
	inventory->numas = calloc(json_array_size(rows) + 1, sizeof *inventory->numas);
	if (!inventory->numas)
		return error_memory(err, INVENTORY_NAME);
	json_array_foreach(rows, i, row)
	{
		struct inventory_numa *numa = &inventory->numas[i];
		json_int_t bytes;
		const char *cpus;

		if (json_unpack(row, "[i,i,s,I!]", &numa->numa_os, &numa->package, &cpus, &bytes) ||
		    numa->numa_os < 0 || numa->numa_os > MAX_CPU || numa->package < 0 ||
		    numa->package >= (int)inventory->package_count || bytes < 0)
			return inventory_bad_row("numas", i, "[numa, package, \"cpus\", bytes]",
						 err);
		numa->memory_bytes = (uint64_t)bytes;
		inventory->numa_count = i + 1;
		rc = inventory_parse_set(cpus, &numa->cpus_os, err);
		if (rc)
			return rc;
	}
	return 0;
}

static int paths_from_json(const json_t *json, struct inventory *inventory, struct error *err)
{
	size_t nics = inventory->nic_count, cells = inventory->gpu_count * nics;
	json_t *rows, *row;
	size_t i;
	int rc = inventory_get_list(json, "paths", MAX_GPUS, &rows, err);

	if (rc || !cells)
		return rc;
	if (json_array_size(rows) != inventory->gpu_count)
		return error_set(err, ERR_DATA, INVENTORY_NAME ": %zu paths for %zu GPUs",
				 json_array_size(rows), inventory->gpu_count);
	inventory->path = malloc(cells);
	if (!inventory->path)
		return error_memory(err, INVENTORY_NAME);
	json_array_foreach(rows, i, row)
	{
		const char *text = json_string_value(row);

		if (!text || strlen(text) != nics || strspn(text, "0123456") != nics)
			return inventory_bad_row("paths", i, "a digit from 0 to 6 for each NIC",
						 err);
		for (size_t n = 0; n < nics; n++)
			inventory->path[i * nics + n] = (uint8_t)(text[n] - '0');
	}
	return 0;
}

static int address_from_row(const json_t *row, const struct inventory *inventory,
			    struct inventory_address *at)
{
	const char *iface, *text, *kind;
	json_int_t scope, speed;
	int sort, up;

	if (json_unpack((json_t *)row, "[s,s,i,I,i,b,I,i,s!]", &iface, &text, &at->prefix, &scope,
			&sort, &up, &speed, &at->nic, &kind) != 0)
		return -1;
	at->family = strchr(text, ':') ? AF_INET6 : AF_INET;
	if (strlen(iface) >= sizeof at->iface || inet_pton(at->family, text, at->bytes) != 1 ||
	    at->prefix < 0 || at->prefix > (at->family == AF_INET ? 32 : 128) || scope < 0 ||
	    scope > UINT32_MAX || sort < IFACE_PHYSICAL || sort > IFACE_VIRTUAL || speed < -1 ||
	    at->nic < -1 || at->nic >= (int)inventory->nic_count ||
	    inventory_parse_kind(kind, &at->kind) != 0)
		return -1;
	snprintf(at->iface, sizeof at->iface, "%s", iface);
	at->scope = (unsigned)scope;
	at->type = (enum iface_type)sort;
	at->up = up;
	at->speed_mbps = speed;
	at->link_local = at->family == AF_INET
				 ? at->bytes[0] == 169 && at->bytes[1] == 254
				 : at->bytes[0] == 0xfe && (at->bytes[1] & 0xc0) == 0x80;
	return 0;
}

static int addresses_from_json(const json_t *json, struct inventory *inventory, struct error *err)
{
	json_t *rows, *row;
	size_t i;
	int rc = inventory_get_list(json, "addresses", MAX_ADDRESSES, &rows, err);

	if (rc)
		return rc;
	inventory->addresses = calloc(json_array_size(rows) + 1, sizeof *inventory->addresses);
	if (!inventory->addresses)
		return error_memory(err, INVENTORY_NAME);
	json_array_foreach(rows, i, row)
	{
		if (address_from_row(row, inventory, &inventory->addresses[i]) != 0)
			return inventory_bad_row(
				"addresses", i,
				"[\"iface\", \"address\", prefix, scope, sort, up, speed, "
				"nic, \"kind\"]",
				err);
		inventory->address_count = i + 1;
	}
	return 0;
}

static int notes_from_json(const json_t *json, struct inventory *inventory, struct error *err)
{
	json_t *rows, *row;
	size_t i;
	int rc = inventory_get_list(json, "notes", MAX_NOTES, &rows, err);

	if (rc)
		return rc;
	inventory->notes = calloc(json_array_size(rows) + 1, sizeof *inventory->notes);
	if (!inventory->notes)
		return error_memory(err, INVENTORY_NAME);
	json_array_foreach(rows, i, row)
	{
		const char *text = json_string_value(row);

		if (!text || strlen(text) > MAX_TEXT)
			return inventory_bad_row("notes", i, "a text", err);
		inventory->notes[i] = strdup(text);
		if (!inventory->notes[i])
			return error_memory(err, INVENTORY_NAME);
		inventory->note_count = i + 1;
	}
	return 0;
}

static int identity_from_json(const json_t *json, struct inventory *inventory, struct error *err)
{
	const char *format;
	int packages = 0;
	int rc = inventory_get_text(json, "format", 64, &format, err);

	if (!rc && strcmp(format, "berth.card/1") != 0)
		rc = error_set(err, ERR_DATA,
			       INVENTORY_NAME ": format \"%s\", expected \"berth.card/1\"; is "
					      "another version of berth on that node?",
			       format);
	if (!rc)
		rc = inventory_dup_text(&inventory->node, json, "node", true, err);
	if (!rc)
		rc = inventory_dup_text(&inventory->source, json, "source", true, err);
	if (!rc)
		rc = inventory_get_flag(json, "this_system", &inventory->this_system, err);
	if (!rc)
		rc = inventory_get_number(json, "packages", 1, MAX_PACKAGES, &packages, err);
	inventory->package_count = (size_t)packages;
	if (!rc)
		rc = inventory_get_set(json, "allowed", &inventory->allowed_cpus_os, err);
	inventory->memory_limit_bytes = -1;
	if (!rc && !json_is_null(json_object_get(json, "memory_limit")))
		rc = json_get_int(INVENTORY_NAME, json, "memory_limit", 0, INT64_MAX,
				  &inventory->memory_limit_bytes, err);
	return rc;
}

int inventory_from_json(const json_t *json, struct inventory *out, struct error *err)
{
	struct inventory inventory = {0};
	int rc;

	if (!json_is_object(json))
		return error_set(err, ERR_DATA, INVENTORY_NAME ": no JSON object");
	rc = identity_from_json(json, &inventory, err);
	if (!rc)
		rc = cores_from_json(json, &inventory, err);
	if (!rc)
		rc = numas_from_json(json, &inventory, err);
	if (!rc)
		rc = inventory_gpus_from_json(json, &inventory, err);
	if (!rc)
		rc = inventory_nics_from_json(json, &inventory, err);
	if (!rc)
		rc = paths_from_json(json, &inventory, err);
	if (!rc)
		rc = addresses_from_json(json, &inventory, err);
	if (!rc)
		rc = notes_from_json(json, &inventory, err);
	if (rc)
		inventory_free(&inventory);
	else
		*out = inventory;
	return rc;
}
