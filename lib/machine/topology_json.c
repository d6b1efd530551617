/* SPDX-License-Identifier: BSD-3-Clause */
/* The card as JSON, and back. Small, because a head holds one a node:
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
 * Reading trusts nothing: counts, ids and texts have the limits below. */
#include "machine/machine.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

#define MAX_CORES 8192
#define MAX_CPU 16383 /* with MAX_CORES bounds what a hostile card's sets can take */
#define MAX_NUMAS 1024
#define MAX_PACKAGES 1024
#define MAX_GPUS 1024
#define MAX_NICS 1024
#define MAX_ADDRESSES 4096
#define MAX_NOTES 256
#define MAX_TEXT 4096

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

static json_t *cores_to_json(const struct machine *machine)
{
	json_t *rows = json_array();

	for (size_t i = 0, next; i < machine->core_count; i = next) {
		const struct machine_core *first = &machine->cores[i];
		int step = 0;

		for (next = i + 1; next < machine->core_count; next++) {
			const struct machine_core *core = &machine->cores[next];

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

static json_t *numas_to_json(const struct machine *machine)
{
	json_t *rows = json_array();

	for (size_t i = 0; i < machine->numa_count; i++) {
		const struct machine_numa *numa = &machine->numas[i];

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

static json_t *gpus_to_json(const struct machine *machine)
{
	json_t *list = json_array();

	for (size_t i = 0; i < machine->gpu_count; i++) {
		const struct machine_gpu *gpu = &machine->gpus[i];
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

static json_t *nics_to_json(const struct machine *machine)
{
	json_t *list = json_array();

	for (size_t i = 0; i < machine->nic_count; i++) {
		const struct machine_nic *nic = &machine->nics[i];

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

static json_t *paths_to_json(const struct machine *machine)
{
	json_t *list = json_array();
	char *text = malloc(machine->nic_count + 1);

	for (size_t g = 0; text && machine->path && g < machine->gpu_count; g++) {
		for (size_t n = 0; n < machine->nic_count; n++)
			text[n] = (char)('0' + machine->path[g * machine->nic_count + n]);
		text[machine->nic_count] = '\0';
		json_array_append_new(list, json_string(text));
	}
	if (!text) {
		json_decref(list);
		list = NULL;
	}
	free(text);
	return list;
}

static json_t *addresses_to_json(const struct machine *machine)
{
	json_t *list = json_array();

	for (size_t i = 0; i < machine->address_count; i++) {
		const struct machine_address *at = &machine->addresses[i];
		char text[INET6_ADDRSTRLEN] = "";

		inet_ntop(at->family, at->bytes, text, sizeof text);
		json_array_append_new(list,
				      json_pack("[o,s,i,I,i,b,I,i,s]", json_text(at->iface), text,
						at->prefix, (json_int_t)at->scope, (int)at->sort,
						at->up, (json_int_t)at->speed_mbps, at->nic,
						nic_kind_name(at->kind)));
	}
	return list;
}

static json_t *notes_to_json(const struct machine *machine)
{
	json_t *list = json_array();

	for (size_t i = 0; i < machine->note_count; i++)
		json_array_append_new(list, json_text(machine->notes[i]));
	return list;
}

json_t *machine_to_json(const struct machine *machine)
{
	json_t *limit = machine->memory_limit_bytes >= 0 ? json_integer(machine->memory_limit_bytes)
							 : json_null();

	return json_pack("{s:s,s:o,s:b,s:o,s:I,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "format",
			 "berth.card/1", "node", json_text(machine->node), "this_system",
			 machine->this_system, "source", json_text(machine->source), "packages",
			 (json_int_t)machine->package_count, "allowed",
			 set_to_json(machine->allowed_cpus_os), "memory_limit", limit, "cores",
			 cores_to_json(machine), "numas", numas_to_json(machine), "gpus",
			 gpus_to_json(machine), "nics", nics_to_json(machine), "paths",
			 paths_to_json(machine), "addresses", addresses_to_json(machine), "notes",
			 notes_to_json(machine));
}

/* Reading. W names the card in errors. */
#define W "a node's card"

static int get_text(const json_t *object, const char *key, size_t max, const char **out,
		    struct error *err)
{
	int rc = json_get_string(W, object, key, out, err);

	if (!rc && strlen(*out) > max)
		return error_set(err, ERR_DATA, W ": \"%s\" has %zu bytes, expected at most %zu",
				 key, strlen(*out), max);
	return rc;
}

static int copy_text(char *out, size_t size, const json_t *object, const char *key,
		     struct error *err)
{
	const char *text;
	int rc = get_text(object, key, size - 1, &text, err);

	if (!rc)
		snprintf(out, size, "%s", text);
	return rc;
}

/* A text that may be absent: a copy, or NULL. */
static int dup_text(char **out, const json_t *object, const char *key, bool needed,
		    struct error *err)
{
	const char *text;

	if (!needed && !json_object_get(object, key))
		return 0;

	int rc = get_text(object, key, MAX_TEXT, &text, err);

	if (rc)
		return rc;
	*out = strdup(text);
	return *out ? 0 : error_memory(err, W);
}

static int get_number(const json_t *object, const char *key, int min, int max, int *out,
		      struct error *err)
{
	int64_t value;
	int rc = json_get_int(W, object, key, min, max, &value, err);

	if (!rc)
		*out = (int)value;
	return rc;
}

static int get_flag(const json_t *object, const char *key, bool *out, struct error *err)
{
	int value;
	int rc = json_get_bool(W, object, key, &value, err);

	if (!rc)
		*out = value;
	return rc;
}

static int parse_set(const char *text, struct idset **out, struct error *err)
{
	struct idset *set = NULL;
	int rc = idset_parse(text, &set, err);

	if (rc)
		return rc == -ERR_DATA ? error_prefix(err, W) : rc;
	if (idset_next(set, MAX_CPU) >= 0) {
		idset_free(set);
		return error_set(err, ERR_DATA, W ": an id over %d in \"%.80s\"", MAX_CPU, text);
	}
	*out = set;
	return 0;
}

static int get_set(const json_t *object, const char *key, struct idset **out, struct error *err)
{
	const char *text;
	int rc = json_get_string(W, object, key, &text, err);

	return rc ? rc : parse_set(text, out, err);
}

static int get_list(const json_t *object, const char *key, size_t max, json_t **out,
		    struct error *err)
{
	int rc = json_get_array(W, object, key, out, err);

	if (!rc && json_array_size(*out) > max)
		return error_set(err, ERR_DATA, W ": %zu entries in \"%s\", expected at most %zu",
				 json_array_size(*out), key, max);
	return rc;
}

static int bad_row(const char *key, size_t row, const char *expected, struct error *err)
{
	return error_set(err, ERR_DATA, W ": entry %zu of \"%s\" is malformed; expected %s", row,
			 key, expected);
}

/* The count cores of one row. */
static int cores_of_row(struct machine *machine, const struct idset *first, int package, int numa,
			int count, int step, struct error *err)
{
	for (int k = 0; k < count; k++) {
		struct machine_core *core = &machine->cores[machine->core_count];

		*core = (struct machine_core){.core_logical = (int)machine->core_count,
					      .package = package,
					      .numa_os = numa,
					      .cpus_os = idset_new()};
		machine->core_count++;
		if (!core->cpus_os)
			return error_memory(err, W);
		for (int id = idset_next(first, -1); id >= 0; id = idset_next(first, id)) {
			if (id + k * step > MAX_CPU)
				return error_set(err, ERR_DATA, W ": a core with CPU %d",
						 id + k * step);
			if (idset_add(core->cpus_os, id + k * step) != 0)
				return error_memory(err, W);
		}
	}
	return 0;
}

static int cores_from_json(const json_t *json, struct machine *machine, struct error *err)
{
	json_t *rows, *row;
	size_t i;
	int rc = get_list(json, "cores", MAX_CORES, &rows, err);

	if (rc)
		return rc;
	machine->cores = calloc(MAX_CORES, sizeof *machine->cores);
	if (!machine->cores)
		return error_memory(err, W);
	json_array_foreach(rows, i, row)
	{
		int package, numa, count, step;
		const char *cpus;
		struct idset *first = NULL;

		if (json_unpack(row, "[i,i,s,i,i!]", &package, &numa, &cpus, &count, &step) != 0 ||
		    package < 0 || package >= (int)machine->package_count || numa < -1 ||
		    numa > MAX_CPU || count < 1 || step < 1 || step > MAX_CPU ||
		    count > MAX_CORES - (int)machine->core_count)
			return bad_row("cores", i, "[package, numa, \"cpus\", count, step]", err);
		rc = parse_set(cpus, &first, err);
		if (!rc && !idset_count(first))
			rc = bad_row("cores", i, "at least one CPU", err);
		if (!rc)
			rc = cores_of_row(machine, first, package, numa, count, step, err);
		idset_free(first);
		if (rc)
			return rc;
	}

	struct machine_core *fit = realloc(machine->cores, (machine->core_count + 1) * sizeof *fit);

	machine->cores = fit ? fit : machine->cores;
	return 0;
}

static int numas_from_json(const json_t *json, struct machine *machine, struct error *err)
{
	json_t *rows, *row;
	size_t i;
	int rc = get_list(json, "numas", MAX_NUMAS, &rows, err);

	if (rc)
		return rc;
	machine->numas = calloc(json_array_size(rows) + 1, sizeof *machine->numas);
	if (!machine->numas)
		return error_memory(err, W);
	json_array_foreach(rows, i, row)
	{
		struct machine_numa *numa = &machine->numas[i];
		json_int_t bytes;
		const char *cpus;

		if (json_unpack(row, "[i,i,s,I!]", &numa->numa_os, &numa->package, &cpus, &bytes) ||
		    numa->numa_os < 0 || numa->numa_os > MAX_CPU || numa->package < 0 ||
		    numa->package >= (int)machine->package_count || bytes < 0)
			return bad_row("numas", i, "[numa, package, \"cpus\", bytes]", err);
		numa->memory_bytes = (uint64_t)bytes;
		machine->numa_count = i + 1;
		rc = parse_set(cpus, &numa->cpus_os, err);
		if (rc)
			return rc;
	}
	return 0;
}

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
	int rc = get_text(row, "id", 9, &id, err);

	if (!rc)
		rc = get_text(row, "class", 4, &class, err);
	if (rc)
		return rc;
	if (strlen(id) != 9 || id[4] != ':' || hex4(id, vendor) || hex4(id + 5, device) ||
	    hex4(class, pci_class))
		return error_set(err, ERR_DATA,
				 W ": id \"%s\", class \"%s\"; expected \"10de:2335\", \"0302\"",
				 id, class);
	return 0;
}

static int gpu_from_json(const json_t *row, int packages, struct machine_gpu *gpu,
			 struct error *err)
{
	int64_t memory = -1;
	int rc = copy_text(gpu->pci, sizeof gpu->pci, row, "pci", err);

	gpu->partition = -1;
	if (!rc)
		rc = ids_from_json(row, &gpu->vendor, &gpu->device, &gpu->pci_class, err);
	if (!rc)
		rc = get_set(row, "numa", &gpu->numa_os, err);
	if (!rc)
		rc = get_set(row, "cpus", &gpu->cpus_os, err);
	if (!rc)
		rc = get_number(row, "package", -1, packages - 1, &gpu->package, err);
	if (!rc)
		rc = get_flag(row, "known", &gpu->local_known, err);
	if (!rc)
		rc = get_flag(row, "allowed", &gpu->allowed, err);
	if (!rc && json_object_get(row, "partition"))
		rc = get_number(row, "partition", 0, MAX_GPUS, &gpu->partition, err);
	if (!rc && json_object_get(row, "memory"))
		rc = json_get_int(W, row, "memory", 0, INT64_MAX, &memory, err);
	gpu->memory_bytes = memory;
	if (!rc)
		rc = dup_text(&gpu->name, row, "name", false, err);
	if (!rc)
		rc = dup_text(&gpu->os_devices, row, "os", false, err);
	if (!rc && !gpu->os_devices && !(gpu->os_devices = strdup("")))
		rc = error_memory(err, W);
	if (!rc)
		rc = dup_text(&gpu->uuid, row, "uuid", false, err);
	if (!rc)
		rc = dup_text(&gpu->mig, row, "mig", false, err);
	return rc ? rc : dup_text(&gpu->fault, row, "fault", false, err);
}

static int gpus_from_json(const json_t *json, struct machine *machine, struct error *err)
{
	json_t *rows, *row;
	size_t i;
	int rc = get_list(json, "gpus", MAX_GPUS, &rows, err);

	if (rc)
		return rc;
	machine->gpus = calloc(json_array_size(rows) + 1, sizeof *machine->gpus);
	if (!machine->gpus)
		return error_memory(err, W);
	json_array_foreach(rows, i, row)
	{
		machine->gpu_count = i + 1;
		machine->gpus[i].index = (int)i;
		rc = gpu_from_json(row, (int)machine->package_count, &machine->gpus[i], err);
		if (rc)
			return rc;
	}
	return 0;
}

static int kind_parse(const char *name, enum nic_kind *out)
{
	for (int k = NIC_ETHERNET; k <= NIC_INFINIBAND; k++)
		if (strcmp(nic_kind_name((enum nic_kind)k), name) == 0) {
			*out = (enum nic_kind)k;
			return 0;
		}
	return -1;
}

static int nic_from_json(const json_t *row, int packages, struct machine_nic *nic,
			 struct error *err)
{
	const char *kind;
	int state = STATE_UNKNOWN;
	int rc = copy_text(nic->net, sizeof nic->net, row, "net", err);

	if (!rc)
		rc = copy_text(nic->rdma, sizeof nic->rdma, row, "rdma", err);
	if (!rc)
		rc = get_number(row, "port", 1, 255, &nic->port, err);
	if (!rc)
		rc = copy_text(nic->pci, sizeof nic->pci, row, "pci", err);
	if (!rc)
		rc = ids_from_json(row, &nic->vendor, &nic->device, &nic->pci_class, err);
	if (!rc)
		rc = get_text(row, "kind", 32, &kind, err);
	if (!rc && kind_parse(kind, &nic->kind) != 0)
		rc = error_set(err, ERR_DATA,
			       W ": a NIC of kind \"%s\"; expected \"infiniband\", "
				 "\"slingshot\", \"efa\", \"fabric\", \"roce\" or "
				 "\"ethernet\"",
			       kind);
	if (!rc)
		rc = get_number(row, "state", STATE_UNKNOWN, STATE_UP, &state, err);
	nic->state = (enum machine_state)state;
	if (!rc)
		rc = json_get_int(W, row, "speed", -1, INT64_MAX, &nic->speed_mbps, err);
	if (!rc)
		rc = get_set(row, "numa", &nic->numa_os, err);
	if (!rc)
		rc = get_set(row, "cpus", &nic->cpus_os, err);
	if (!rc)
		rc = get_number(row, "package", -1, packages - 1, &nic->package, err);
	return rc ? rc : get_flag(row, "management", &nic->management, err);
}

static int nics_from_json(const json_t *json, struct machine *machine, struct error *err)
{
	json_t *rows, *row;
	size_t i;
	int rc = get_list(json, "nics", MAX_NICS, &rows, err);

	if (rc)
		return rc;
	machine->nics = calloc(json_array_size(rows) + 1, sizeof *machine->nics);
	if (!machine->nics)
		return error_memory(err, W);
	json_array_foreach(rows, i, row)
	{
		machine->nic_count = i + 1;
		rc = nic_from_json(row, (int)machine->package_count, &machine->nics[i], err);
		if (rc)
			return rc;
	}
	return 0;
}

static int paths_from_json(const json_t *json, struct machine *machine, struct error *err)
{
	size_t nics = machine->nic_count, cells = machine->gpu_count * nics;
	json_t *rows, *row;
	size_t i;
	int rc = get_list(json, "paths", MAX_GPUS, &rows, err);

	if (rc || !cells)
		return rc;
	if (json_array_size(rows) != machine->gpu_count)
		return error_set(err, ERR_DATA, W ": %zu paths for %zu GPUs", json_array_size(rows),
				 machine->gpu_count);
	machine->path = malloc(cells);
	if (!machine->path)
		return error_memory(err, W);
	json_array_foreach(rows, i, row)
	{
		const char *text = json_string_value(row);

		if (!text || strlen(text) != nics || strspn(text, "0123456") != nics)
			return bad_row("paths", i, "a digit from 0 to 6 for each NIC", err);
		for (size_t n = 0; n < nics; n++)
			machine->path[i * nics + n] = (uint8_t)(text[n] - '0');
	}
	return 0;
}

static int address_from_row(const json_t *row, const struct machine *machine,
			    struct machine_address *at)
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
	    at->nic < -1 || at->nic >= (int)machine->nic_count || kind_parse(kind, &at->kind) != 0)
		return -1;
	snprintf(at->iface, sizeof at->iface, "%s", iface);
	at->scope = (unsigned)scope;
	at->sort = (enum iface_sort)sort;
	at->up = up;
	at->speed_mbps = speed;
	at->link_local = at->family == AF_INET
				 ? at->bytes[0] == 169 && at->bytes[1] == 254
				 : at->bytes[0] == 0xfe && (at->bytes[1] & 0xc0) == 0x80;
	return 0;
}

static int addresses_from_json(const json_t *json, struct machine *machine, struct error *err)
{
	json_t *rows, *row;
	size_t i;
	int rc = get_list(json, "addresses", MAX_ADDRESSES, &rows, err);

	if (rc)
		return rc;
	machine->addresses = calloc(json_array_size(rows) + 1, sizeof *machine->addresses);
	if (!machine->addresses)
		return error_memory(err, W);
	json_array_foreach(rows, i, row)
	{
		if (address_from_row(row, machine, &machine->addresses[i]) != 0)
			return bad_row("addresses", i,
				       "[\"iface\", \"address\", prefix, scope, sort, up, speed, "
				       "nic, \"kind\"]",
				       err);
		machine->address_count = i + 1;
	}
	return 0;
}

static int notes_from_json(const json_t *json, struct machine *machine, struct error *err)
{
	json_t *rows, *row;
	size_t i;
	int rc = get_list(json, "notes", MAX_NOTES, &rows, err);

	if (rc)
		return rc;
	machine->notes = calloc(json_array_size(rows) + 1, sizeof *machine->notes);
	if (!machine->notes)
		return error_memory(err, W);
	json_array_foreach(rows, i, row)
	{
		const char *text = json_string_value(row);

		if (!text || strlen(text) > MAX_TEXT)
			return bad_row("notes", i, "a text", err);
		machine->notes[i] = strdup(text);
		if (!machine->notes[i])
			return error_memory(err, W);
		machine->note_count = i + 1;
	}
	return 0;
}

static int head_from_json(const json_t *json, struct machine *machine, struct error *err)
{
	const char *format;
	int packages = 0;
	int rc = get_text(json, "format", 64, &format, err);

	if (!rc && strcmp(format, "berth.card/1") != 0)
		rc = error_set(err, ERR_DATA,
			       W ": format \"%s\", expected \"berth.card/1\"; is "
				 "another version of berth on that node?",
			       format);
	if (!rc)
		rc = dup_text(&machine->node, json, "node", true, err);
	if (!rc)
		rc = dup_text(&machine->source, json, "source", true, err);
	if (!rc)
		rc = get_flag(json, "this_system", &machine->this_system, err);
	if (!rc)
		rc = get_number(json, "packages", 1, MAX_PACKAGES, &packages, err);
	machine->package_count = (size_t)packages;
	if (!rc)
		rc = get_set(json, "allowed", &machine->allowed_cpus_os, err);
	machine->memory_limit_bytes = -1;
	if (!rc && !json_is_null(json_object_get(json, "memory_limit")))
		rc = json_get_int(W, json, "memory_limit", 0, INT64_MAX,
				  &machine->memory_limit_bytes, err);
	return rc;
}

int machine_from_json(const json_t *json, struct machine *out, struct error *err)
{
	struct machine machine = {0};
	int rc;

	if (!json_is_object(json))
		return error_set(err, ERR_DATA, W ": no JSON object");
	rc = head_from_json(json, &machine, err);
	if (!rc)
		rc = cores_from_json(json, &machine, err);
	if (!rc)
		rc = numas_from_json(json, &machine, err);
	if (!rc)
		rc = gpus_from_json(json, &machine, err);
	if (!rc)
		rc = nics_from_json(json, &machine, err);
	if (!rc)
		rc = paths_from_json(json, &machine, err);
	if (!rc)
		rc = addresses_from_json(json, &machine, err);
	if (!rc)
		rc = notes_from_json(json, &machine, err);
	if (rc)
		machine_free(&machine);
	else
		*out = machine;
	return rc;
}
