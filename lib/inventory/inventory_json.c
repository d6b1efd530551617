/* SPDX-License-Identifier: BSD-3-Clause */
/* The inventory as JSON and back. It is small, because the controller holds one per node:
 *
 *   {"format":"berth.card/1","node":"x1","this_system":true,"source":"this machine",
 *    "packages":2,"allowed":"0-127","memory_limit":null,
 *    "cores":[[package, numa, "cpus of the first", count, step]],
 *        one row stands for consecutive cores: the k-th has the first's CPUs plus k*step
 *    "numas":[[numa, package, "cpus", bytes]],
 *    "gpus":[{"pci":"0000:03:00.0","id":"10de:2335","class":"0302","numa":"3","cpus":"48-55",
 *        "package":0,"known":true,"allowed":true, and if known: partition, name, os, uuid, mig,
 *        fault, memory}],
 *    "nics":[{"net":"hsn0","rdma":"cxi0","port":1,"pci":"..","id":"17db:0501","class":"0200",
 *        "kind":"slingshot","state":1,"speed":200000,"numa":"3","cpus":"48-55","package":0,
 *        "management":false}],
 *    "paths":["0123"],  one string per GPU, with one digit of enum path_class per NIC
 *    "addresses":[["hsn0","10.0.0.1",prefix,scope,sort,up,speed,nic,kind]],
 *    "notes":["..."]}
 *
 * The tables below write this document and read it from the wire. They check what a member may be
 * by itself; check_references checks the members against each other. */
#include "inventory/inventory.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/json_fields.h"

#define MAX_CORES 8192
#define MAX_CPU 16383 /* with MAX_CORES bounds what a hostile inventory's sets can take */
#define MAX_NUMAS 1024
#define MAX_PACKAGES 1024
#define MAX_GPUS 1024
#define MAX_NICS 1024
#define MAX_ADDRESSES 4096
#define MAX_NOTES 256
#define MAX_TEXT 4096

#define INVENTORY_NAME "a node's inventory" /* its name in errors */

/* ---- kinds of values that only an inventory has ---- */

/* "10de:2335": vendor and, as the second member, device. */
static json_t *id_write(const struct json_field *field, const void *owner)
{
	const uint16_t *vendor = json_member(field, owner);
	const uint16_t *device = json_second_member(field, owner);
	char text[16];

	snprintf(text, sizeof text, "%04x:%04x", *vendor, *device);
	return json_string(text);
}

/* Exactly four hexadecimal digits as Linux writes them, and then end. */
static bool read_hex(const char *text, char end, uint16_t *out)
{
	if (strspn(text, "0123456789abcdef") != 4 || text[4] != end)
		return false;
	*out = (uint16_t)strtoul(text, NULL, 16);
	return true;
}

static int id_read(const struct json_field *field, const json_t *json, void *owner,
		   const char *what, struct error *err)
{
	const char *text = json_string_value(json);

	if (text && read_hex(text, ':', json_member(field, owner)) &&
	    read_hex(text + 5, '\0', json_second_member(field, owner)))
		return 0;
	return json_unexpected(what, field->name, json, "a string such as \"10de:2335\"", err);
}

static const struct json_type as_id = {id_write, id_read};

/* "0302" */
static json_t *class_write(const struct json_field *field, const void *owner)
{
	const uint16_t *pci_class = json_member(field, owner);
	char text[8];

	snprintf(text, sizeof text, "%04x", *pci_class);
	return json_string(text);
}

static int class_read(const struct json_field *field, const json_t *json, void *owner,
		      const char *what, struct error *err)
{
	const char *text = json_string_value(json);

	if (text && read_hex(text, '\0', json_member(field, owner)))
		return 0;
	return json_unexpected(what, field->name, json, "a string such as \"0302\"", err);
}

static const struct json_type as_class = {class_write, class_read};

/* The whole address is the owner: family, bytes and link_local. */
static json_t *ip_write(const struct json_field *field, const void *owner)
{
	char text[INET6_ADDRSTRLEN];

	inventory_address_format(owner, 0, text, sizeof text);
	return json_string(text);
}

static int ip_read(const struct json_field *field, const json_t *json, void *owner,
		   const char *what, struct error *err)
{
	struct inventory_address *address = owner;
	const char *text = json_string_value(json);

	address->family = text && strchr(text, ':') ? AF_INET6 : AF_INET;
	if (!text || inet_pton(address->family, text, address->bytes) != 1)
		return json_unexpected(what, field->name, json, "an IP address", err);
	address->link_local = inventory_address_is_link_local(address);
	return 0;
}

static const struct json_type as_ip = {ip_write, ip_read};

/* The whole inventory is the owner; the document has its GPUs and NICs before. */
static json_t *paths_write(const struct json_field *field, const void *owner)
{
	const struct inventory *inventory = owner;
	size_t nics = inventory->nic_count;
	char *text = calloc(1, nics + 1);
	json_t *list = text ? json_array() : NULL;

	for (size_t g = 0; text && inventory->path && g < inventory->gpu_count; g++) {
		for (size_t n = 0; n < nics; n++)
			text[n] = (char)('0' + inventory->path[g * nics + n]);
		json_array_append_new(list, json_string(text));
	}
	free(text);
	return list;
}

static int paths_read(const struct json_field *field, const json_t *json, void *owner,
		      const char *what, struct error *err)
{
	struct inventory *inventory = owner;
	size_t gpus = inventory->gpu_count, nics = inventory->nic_count;

	if (!json_is_array(json) || json_array_size(json) > MAX_GPUS)
		return json_unexpected(what, field->name, json, "an array of strings", err);
	if (!gpus || !nics)
		return 0;
	if (json_array_size(json) != gpus)
		return error_set(err, ERR_DATA, "%s: \"%s\" has %zu entries for %zu GPUs", what,
				 field->name, json_array_size(json), gpus);
	inventory->path = malloc(gpus * nics);
	if (!inventory->path)
		return error_memory(err, what);
	for (size_t g = 0; g < gpus; g++) {
		const char *text = json_string_value(json_array_get(json, g));

		if (!text || strlen(text) != nics || strspn(text, "0123456") != nics)
			return error_set(err, ERR_DATA,
					 "%s: entry %zu of \"%s\" is malformed; expected a digit "
					 "from 0 to 6 for each NIC",
					 what, g, field->name);
		for (size_t n = 0; n < nics; n++)
			inventory->path[g * nics + n] = (uint8_t)(text[n] - '0');
	}
	return 0;
}

static const struct json_type as_paths = {paths_write, paths_read};

/* ---- cores: rows that each stand for several ---- */

struct core_row {
	int package, numa, count, step;
	struct idset *first; /* the CPUs of the row's first core */
};

static const struct json_field core_members[] = {
	{"package", &json_as_number, JSON_MEMBER(struct core_row, package), .max = MAX_PACKAGES},
	{"numa", &json_as_number, JSON_MEMBER(struct core_row, numa), .min = -1, .max = MAX_CPU},
	{"cpus", &idset_as_json, JSON_MEMBER(struct core_row, first), .max = MAX_CPU},
	{"count", &json_as_number, JSON_MEMBER(struct core_row, count), .min = 1, .max = MAX_CORES},
	{"step", &json_as_number, JSON_MEMBER(struct core_row, step), .min = 1, .max = MAX_CPU},
	{0}};

static const struct json_field core_row = {.members = core_members};

/* Is b the set a with every id step higher? */
static bool is_shifted(const struct idset *a, const struct idset *b, int step)
{
	int x = idset_next(a, -1), y = idset_next(b, -1);

	for (; x >= 0 && y >= 0; x = idset_next(a, x), y = idset_next(b, y))
		if (y != x + step)
			return false;
	return x < 0 && y < 0;
}

/* The longest row that starts with that core; it borrows the core's CPUs. */
static struct core_row core_row_at(const struct inventory *inventory, size_t start)
{
	const struct inventory_core *first = &inventory->cores[start], *core = first + 1;
	const struct inventory_core *end = inventory->cores + inventory->core_count;
	int step = core < end ? idset_next(core->cpus_os, -1) - idset_next(first->cpus_os, -1) : 0;

	for (; core < end; core++)
		if (core->package != first->package || core->numa_os != first->numa_os ||
		    step <= 0 ||
		    !is_shifted(first->cpus_os, core->cpus_os, (int)(core - first) * step))
			break;
	return (struct core_row){.package = first->package,
				 .numa = first->numa_os,
				 .count = (int)(core - first),
				 .step = step > 0 ? step : 1,
				 .first = first->cpus_os};
}

static json_t *cores_write(const struct json_field *field, const void *owner)
{
	const struct inventory *inventory = owner;
	json_t *rows = json_array();

	for (size_t i = 0; rows && i < inventory->core_count;) {
		struct core_row row = core_row_at(inventory, i);

		if (json_array_append_new(rows, json_as_row.write(&core_row, &row))) {
			json_decref(rows);
			return NULL;
		}
		i += (size_t)row.count;
	}
	return rows;
}

/* Append the row's cores. seen: the CPUs of all cores so far. */
static int add_cores(const struct core_row *row, struct inventory *inventory, struct idset *seen,
		     const char *what, struct error *err)
{
	if (!idset_count(row->first) || row->count > MAX_CORES - (int)inventory->core_count)
		return error_set(err, ERR_DATA,
				 "%s: expected at least one CPU, and at most %d cores in total",
				 what, MAX_CORES);
	for (int k = 0; k < row->count; k++) {
		struct inventory_core *core = &inventory->cores[inventory->core_count];

		*core = (struct inventory_core){.core_logical = (int)inventory->core_count++,
						.package = row->package,
						.numa_os = row->numa,
						.cpus_os = idset_new()};
		for (int id = idset_next(row->first, -1); id >= 0;
		     id = idset_next(row->first, id)) {
			int cpu = id + k * row->step;

			if (cpu > MAX_CPU || idset_has(seen, cpu))
				return error_set(err, ERR_DATA,
						 "%s: CPU %d belongs to two cores or exceeds %d",
						 what, cpu, MAX_CPU);
			if (!core->cpus_os || idset_add(core->cpus_os, cpu) || idset_add(seen, cpu))
				return error_memory(err, what);
		}
	}
	return 0;
}

static int cores_read(const struct json_field *field, const json_t *json, void *owner,
		      const char *what, struct error *err)
{
	struct inventory *inventory = owner;
	struct idset *seen = idset_new();
	int rc = 0;

	if (!json_is_array(json) || json_array_size(json) > MAX_CORES)
		rc = json_unexpected(what, field->name, json, "an array of rows", err);
	else if (!seen || !(inventory->cores = calloc(MAX_CORES, sizeof *inventory->cores)))
		rc = error_memory(err, what);
	for (size_t i = 0; !rc && i < json_array_size(json); i++) {
		struct core_row row = {0};
		char locality[80];

		snprintf(locality, sizeof locality, "%s, entry %zu of \"%s\"", what, i,
			 field->name);
		rc = json_as_row.read(&core_row, json_array_get(json, i), &row, locality, err);
		if (!rc)
			rc = add_cores(&row, inventory, seen, locality, err);
		idset_free(row.first);
	}
	idset_free(seen);
	if (rc)
		return rc;

	struct inventory_core *fit =
		realloc(inventory->cores, (inventory->core_count + 1) * sizeof *fit);

	inventory->cores = fit ? fit : inventory->cores;
	return 0;
}

static const struct json_type as_cores = {cores_write, cores_read};

/* ---- the tables ---- */

static const char *use_name(int use)
{
	static const char *const names[] = {"none", "default-route", "node-name", "scheduler"};

	return names[use];
}

static const char *kind_name(int kind)
{
	return nic_kind_name((enum nic_kind)kind);
}

#define NUMA(member) JSON_MEMBER(struct inventory_numa, member)
#define GPU(member) JSON_MEMBER(struct inventory_gpu, member)
#define NIC(member) JSON_MEMBER(struct inventory_nic, member)
#define ADDRESS(member) JSON_MEMBER(struct inventory_address, member)
#define MACHINE(member) JSON_MEMBER(struct inventory, member)
#define LIST(member, count) JSON_LIST(struct inventory, member, count)

static const struct json_field numa_members[] = {
	{"numa", &json_as_number, NUMA(numa_os), .max = MAX_CPU},
	{"package", &json_as_number, NUMA(package), .max = MAX_PACKAGES},
	{"cpus", &idset_as_json, NUMA(cpus_os), .max = MAX_CPU},
	{"bytes", &json_as_number, NUMA(memory_bytes), .max = INT64_MAX},
	{0}};

static const struct json_field gpu_members[] = {
	{"pci", &json_as_chars, GPU(pci)},
	{"id", &as_id, GPU(vendor), .second_offset = offsetof(struct inventory_gpu, device)},
	{"class", &as_class, GPU(pci_class)},
	{"numa", &idset_as_json, GPU(numa_os), .max = MAX_CPU},
	{"cpus", &idset_as_json, GPU(cpus_os), .max = MAX_CPU},
	{"package", &json_as_number, GPU(package), .min = -1, .max = MAX_PACKAGES},
	{"known", &json_as_bool, GPU(local_known)},
	{"allowed", &json_as_bool, GPU(allowed)},
	{"partition", &json_as_number, GPU(partition), JSON_OPTIONAL, .max = MAX_GPUS},
	{"name", &json_as_text, GPU(name), JSON_OPTIONAL, .max = MAX_TEXT},
	{"os", &json_as_text, GPU(os_devices), JSON_OPTIONAL, .max = MAX_TEXT},
	{"uuid", &json_as_text, GPU(uuid), JSON_OPTIONAL, .max = MAX_TEXT},
	{"mig", &json_as_text, GPU(mig), JSON_OPTIONAL, .max = MAX_TEXT},
	{"fault", &json_as_text, GPU(fault), JSON_OPTIONAL, .max = MAX_TEXT},
	{"memory", &json_as_number, GPU(memory_bytes), JSON_OPTIONAL, .max = INT64_MAX},
	{0}};

static const struct json_field nic_members[] = {
	{"net", &json_as_chars, NIC(net)},
	{"rdma", &json_as_chars, NIC(rdma)},
	{"port", &json_as_number, NIC(port), .min = 1, .max = 255},
	{"pci", &json_as_chars, NIC(pci)},
	{"id", &as_id, NIC(vendor), .second_offset = offsetof(struct inventory_nic, device)},
	{"class", &as_class, NIC(pci_class)},
	{"kind", &json_as_name, NIC(kind), .max = NIC_INFINIBAND, .name_of = kind_name},
	{"state", &json_as_number, NIC(state), .min = NIC_STATE_UNKNOWN, .max = NIC_STATE_UP},
	{"speed", &json_as_number, NIC(speed_mbps), .min = -1, .max = INT64_MAX},
	{"numa", &idset_as_json, NIC(numa_os), .max = MAX_CPU},
	{"cpus", &idset_as_json, NIC(cpus_os), .max = MAX_CPU},
	{"package", &json_as_number, NIC(package), .min = -1, .max = MAX_PACKAGES},
	{"management", &json_as_bool, NIC(management)},
	{0}};

static const struct json_field address_members[] = {
	{"iface", &json_as_chars, ADDRESS(iface)},
	{"address", &as_ip},
	{"prefix", &json_as_number, ADDRESS(prefix), .max = 128},
	{"scope", &json_as_number, ADDRESS(scope), .max = UINT32_MAX},
	{"sort", &json_as_number, ADDRESS(type), .max = IFACE_VIRTUAL},
	{"up", &json_as_bool, ADDRESS(up)},
	{"speed", &json_as_number, ADDRESS(speed_mbps), .min = -1, .max = INT64_MAX},
	{"nic", &json_as_number, ADDRESS(nic), .min = -1, .max = INT32_MAX},
	{"kind", &json_as_name, ADDRESS(kind), .max = NIC_INFINIBAND, .name_of = kind_name},
	{"use", &json_as_name, ADDRESS(use), .max = USE_SCHEDULER, .name_of = use_name},
	{0}};

static const struct json_field machine_members[] = {
	{"format", &json_as_constant, .constant = "berth.card/1"},
	{"node", &json_as_text, MACHINE(node), .max = MAX_TEXT},
	{"this_system", &json_as_bool, MACHINE(this_system)},
	{"source", &json_as_text, MACHINE(source), .max = MAX_TEXT},
	{"packages", &json_as_number, MACHINE(package_count), .min = 1, .max = MAX_PACKAGES},
	{"allowed", &idset_as_json, MACHINE(allowed_cpus_os), .max = MAX_CPU},
	{"memory_limit", &json_as_number, MACHINE(memory_limit_bytes), JSON_NULLABLE,
	 .max = INT64_MAX},
	{"cpu_limit", &json_as_number, MACHINE(cpu_limit_millis), JSON_OPTIONAL, .max = INT64_MAX},
	{"node_cores", &json_as_number, MACHINE(node_core_count), JSON_OPTIONAL, .max = MAX_CPU},
	{"cores", &as_cores},
	{"numas", &json_as_list, LIST(numas, numa_count), .max = MAX_NUMAS, .entry = &json_as_row,
	 .members = numa_members},
	{"gpus", &json_as_list, LIST(gpus, gpu_count), .max = MAX_GPUS, .entry = &json_as_object,
	 .members = gpu_members},
	{"nics", &json_as_list, LIST(nics, nic_count), .max = MAX_NICS, .entry = &json_as_object,
	 .members = nic_members},
	{"paths", &as_paths},
	{"addresses", &json_as_list, LIST(addresses, address_count), .max = MAX_ADDRESSES,
	 .entry = &json_as_row, .members = address_members},
	{"notes", &json_as_list, LIST(notes, note_count), .max = MAX_NOTES, .entry = &json_as_text,
	 .entry_max = MAX_TEXT},
	{0}};

json_t *inventory_to_json(const struct inventory *inventory)
{
	return json_fields_write(machine_members, inventory);
}

/* ---- what members say of each other ---- */

static int check_package(const char *list, size_t i, int package, const struct inventory *inventory,
			 struct error *err)
{
	if (package < (int)inventory->package_count)
		return 0;
	return error_set(
		err, ERR_DATA,
		INVENTORY_NAME
		", entry %zu of \"%s\": package %d is out of range; expected less than %zu",
		i, list, package, inventory->package_count);
}

static int check_references(const struct inventory *inventory, struct error *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < inventory->core_count; i++)
		rc = check_package("cores", i, inventory->cores[i].package, inventory, err);
	for (size_t i = 0; !rc && i < inventory->numa_count; i++)
		rc = check_package("numas", i, inventory->numas[i].package, inventory, err);
	for (size_t i = 0; !rc && i < inventory->gpu_count; i++)
		rc = check_package("gpus", i, inventory->gpus[i].package, inventory, err);
	for (size_t i = 0; !rc && i < inventory->nic_count; i++)
		rc = check_package("nics", i, inventory->nics[i].package, inventory, err);
	for (size_t i = 0; !rc && i < inventory->address_count; i++) {
		const struct inventory_address *address = &inventory->addresses[i];

		if (address->nic >= (int)inventory->nic_count ||
		    address->prefix > (address->family == AF_INET ? 32 : 128))
			rc = error_set(err, ERR_DATA,
				       INVENTORY_NAME
				       ", entry %zu of \"addresses\": prefix %d or NIC %d is out "
				       "of range (number of NICs: %zu)",
				       i, address->prefix, address->nic, inventory->nic_count);
	}
	return rc;
}

int inventory_from_json(const json_t *json, struct inventory *out, struct error *err)
{
	struct inventory inventory = {0};
	int rc;

	if (!json_is_object(json))
		return error_set(err, ERR_DATA, INVENTORY_NAME " is not a JSON object");
	rc = json_fields_read(machine_members, json, &inventory, INVENTORY_NAME, err);
	if (!rc)
		rc = check_references(&inventory, err);
	for (size_t i = 0; !rc && i < inventory.gpu_count; i++) {
		inventory.gpus[i].index = (int)i;
		if (!inventory.gpus[i].os_devices && !(inventory.gpus[i].os_devices = strdup("")))
			rc = error_memory(err, INVENTORY_NAME);
	}
	if (rc)
		inventory_free(&inventory);
	else
		*out = inventory;
	return rc;
}
