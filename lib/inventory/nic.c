/* SPDX-License-Identifier: BSD-3-Clause */
/* NICs: network devices as hwloc recorded them (an XML) or as /sys shows them (nic_sys.c), one
 * entry per port, in PCI order. Determines what each one is, and which of them must not carry the
 * job's traffic. */
#include "inventory/inventory_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

/* Vendors and classes: the PCI ID list; EFA's devices are 0xefa0 and on. */
enum nic_kind nic_kind_of(const struct device *device, enum link_layer link)
{
	bool rdma = device->rdma_count > 0;

	if (device->vendor == 0x17db || device->cxi) /* Cray: Cassini */
		return NIC_SLINGSHOT;
	if (device->vendor == 0x1d0f && (device->device & 0xfff0) == 0xefa0)
		return NIC_EFA;
	if (device->vendor == 0x1cad || device->vendor == 0x119f || /* Extoll; BXI */
	    device->pci_class == 0x0208 ||			    /* fabric: Omni-Path */
	    (device->vendor == 0x8086 && (device->device & 0xfffe) == 0x24f0))
		return NIC_OTHER_FABRIC;
	if (device->pci_class == 0x0207 || device->pci_class == 0x0c06)
		return link == LINK_ETHERNET && rdma ? NIC_ROCE : NIC_INFINIBAND;
	if (rdma)
		return link == LINK_INFINIBAND ? NIC_INFINIBAND : NIC_ROCE;
	return NIC_ETHERNET;
}

static bool network_class(unsigned pci_class)
{
	return pci_class >> 8 == 0x02 || pci_class == 0x0c06;
}

static void read_pci(struct device *device, hwloc_obj_t obj)
{
	device->obj = obj;
	device->vendor = obj->attr->pcidev.vendor_id;
	device->device = obj->attr->pcidev.device_id;
	device->pci_class = obj->attr->pcidev.class_id;
}

/* InfiniBand's addresses have 20 bytes, its ports a local identifier. */
static void read_net_infos(struct device_net *net, hwloc_obj_t obj)
{
	const char *address = topology_obj_info(obj, "Address"),
		   *port = topology_obj_info(obj, "Port");

	if (address)
		net->at.link = strlen(address) >= 20 * 3 - 1 ? LINK_INFINIBAND : LINK_ETHERNET;
	if (port && strtol(port, NULL, 10) >= 1 && strtol(port, NULL, 10) <= DEVICE_PORTS)
		net->port = (int)strtol(port, NULL, 10);
}

static void read_rdma_infos(struct device_rdma *rdma, hwloc_obj_t obj)
{
	for (int p = 1; p <= DEVICE_PORTS; p++) {
		struct device_port *port = &rdma->ports[p - 1];
		char key[32];

		snprintf(key, sizeof key, "Port%dState", p);

		const char *state = topology_obj_info(obj, key);

		snprintf(key, sizeof key, "Port%dLID", p);

		const char *lid = topology_obj_info(obj, key);

		if (!state && !lid)
			continue;
		rdma->port_count = p;
		if (state) /* of the IB specification: 4 active */
			port->state = strtol(state, NULL, 10) == 4 ? NIC_STATE_UP : NIC_STATE_DOWN;
		if (lid && strtol(lid, NULL, 0)) /* 0: Ethernet, or a port that is down */
			port->link = LINK_INFINIBAND;
	}
}

static int add_os_device(struct device *device, hwloc_obj_t obj)
{
	if (obj->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK) {
		struct device_net *net = device_add_net(device, obj->name);

		if (!net)
			return -1;
		read_net_infos(net, obj);
	} else {
		struct device_rdma *rdma = device_add_rdma(device, obj->name);

		if (!rdma)
			return -1;
		read_rdma_infos(rdma, obj);
	}
	return 0;
}

static hwloc_obj_t pci_above(hwloc_obj_t obj)
{
	while (obj && obj->type != HWLOC_OBJ_PCI_DEVICE)
		obj = obj->parent;
	return obj;
}

/* The devices of a capture: network OS devices, and fabric functions without a driver. */
static int from_hwloc(struct discovery *discovery, struct devices *out)
{
	hwloc_obj_t obj = NULL;
	char pci[20];

	while ((obj = hwloc_get_next_osdev(discovery->topology, obj))) {
		hwloc_obj_osdev_type_t type = obj->attr->osdev.type;
		hwloc_obj_t above = pci_above(obj);

		if ((type != HWLOC_OBJ_OSDEV_NETWORK && type != HWLOC_OBJ_OSDEV_OPENFABRICS) ||
		    !obj->name)
			continue;
		if (!above && type == HWLOC_OBJ_OSDEV_OPENFABRICS)
			continue; /* RDMA in software */
		if (above)
			pci_format((struct pci_id){above->attr->pcidev.domain,
						   above->attr->pcidev.bus, above->attr->pcidev.dev,
						   above->attr->pcidev.func},
				   pci);
		else
			pci[0] = '\0';

		struct device *device = devices_at(out, pci);

		if (!device || add_os_device(device, obj) != 0)
			return -1;
		if (above)
			read_pci(device, above);
		else
			device->obj = obj;
	}
	return 0;
}

/* Fabric functions without a driver are shown, but never used. */
static int add_driverless(struct discovery *discovery, struct devices *devices)
{
	hwloc_obj_t obj = NULL;

	while ((obj = hwloc_get_next_pcidev(discovery->topology, obj))) {
		const struct hwloc_pcidev_attr_s *attr = &obj->attr->pcidev;
		struct device found = {0};
		char pci[20];

		if (!network_class(attr->class_id))
			continue;
		read_pci(&found, obj);
		if (nic_kind_of(&found, LINK_UNKNOWN) == NIC_ETHERNET)
			continue;
		pci_format((struct pci_id){attr->domain, attr->bus, attr->dev, attr->func}, pci);

		struct device *device = devices_at(devices, pci);

		if (!device)
			return -1;
		read_pci(device, obj);
	}
	return 0;
}

/* Attach hwloc's objects to the devices that /sys showed, for locality and paths. */
static void attach_hwloc_objects(struct discovery *discovery, struct devices *devices)
{
	for (size_t i = 0; i < devices->count; i++) {
		struct device *device = &devices->list[i];

		device->obj = topology_pci(discovery, device->pci);
		if (device->obj)
			read_pci(device, device->obj);
	}
}

/* Make one NIC from the net and the RDMA device (either may be NULL) on one port. */
static int add_nic(struct discovery *discovery, const struct device *device,
		   const struct device_net *net, const struct device_rdma *rdma, int port,
		   struct error *err)
{
	struct inventory *inventory = discovery->inventory;
	size_t obj_count = inventory->nic_count;
	hwloc_obj_t *obj = array_add(&discovery->nic_objs, &obj_count, sizeof *obj);
	struct inventory_nic *nic =
		obj ? array_add(&inventory->nics, &inventory->nic_count, sizeof *nic) : NULL;
	struct device_port at = rdma ? rdma->ports[port - 1] : device_port_unknown;
	struct locality locality;

	if (!nic)
		return error_memory(err, "the NICs");
	*obj = device->obj;
	if (net) { /* the RDMA port's state wins: it shows what RDMA can do */
		if (at.state == NIC_STATE_UNKNOWN)
			at.state = net->at.state;
		if (net->at.link == LINK_INFINIBAND || at.link == LINK_UNKNOWN)
			at.link = net->at.link;
		if (at.speed_mbps < 0)
			at.speed_mbps = net->at.speed_mbps;
	}
	snprintf(nic->net, sizeof nic->net, "%s", net ? net->name : "");
	snprintf(nic->rdma, sizeof nic->rdma, "%s", rdma ? rdma->name : "");
	snprintf(nic->pci, sizeof nic->pci, "%s", device->pci);
	nic->port = port;
	nic->vendor = device->vendor;
	nic->device = device->device;
	nic->pci_class = device->pci_class;
	nic->kind = nic_kind_of(device, at.link);
	nic->state = at.state;
	nic->speed_mbps = at.speed_mbps;
	/* Wireless, USB, or without a driver. mark_management marks the rest. */
	nic->management = (!net && !rdma) || device->last_resort ||
			  (device->pci_class == 0x0280 && nic->kind == NIC_ETHERNET);

	int rc = device->obj
			 ? topology_locality_of(discovery, device->obj, &locality, err)
			 : topology_locality_of_numa(discovery, device->numa_os, &locality, err);
	if (rc)
		return rc;
	nic->numa_os = locality.numa_os;
	nic->cpus_os = locality.cpus_os;
	nic->package = locality.package;
	return 0;
}

/* The net on the device's port; if a function has one port, its first net. */
static const struct device_net *net_on(const struct device *device, int port, bool one_port)
{
	for (size_t i = 0; i < device->net_count; i++)
		if (one_port || device->nets[i].port == port)
			return &device->nets[i];
	return NULL;
}

static int add_device_nics(struct discovery *discovery, const struct device *device,
			   struct error *err)
{
	int rc = 0;

	for (size_t r = 0; !rc && r < device->rdma_count; r++) {
		const struct device_rdma *rdma = &device->rdmas[r];
		bool one = rdma->port_count == 1;

		for (int port = 1; !rc && port <= rdma->port_count; port++)
			rc = add_nic(discovery, device, r ? NULL : net_on(device, port, one), rdma,
				     port, err);
	}
	if (device->rdma_count)
		return rc;
	for (size_t n = 0; !rc && n < device->net_count; n++)
		rc = add_nic(discovery, device, &device->nets[n], NULL, device->nets[n].port, err);
	if (!device->net_count)
		rc = add_nic(discovery, device, NULL, NULL, 1, err);
	return rc;
}

static int nic_compare(const struct inventory_nic *a, const struct inventory_nic *b)
{
	struct pci_id one, two;
	bool a_pci = pci_parse(a->pci, &one) == 0, b_pci = pci_parse(b->pci, &two) == 0;

	if (a_pci != b_pci)
		return a_pci ? -1 : 1;
	if (a_pci && pci_compare(one, two) != 0)
		return pci_compare(one, two);
	if (a->port != b->port)
		return a->port - b->port;
	return strcmp(a->net, b->net);
}

/* Insertion sort: two arrays move together, and there are few NICs. */
static void sort_nics(struct discovery *discovery)
{
	struct inventory_nic *nics = discovery->inventory->nics;

	for (size_t i = 1; i < discovery->inventory->nic_count; i++) {
		struct inventory_nic nic = nics[i];
		hwloc_obj_t obj = discovery->nic_objs[i];
		size_t at = i;

		for (; at > 0 && nic_compare(&nics[at - 1], &nic) > 0; at--) {
			nics[at] = nics[at - 1];
			discovery->nic_objs[at] = discovery->nic_objs[at - 1];
		}
		nics[at] = nic;
		discovery->nic_objs[at] = obj;
	}
}

/* 2 a fabric, 1 RDMA-capable Ethernet, 0 plain Ethernet. */
static int tier_of(enum nic_kind kind)
{
	return kind == NIC_ETHERNET ? 0 : kind == NIC_ROCE ? 1 : 2;
}

/* NICs of a lower tier than the best usable one are for management. A fabric with all ports down
 * carries nothing, so the best one with a port up counts. If all are down, the best one counts. */
static void mark_management(struct inventory *inventory)
{
	int best = -1, best_up = -1;

	for (size_t i = 0; i < inventory->nic_count; i++) {
		const struct inventory_nic *nic = &inventory->nics[i];
		int tier = tier_of(nic->kind);

		if (nic->management)
			continue;
		best = tier > best ? tier : best;
		if (nic->state != NIC_STATE_DOWN)
			best_up = tier > best_up ? tier : best_up;
	}
	if (best_up >= 0)
		best = best_up;
	for (size_t i = 0; i < inventory->nic_count; i++) {
		struct inventory_nic *nic = &inventory->nics[i];

		if (best < 0 && (nic->net[0] || nic->rdma[0]))
			nic->management = false; /* there is nothing else */
		else if (tier_of(nic->kind) < best)
			nic->management = true;
	}
}

int nic_read(struct discovery *discovery, struct error *err)
{
	struct devices devices = {0};
	const char *sys_root = discovery->source->sys_root;
	int rc = 0;

	if (discovery->source->topology_file && !sys_root) {
		if (from_hwloc(discovery, &devices) != 0)
			rc = error_memory(err, "the NICs");
	} else if (!discovery->source->no_network) {
		rc = nic_from_sys(sys_root ? sys_root : "", &devices, err);
		if (!rc)
			attach_hwloc_objects(discovery, &devices);
	}
	if (!rc && add_driverless(discovery, &devices) != 0)
		rc = error_memory(err, "the NICs");
	for (size_t i = 0; !rc && i < devices.count; i++)
		rc = add_device_nics(discovery, &devices.list[i], err);
	devices_free(&devices);
	if (rc)
		return rc;
	sort_nics(discovery);
	return 0;
}

/* Is a data NIC of this kind on a PCI switch of the GPU, or of any GPU (gpu -1)? */
static bool on_switch_of(const struct inventory *inventory, long gpu, enum nic_kind kind)
{
	for (size_t g = 0; g < inventory->gpu_count; g++)
		for (size_t n = 0; n < inventory->nic_count; n++)
			if ((gpu < 0 || g == (size_t)gpu) && inventory->nics[n].kind == kind &&
			    !inventory->nics[n].management &&
			    inventory->path[g * inventory->nic_count + n] <= PATH_PXB)
				return true;
	return false;
}

static bool on_switches_of_all(const struct inventory *inventory, enum nic_kind kind)
{
	size_t g = 0;

	while (g < inventory->gpu_count && on_switch_of(inventory, (long)g, kind))
		g++;
	return g && g == inventory->gpu_count;
}

/* On an HGX B200, two ConnectX-7 whose InfiniBand only manages NVLink. */
static void mark_distant(struct inventory *inventory)
{
	bool near = false;

	if (!inventory->path)
		return;
	for (enum nic_kind kind = NIC_ROCE; kind <= NIC_INFINIBAND; kind++)
		near |= on_switches_of_all(inventory, kind);
	for (size_t n = 0; near && n < inventory->nic_count; n++) {
		struct inventory_nic *nic = &inventory->nics[n];

		if (tier_of(nic->kind) == 2 && !on_switch_of(inventory, -1, nic->kind))
			nic->management = true;
	}
}

void nic_mark(struct inventory *inventory)
{
	mark_distant(inventory);
	mark_management(inventory);
}
