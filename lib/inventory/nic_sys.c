/* SPDX-License-Identifier: BSD-3-Clause */
/* Network devices as /sys shows them: class/net, class/infiniband and class/cxi, joined by the
 * PCI function that their device link leads to. */
#include "inventory/sys.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

void devices_free(struct devices *devices)
{
	for (size_t i = 0; i < devices->count; i++) {
		free(devices->list[i].nets);
		free(devices->list[i].rdmas);
	}
	free(devices->list);
	*devices = (struct devices){0};
}

struct device *devices_at(struct devices *devices, const char *pci)
{
	for (size_t i = 0; *pci && i < devices->count; i++)
		if (strcmp(devices->list[i].pci, pci) == 0)
			return &devices->list[i];

	struct device *device = array_add(&devices->list, &devices->count, sizeof *device);

	if (!device)
		return NULL;
	snprintf(device->pci, sizeof device->pci, "%s", pci);
	device->numa_os = -1;
	return device;
}

const struct device_port device_port_unknown = {
	.state = NIC_STATE_UNKNOWN, .link = LINK_UNKNOWN, .speed_mbps = -1};

struct device_net *device_add_net(struct device *device, const char *name)
{
	struct device_net *net = array_add(&device->nets, &device->net_count, sizeof *net);

	if (!net)
		return NULL;
	snprintf(net->name, sizeof net->name, "%s", name);
	net->port = 1;
	net->at = device_port_unknown;
	return net;
}

struct device_rdma *device_add_rdma(struct device *device, const char *name)
{
	struct device_rdma *rdma = array_add(&device->rdmas, &device->rdma_count, sizeof *rdma);

	if (!rdma)
		return NULL;
	snprintf(rdma->name, sizeof rdma->name, "%s", name);
	rdma->port_count = 1;
	for (int i = 0; i < DEVICE_PORTS; i++)
		rdma->ports[i] = device_port_unknown;
	return rdma;
}

/* Find the PCI function that a class entry's device link leads to, directly or above it (virtio):
 * its directory and its address. Return -1 if it is not on a PCI bus. */
static int pci_behind(const char *class_entry, char dir[PATH_MAX], char pci[20])
{
	char link[PATH_MAX];
	struct pci_id id;

	if (snprintf(link, sizeof link, "%s/device", class_entry) >= (int)sizeof link ||
	    !realpath(link, dir))
		return -1;
	if (strstr(dir, "/usb"))
		return -1; /* the PCI function above is the USB controller */
	for (char *slash; (slash = strrchr(dir, '/')); *slash = '\0') {
		if (pci_parse(slash + 1, &id) == 0) {
			pci_format(id, pci);
			return 0;
		}
	}
	return -1;
}

/* For instance a management board's Ethernet over USB, or a telephone. */
static bool is_usb(const char *class_entry)
{
	char link[PATH_MAX], dir[PATH_MAX];

	return snprintf(link, sizeof link, "%s/device", class_entry) < (int)sizeof link &&
	       realpath(link, dir) && strstr(dir, "/usb");
}

static void read_pci(struct device *device, const char *dir)
{
	char link[PATH_MAX], driver[PATH_MAX];

	device->vendor = (uint16_t)sys_number(0, "%s/vendor", dir);
	device->device = (uint16_t)sys_number(0, "%s/device", dir);
	device->pci_class = (uint16_t)(sys_number(0, "%s/class", dir) >> 8);
	device->numa_os = (int)sys_number(-1, "%s/numa_node", dir);
	if (snprintf(link, sizeof link, "%s/driver", dir) < (int)sizeof link &&
	    realpath(link, driver)) {
		const char *name = strrchr(driver, '/');

		device->cxi = name && strncmp(name + 1, "cxi", 3) == 0;
	}
}

/* The device that a class entry belongs to; NULL with *rc 0 if it is not on a PCI bus. */
static struct device *device_of(struct devices *devices, const char *entry, int *rc)
{
	char dir[PATH_MAX], pci[20];

	if (pci_behind(entry, dir, pci) != 0)
		return NULL;

	size_t before = devices->count;
	struct device *device = devices_at(devices, pci);

	if (!device)
		*rc = -1;
	else if (devices->count > before)
		read_pci(device, dir);
	return device;
}

static enum nic_state net_state(const char *entry)
{
	char state[32];

	if (sys_text(state, sizeof state, "%s/operstate", entry) != 0)
		return NIC_STATE_UNKNOWN;
	if (strcmp(state, "up") == 0)
		return NIC_STATE_UP;
	if (strcmp(state, "unknown") == 0) /* some drivers never report it; carrier does */
		return sys_number(0, "%s/carrier", entry) == 1 ? NIC_STATE_UP : NIC_STATE_DOWN;
	return NIC_STATE_DOWN;
}

static int add_net(struct devices *devices, const char *sys_root, const char *name)
{
	char entry[PATH_MAX], uevent[32] = "";
	int rc = 0;

	snprintf(entry, sizeof entry, "%s/sys/class/net/%s", sys_root, name);
	if (!sys_has("%s/device", entry))
		return 0; /* virtual */

	struct device *device = device_of(devices, entry, &rc);

	if (!device && !rc) /* a device on another bus (Hyper-V, a system on chip) */
		device = devices_at(devices, "");
	struct device_net *net = device ? device_add_net(device, name) : NULL;

	if (!net)
		return -1;
	if (!device->pci[0])
		device->numa_os = (int)sys_number(-1, "%s/device/numa_node", entry);

	long port = sys_number(0, "%s/dev_port", entry);

	if (port == 0)
		port = sys_number(0, "%s/dev_id", entry);
	net->port = port >= 0 && port < DEVICE_PORTS ? (int)port + 1 : 1;
	net->at.state = net_state(entry);
	net->at.speed_mbps = sys_net_speed(sys_root, name);
	net->at.link = sys_number(1, "%s/type", entry) == 32 ? LINK_INFINIBAND : LINK_ETHERNET;
	device->last_resort = (sys_text(uevent, sizeof uevent, "%s/uevent", entry) == 0 &&
			       strcmp(uevent, "DEVTYPE=wlan") == 0) ||
			      sys_has("%s/wireless", entry) || sys_has("%s/phy80211", entry) ||
			      is_usb(entry);
	return 0;
}

static void read_port(struct device_port *port, const char *entry, int number)
{
	char text[64];

	if (sys_text(text, sizeof text, "%s/ports/%d/state", entry, number) == 0)
		port->state = strncmp(text, "4:", 2) == 0 ? NIC_STATE_UP : NIC_STATE_DOWN;
	if (sys_text(text, sizeof text, "%s/ports/%d/link_layer", entry, number) == 0)
		port->link = strcmp(text, "InfiniBand") == 0 ? LINK_INFINIBAND : LINK_ETHERNET;
	if (sys_text(text, sizeof text, "%s/ports/%d/rate", entry, number) == 0) {
		double gbps = strtod(text, NULL); /* "200 Gb/sec (4X HDR)" */

		if (gbps > 0 && gbps < 100000)
			port->speed_mbps = (int64_t)(gbps * 1000);
	}
}

static int add_rdma(struct devices *devices, const char *sys_root, const char *class,
		    const char *name)
{
	char entry[PATH_MAX];
	int rc = 0;

	snprintf(entry, sizeof entry, "%s/sys/class/%s/%s", sys_root, class, name);

	struct device *device = device_of(devices, entry, &rc);

	if (!device)
		return rc; /* RDMA in software: no device of its own */
	if (strcmp(class, "cxi") == 0)
		device->cxi = true;

	struct device_rdma *rdma = device_add_rdma(device, name);

	if (!rdma)
		return -1;
	for (int p = 1; p <= DEVICE_PORTS; p++) {
		if (!sys_has("%s/ports/%d", entry, p))
			continue;
		rdma->port_count = p;
		read_port(&rdma->ports[p - 1], entry, p);
	}
	return 0;
}

int nic_from_sys(const char *sys_root, struct devices *out, struct error *err)
{
	static const char *const classes[] = {"net", "infiniband", "cxi"};
	int failed = 0;

	for (size_t c = 0; !failed && c < sizeof classes / sizeof *classes; c++) {
		char dir[PATH_MAX];
		struct dirent **list;

		if (snprintf(dir, sizeof dir, "%s/sys/class/%s", sys_root, classes[c]) >=
		    (int)sizeof dir)
			return error_set(err, ERR_DATA, "the path of /sys is too long: %s",
					 sys_root);

		int count = sys_list(dir, &list);

		if (count < 0)
			failed = -1;
		for (int i = 0; !failed && i < count; i++)
			failed = c == 0 ? add_net(out, sys_root, list[i]->d_name)
					: add_rdma(out, sys_root, classes[c], list[i]->d_name);
		sys_list_free(list, count);
	}
	return failed ? error_memory(err, "the network devices") : 0;
}
