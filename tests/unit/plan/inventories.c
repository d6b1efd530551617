/* SPDX-License-Identifier: BSD-3-Clause */
#include "inventories.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tests abort if memory is out. */
static void *grow(void *array, size_t count, size_t size)
{
	void *grown = realloc(array, (count + 1) * size);

	if (!grown)
		abort();
	memset((char *)grown + count * size, 0, size);
	return grown;
}

static struct idset *new_set(void)
{
	struct idset *set = idset_new();

	if (!set)
		abort();
	return set;
}

struct inventory make_inventory(const char *node, int packages, int numas, int cores, int smt)
{
	struct inventory inventory = {.node = strdup(node),
				      .source = strdup("made by a test"),
				      .package_count = (size_t)packages,
				      .memory_limit_bytes = -1,
				      .cpu_limit_millis = -1,
				      .core_count = (size_t)(packages * numas * cores),
				      .numa_count = (size_t)(packages * numas)};
	int total = packages * numas * cores;

	inventory.allowed_cpus_os = new_set();
	inventory.cores = calloc((size_t)total, sizeof *inventory.cores);
	inventory.numas = calloc(inventory.numa_count, sizeof *inventory.numas);
	if (!inventory.cores || !inventory.numas)
		abort();
	for (int n = 0; n < packages * numas; n++)
		inventory.numas[n] = (struct inventory_numa){n, n / numas, new_set(), 1ull << 34};
	for (int c = 0; c < total; c++) {
		struct inventory_core *core = &inventory.cores[c];

		*core = (struct inventory_core){c, c / (numas * cores), c / cores, new_set()};
		for (int s = 0; s < smt; s++)
			idset_add(core->cpus_os, c + s * total);
		idset_unite(inventory.numas[core->numa_os].cpus_os, core->cpus_os);
		idset_unite(inventory.allowed_cpus_os, core->cpus_os);
	}
	return inventory;
}

struct inventory_gpu *make_gpu(struct inventory *inventory, const char *pci, int numa_os)
{
	struct inventory_gpu *gpu;

	inventory->gpus = grow(inventory->gpus, inventory->gpu_count, sizeof *inventory->gpus);
	gpu = &inventory->gpus[inventory->gpu_count];
	gpu->index = (int)inventory->gpu_count++;
	snprintf(gpu->pci, sizeof gpu->pci, "%s", pci);
	gpu->partition = -1;
	gpu->vendor = 0x10de;
	gpu->device = 0x2335;
	gpu->pci_class = 0x0302;
	gpu->os_devices = strdup("");
	gpu->allowed = true;
	gpu->memory_bytes = -1;
	gpu->numa_os = new_set();
	gpu->cpus_os = numa_os >= 0 ? idset_copy(inventory->numas[numa_os].cpus_os)
				    : idset_copy(inventory->allowed_cpus_os);
	if (numa_os >= 0)
		idset_add(gpu->numa_os, numa_os);
	gpu->local_known = numa_os >= 0;
	gpu->package = numa_os >= 0 ? inventory->numas[numa_os].package : -1;
	return gpu;
}

void set_path(struct inventory *inventory, size_t gpu, size_t nic, enum path_class path)
{
	inventory->path[gpu * inventory->nic_count + nic] = (uint8_t)path;
}

struct inventory_nic *make_nic(struct inventory *inventory, const char *net, const char *rdma,
			       enum nic_kind kind, int numa_os)
{
	size_t old = inventory->nic_count, count = old + 1;
	uint8_t *path = calloc(inventory->gpu_count + 1, count);
	struct inventory_nic *nic;

	inventory->nics = grow(inventory->nics, old, sizeof *inventory->nics);
	nic = &inventory->nics[old];
	snprintf(nic->net, sizeof nic->net, "%s", net);
	snprintf(nic->rdma, sizeof nic->rdma, "%s", rdma);
	snprintf(nic->pci, sizeof nic->pci, "0000:%02zx:00.1", old);
	nic->port = 1;
	nic->kind = kind;
	nic->state = NIC_STATE_UP;
	nic->speed_mbps = kind == NIC_ETHERNET ? 10000 : 200000;
	nic->numa_os = new_set();
	idset_add(nic->numa_os, numa_os);
	nic->cpus_os = idset_copy(inventory->numas[numa_os].cpus_os);
	nic->package = inventory->numas[numa_os].package;
	if (!path)
		abort();
	for (size_t g = 0; g < inventory->gpu_count; g++) {
		for (size_t n = 0; n < old; n++)
			path[g * count + n] = inventory->path[g * old + n];
		path[g * count + old] = !inventory->gpus[g].local_known ? PATH_UNKNOWN
					: idset_has(inventory->gpus[g].numa_os, numa_os) ? PATH_NODE
					: inventory->gpus[g].package == nic->package	 ? PATH_PKG
											 : PATH_SYS;
	}
	free(inventory->path);
	inventory->path = path;
	inventory->nic_count = count;
	return nic;
}

struct inventory_address *make_address(struct inventory *inventory, const char *iface,
				       const char *cidr)
{
	struct inventory_address *address;
	char host[64];

	inventory->addresses =
		grow(inventory->addresses, inventory->address_count, sizeof *inventory->addresses);
	address = &inventory->addresses[inventory->address_count++];
	snprintf(address->iface, sizeof address->iface, "%s", iface);
	snprintf(host, sizeof host, "%.*s", (int)strcspn(cidr, "/"), cidr);
	address->family = strchr(host, ':') ? AF_INET6 : AF_INET;
	if (inet_pton(address->family, host, address->bytes) != 1)
		abort();
	address->prefix = atoi(cidr + strcspn(cidr, "/") + 1);
	address->up = true;
	address->type = !strcmp(iface, "lo") ? IFACE_LOOPBACK : IFACE_PHYSICAL;
	address->link_local = !strncmp(host, "fe80:", 5) || !strncmp(host, "169.254.", 8);
	address->speed_mbps = -1;
	address->nic = -1;
	address->kind = NIC_ETHERNET;
	for (size_t n = 0; n < inventory->nic_count; n++)
		if (!strcmp(inventory->nics[n].net, iface)) {
			address->nic = (int)n;
			address->kind = inventory->nics[n].kind;
			address->speed_mbps = inventory->nics[n].speed_mbps;
		}
	return address;
}

struct inventory make_cluster(int index)
{
	char text[64];
	struct inventory inventory;

	snprintf(text, sizeof text, "gpu%05d", index);
	inventory = make_inventory(text, 2, 2, 32, 2);
	for (int g = 0; g < 8; g++) {
		snprintf(text, sizeof text, "0000:%02x:00.0", 0x10 + 0x10 * g);
		struct inventory_gpu *gpu = make_gpu(&inventory, text, g / 2);

		snprintf(text, sizeof text, "GPU-%08x-%04x-0000-0000-000000000000", index, g);
		gpu->uuid = strdup(text);
	}
	for (int n = 0; n < 8; n++) {
		char net[16], rdma[16];

		snprintf(net, sizeof net, "ib%d", n);
		snprintf(rdma, sizeof rdma, "mlx5_%d", n);
		make_nic(&inventory, net, rdma, NIC_INFINIBAND, n / 2);
		set_path(&inventory, (size_t)n, (size_t)n, PATH_PIX);
	}
	make_nic(&inventory, "eno1", "", NIC_ETHERNET, 0)->management = true;
	make_address(&inventory, "lo", "127.0.0.1/8");
	snprintf(text, sizeof text, "172.16.%d.%d/16", index / 250, index % 250 + 1);
	make_address(&inventory, "eno1", text);
	make_address(&inventory, "docker0", "172.17.0.1/16")->type = IFACE_VIRTUAL;
	for (int n = 0; n < 8; n++) {
		char net[16];

		snprintf(net, sizeof net, "ib%d", n);
		snprintf(text, sizeof text, "10.%d.%d.%d/16", n, index / 250, index % 250 + 1);
		make_address(&inventory, net, text);
	}
	return inventory;
}
