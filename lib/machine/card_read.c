/* SPDX-License-Identifier: BSD-3-Clause */
/* A card from the wire. Nothing is trusted: counts, ids and texts have the limits below. What
 * the members mean is in card_write.c. */
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

/* One row of cores: the k-th has first's CPUs plus k*step. seen: CPUs of all cores so far. */
struct core_row {
	const struct idset *first;
	int package, numa, count, step;
};

static int add_core(struct machine *machine, const struct core_row *row, int k, struct idset *seen,
		    struct error *err)
{
	struct machine_core *core = &machine->cores[machine->core_count];

	*core = (struct machine_core){.core_logical = (int)machine->core_count,
				      .package = row->package,
				      .numa_os = row->numa,
				      .cpus_os = idset_new()};
	machine->core_count++;
	if (!core->cpus_os)
		return error_memory(err, W);
	for (int id = idset_next(row->first, -1); id >= 0; id = idset_next(row->first, id)) {
		int cpu = id + k * row->step;

		if (cpu > MAX_CPU || idset_has(seen, cpu))
			return error_set(err, ERR_DATA, W ": CPU %d in two cores or over %d", cpu,
					 MAX_CPU);
		if (idset_add(core->cpus_os, cpu) != 0 || idset_add(seen, cpu) != 0)
			return error_memory(err, W);
	}
	return 0;
}

static int core_row_from_json(json_t *json, size_t i, struct machine *machine, struct idset *seen,
			      struct error *err)
{
	struct core_row row;
	struct idset *first = NULL;
	const char *cpus;

	if (json_unpack(json, "[i,i,s,i,i!]", &row.package, &row.numa, &cpus, &row.count,
			&row.step) != 0 ||
	    row.package < 0 || row.package >= (int)machine->package_count || row.numa < -1 ||
	    row.numa > MAX_CPU || row.count < 1 || row.step < 1 || row.step > MAX_CPU ||
	    row.count > MAX_CORES - (int)machine->core_count)
		return bad_row("cores", i, "[package, numa, \"cpus\", count, step]", err);

	int rc = parse_set(cpus, &first, err);

	if (!rc && !idset_count(first))
		rc = bad_row("cores", i, "at least one CPU", err);
	row.first = first;
	for (int k = 0; !rc && k < row.count; k++)
		rc = add_core(machine, &row, k, seen, err);
	idset_free(first);
	return rc;
}

static int cores_from_json(const json_t *json, struct machine *machine, struct error *err)
{
	json_t *rows, *row;
	size_t i;
	int rc = get_list(json, "cores", MAX_CORES, &rows, err);

	if (rc)
		return rc;

	struct idset *seen = idset_new();

	machine->cores = calloc(MAX_CORES, sizeof *machine->cores);
	if (!seen || !machine->cores)
		rc = error_memory(err, W);
	for (i = 0; !rc && i < json_array_size(rows); i++) {
		row = json_array_get(rows, i);
		rc = core_row_from_json(row, i, machine, seen, err);
	}
	idset_free(seen);
	if (rc)
		return rc;

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
