/* SPDX-License-Identifier: BSD-3-Clause */
#include "inventory/inventory_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

const char *path_class_name(enum path_class path)
{
	static const char *const names[] = {"PIX", "PXB", "PHB", "NODE", "PKG", "SYS", "UNK"};

	return (unsigned)path <= PATH_UNKNOWN ? names[path] : "UNK";
}

const char *nic_kind_name(enum nic_kind kind)
{
	static const char *const names[] = {"ethernet", "roce",	     "fabric",
					    "efa",	"slingshot", "infiniband"};

	return (unsigned)kind <= NIC_INFINIBAND ? names[kind] : "ethernet";
}

void *grow(void *array, size_t count, size_t size)
{
	char *bigger = reallocarray(array, count + 1, size);

	if (bigger)
		memset(bigger + count * size, 0, size);
	return bigger;
}

void machine_note(struct machine *machine, const char *format, ...)
{
	char *text = NULL;
	va_list ap;

	va_start(ap, format);
	int n = vasprintf(&text, format, ap);
	va_end(ap);
	if (n < 0)
		return;

	char **notes = grow(machine->notes, machine->note_count, sizeof *notes);

	if (!notes) {
		free(text);
		return;
	}
	machine->notes = notes;
	notes[machine->note_count++] = text;
}

void gpu_clear(struct machine_gpu *gpu)
{
	free(gpu->name);
	free(gpu->os_devices);
	free(gpu->uuid);
	free(gpu->mig);
	free(gpu->fault);
	idset_free(gpu->numa_os);
	idset_free(gpu->cpus_os);
}

void nic_clear(struct machine_nic *nic)
{
	idset_free(nic->numa_os);
	idset_free(nic->cpus_os);
}

void machine_free(struct machine *machine)
{
	if (!machine)
		return;
	for (size_t i = 0; machine->cores && i < machine->core_count; i++)
		idset_free(machine->cores[i].cpus_os);
	for (size_t i = 0; machine->numas && i < machine->numa_count; i++)
		idset_free(machine->numas[i].cpus_os);
	for (size_t i = 0; machine->gpus && i < machine->gpu_count; i++)
		gpu_clear(&machine->gpus[i]);
	for (size_t i = 0; machine->nics && i < machine->nic_count; i++)
		nic_clear(&machine->nics[i]);
	for (size_t i = 0; machine->notes && i < machine->note_count; i++)
		free(machine->notes[i]);
	free(machine->cores);
	free(machine->numas);
	free(machine->gpus);
	free(machine->nics);
	free(machine->notes);
	free(machine->addresses);
	free(machine->path);
	free(machine->node);
	free(machine->source);
	idset_free(machine->allowed_cpus_os);
	*machine = (struct machine){0};
}

int pci_parse(const char *text, struct pci_id *out)
{
	struct pci_id id;
	int end = -1;

	if (strlen(text) > 16 || strchr(text, ' ') || strchr(text, 'x') || strchr(text, '-') ||
	    strchr(text, '+') ||
	    sscanf(text, "%8x:%2x:%2x.%1x%n", &id.domain, &id.bus, &id.dev, &id.func, &end) != 4 ||
	    end < 0 || text[end] != '\0' || id.dev > 31 || id.func > 7)
		return -1;
	*out = id;
	return 0;
}

int pci_compare(struct pci_id a, struct pci_id b)
{
	if (a.domain != b.domain)
		return a.domain < b.domain ? -1 : 1;
	if (a.bus != b.bus)
		return a.bus < b.bus ? -1 : 1;
	if (a.dev != b.dev)
		return a.dev < b.dev ? -1 : 1;
	return (a.func > b.func) - (a.func < b.func);
}

void pci_format(struct pci_id id, char out[20])
{
	snprintf(out, 20, "%04x:%02x:%02x.%x", id.domain, id.bus & 0xff, id.dev & 0x1f,
		 id.func & 7);
}

static int read_names(struct build *build, struct error *err)
{
	struct machine *machine = build->machine;
	const char *file = build->source->topology_file;
	char host[256];

	if (gethostname(host, sizeof host) != 0)
		return error_set(err, ERR_UNAVAILABLE, "this node's host name cannot be read: %m");
	host[sizeof host - 1] = '\0';

	const char *captured = NULL;

	if (build->source->no_network)
		captured = obj_info(hwloc_get_root_obj(build->topology), "HostName");
	machine->node = strdup(captured ? captured : host);
	machine->source = strdup(file ? file : "this machine");
	machine->this_system = !file;
	if (!machine->node || !machine->source)
		return error_memory(err, "the machine's name");
	return 0;
}

static int read_addresses(struct build *build, struct error *err)
{
	struct ifaddrs *list = NULL;

	if (build->source->no_network)
		return 0;
	if (getifaddrs(&list) != 0)
		return error_set(err, ERR_UNAVAILABLE,
				 "the network interfaces cannot be listed: %m");

	int rc = address_read(build, list, err);

	freeifaddrs(list);
	return rc;
}

static void read_memory_limit(struct build *build)
{
	char *text = NULL;
	size_t size;

	build->machine->memory_limit_bytes = -1;
	if (build->source->topology_file)
		return;
	if (file_read("/proc/self/cgroup", 1 << 20, &text, &size, NULL) != 0)
		return;
	build->machine->memory_limit_bytes = cgroup_memory_limit(build->source->sys_root, text);
	free(text);
}

int machine_load(const struct machine_source *source, struct machine *out, struct error *err)
{
	struct machine machine = {0};
	struct build build = {.source = source, .machine = &machine};
	int rc = topology_open(source, &build.topology, err);

	if (rc)
		goto out;
	rc = read_names(&build, err);
	if (!rc)
		rc = topology_read(&build, err);
	if (!rc)
		rc = gpu_read(&build, err);
	if (!rc)
		rc = nic_read(&build, err);
	if (!rc)
		rc = path_read(&build, err);
	if (!rc)
		rc = read_addresses(&build, err);
	if (!rc)
		read_memory_limit(&build);
out:
	free(build.gpu_objs);
	free(build.nic_objs);
	hwloc_bitmap_free(build.allowed);
	hwloc_bitmap_free(build.cpu_nodes);
	if (build.topology)
		hwloc_topology_destroy(build.topology);
	if (rc)
		machine_free(&machine);
	else
		*out = machine;
	return rc;
}
