/* SPDX-License-Identifier: BSD-3-Clause */
#include "support.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void load_fixture(const char *name, struct inventory *out)
{
	char path[PATH_MAX];
	struct error err = {0};
	struct inventory_source source = {.topology_file = path, .no_network = true};

	snprintf(path, sizeof path, "%s/%s.xml", TOPO, name);
	if (inventory_discover(&source, out, &err) != 0)
		fail_msg("%s: %s", name, err.text);
}

const char *ids(const struct idset *set)
{
	static char texts[8][4096];
	static int next;
	char *text = idset_format(set), *at = texts[next++ % 8];

	snprintf(at, sizeof texts[0], "%s", text ? text : "?");
	free(text);
	return at;
}

static void describe_gpus(const struct inventory *inventory, FILE *out)
{
	for (size_t i = 0; i < inventory->gpu_count; i++) {
		const struct inventory_gpu *gpu = &inventory->gpus[i];

		assert_int_equal(gpu->index, i);
		fprintf(out, "gpu %d: %s", gpu->index, gpu->pci);
		if (gpu->partition >= 0)
			fprintf(out, " partition %d", gpu->partition);
		fprintf(out, " %04x:%04x (%04x) [%s] numa %s cpus %s package %d%s%s", gpu->vendor,
			gpu->device, gpu->pci_class, gpu->os_devices, ids(gpu->numa_os),
			ids(gpu->cpus_os), gpu->package, gpu->local_known ? "" : " unknown",
			gpu->allowed ? "" : " not-allowed");
		if (gpu->memory_bytes >= 0)
			fprintf(out, " %lld MiB", (long long)(gpu->memory_bytes >> 20));
		if (gpu->uuid)
			fprintf(out, " %s", gpu->uuid);
		if (gpu->mig)
			fprintf(out, " %s", gpu->mig);
		if (gpu->fault)
			fprintf(out, " FAULT %s", gpu->fault);
		if (gpu->name)
			fprintf(out, " (%s)", gpu->name);
		fputc('\n', out);
	}
}

static void describe_nics(const struct inventory *inventory, FILE *out)
{
	static const char *const states[] = {"unknown", "down", "up"};

	for (size_t i = 0; i < inventory->nic_count; i++) {
		const struct inventory_nic *nic = &inventory->nics[i];

		fprintf(out, "nic %zu: %s net %s rdma %s port %d %s %s", i,
			nic->pci[0] ? nic->pci : "-", nic->net[0] ? nic->net : "-",
			nic->rdma[0] ? nic->rdma : "-", nic->port, nic_kind_name(nic->kind),
			states[nic->state + 1]);
		if (nic->speed_mbps >= 0)
			fprintf(out, " %lld Mb/s", (long long)nic->speed_mbps);
		fprintf(out, " numa %s cpus %s package %d%s\n", ids(nic->numa_os),
			ids(nic->cpus_os), nic->package, nic->management ? " management" : "");
	}
	for (size_t g = 0; g < inventory->gpu_count && inventory->path; g++) {
		fprintf(out, "path of gpu %zu:", g);
		for (size_t n = 0; n < inventory->nic_count; n++)
			fprintf(out, " %s",
				path_class_name(inventory->path[g * inventory->nic_count + n]));
		fputc('\n', out);
	}
}

static void describe_addresses(const struct inventory *inventory, FILE *out)
{
	static const char *const sorts[] = {"physical", "loopback", "virtual"};

	for (size_t i = 0; i < inventory->address_count; i++) {
		const struct inventory_address *at = &inventory->addresses[i];
		char text[INET6_ADDRSTRLEN];

		inet_ntop(at->family, at->bytes, text, sizeof text);
		fprintf(out, "address %s %s/%d scope %u %s%s%s nic %d %s speed %lld\n", at->iface,
			text, at->prefix, at->scope, sorts[at->type], at->up ? " up" : " down",
			at->link_local ? " link-local" : "", at->nic, nic_kind_name(at->kind),
			(long long)at->speed_mbps);
	}
}

char *describe(const struct inventory *inventory)
{
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	assert_non_null(out);
	fprintf(out, "node %s packages %zu allowed %s\n", inventory->node, inventory->package_count,
		ids(inventory->allowed_cpus_os));
	for (size_t i = 0; i < inventory->numa_count; i++)
		fprintf(out, "numa %d package %d cpus %s %llu MiB\n", inventory->numas[i].numa_os,
			inventory->numas[i].package, ids(inventory->numas[i].cpus_os),
			(unsigned long long)(inventory->numas[i].memory_bytes >> 20));
	for (size_t i = 0; i < inventory->core_count; i++) {
		assert_int_equal(inventory->cores[i].core_logical, i);
		fprintf(out, "core %zu package %d numa %d cpus %s\n", i,
			inventory->cores[i].package, inventory->cores[i].numa_os,
			ids(inventory->cores[i].cpus_os));
	}
	describe_gpus(inventory, out);
	describe_nics(inventory, out);
	describe_addresses(inventory, out);
	for (size_t i = 0; i < inventory->note_count; i++)
		fprintf(out, "note %s\n", inventory->notes[i]);
	fclose(out);
	return text;
}
