/* SPDX-License-Identifier: BSD-3-Clause */
/* NICs and addresses from a fake /sys, and the cgroup's memory limit. */
#include "support.h"

#include <arpa/inet.h>
#include <limits.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inventory/inventory_internal.h"

static char root[PATH_MAX];

static void put_at(const char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put_at(const char *text, const char *format, ...)
{
	char path[PATH_MAX];
	va_list ap;

	va_start(ap, format);
	vsnprintf(path, sizeof path, format, ap);
	va_end(ap);
	put(root, path, text);
}

/* Add a PCI function with its NUMA node. */
static void add_pci(const char *pci, const char *vendor, const char *device, const char *class,
		    const char *numa)
{
	put_at(vendor, "sys/devices/pci0000:00/%s/vendor", pci);
	put_at(device, "sys/devices/pci0000:00/%s/device", pci);
	put_at(class, "sys/devices/pci0000:00/%s/class", pci);
	put_at(numa, "sys/devices/pci0000:00/%s/numa_node", pci);
}

static void link_device(const char *class, const char *name, const char *below)
{
	char path[PATH_MAX], target[PATH_MAX];

	snprintf(path, sizeof path, "sys/class/%s/%s/device", class, name);
	snprintf(target, sizeof target, "../../../devices/pci0000:00/%s", below);
	put_link(root, path, target);
}

static void add_net(const char *name, const char *below, const char *type, const char *operstate,
		    const char *speed)
{
	put_at(type, "sys/class/net/%s/type", name);
	put_at(operstate, "sys/class/net/%s/operstate", name);
	put_at(speed, "sys/class/net/%s/speed", name);
	if (below)
		link_device("net", name, below);
}

static void add_rdma(const char *name, const char *pci, int port, const char *state,
		     const char *link, const char *rate)
{
	put_at(state, "sys/class/infiniband/%s/ports/%d/state", name, port);
	put_at(link, "sys/class/infiniband/%s/ports/%d/link_layer", name, port);
	put_at(rate, "sys/class/infiniband/%s/ports/%d/rate", name, port);
	if (port == 1)
		link_device("infiniband", name, pci);
}

/* One NIC of each kind. nic-names.xml has the addresses up to 08, but not the others. */
static void make_sys(void)
{
	add_pci("0000:02:00.0", "0x15b3\n", "0x101b\n", "0x020700\n", "0\n");
	add_rdma("mlx5_0", "0000:02:00.0", 1, "4: ACTIVE\n", "InfiniBand\n",
		 "200 Gb/sec (4X HDR)\n");
	add_net("eth9", "0000:02:00.0", "32\n", "up\n", "-1\n"); /* IPoIB with the name eth9 */

	add_pci("0000:03:00.0", "0x17db\n", "0x0501\n", "0x020000\n", "0\n");
	add_net("hsn0", "0000:03:00.0", "1\n", "up\n", "200000\n");
	put_at("", "sys/class/cxi/cxi0/.keep");
	link_device("cxi", "cxi0", "0000:03:00.0");

	add_pci("0000:04:00.0", "0x8086\n", "0x1521\n", "0x020000\n", "0\n");
	add_net("ib0", "0000:04:00.0", "1\n", "down\n",
		"4294967295\n"); /* Ethernet with the name ib0 */

	add_pci("0000:05:00.0", "0x15b3\n", "0x101f\n", "0x020000\n", "0\n");
	add_rdma("mlx5_1", "0000:05:00.0", 1, "4: ACTIVE\n", "Ethernet\n", "25 Gb/sec (1X EDR)\n");
	add_net("eno4np0", "0000:05:00.0", "1\n", "up\n", "25000\n");

	add_pci("0000:06:00.0", "0x1d0f\n", "0xefa2\n", "0x020000\n", "0\n");
	add_rdma("rdmap6s0", "0000:06:00.0", 1, "4: ACTIVE\n", "Unspecified\n",
		 "100 Gb/sec (4X EDR)\n");

	/* ConnectX-3: two ports on one function, the second Ethernet and down. */
	add_pci("0000:08:00.0", "0x15b3\n", "0x1003\n", "0x028000\n", "0\n");
	add_rdma("mlx4_0", "0000:08:00.0", 1, "4: ACTIVE\n", "InfiniBand\n",
		 "56 Gb/sec (4X FDR)\n");
	add_rdma("mlx4_0", "0000:08:00.0", 2, "1: DOWN\n", "Ethernet\n", "10 Gb/sec (4X SDR)\n");
	add_net("ib8", "0000:08:00.0", "32\n", "up\n", "56000\n");
	put_at("0\n", "sys/class/net/ib8/dev_port");
	add_net("eth8", "0000:08:00.0", "1\n", "down\n", "-1\n");
	put_at("1\n", "sys/class/net/eth8/dev_port");

	/* A VPI adapter in Ethernet mode keeps InfiniBand's PCI class; hwloc's tree lacks it. */
	add_pci("0000:99:00.0", "0x15b3\n", "0x101b\n", "0x020700\n", "0\n");
	add_rdma("mlx5_9", "0000:99:00.0", 1, "2: INIT\n", "Ethernet\n", "100 Gb/sec (4X EDR)\n");

	/* virtio: the device is one step below the PCI function. */
	add_pci("0000:9a:00.0", "0x1af4\n", "0x1041\n", "0x020000\n", "-1\n");
	put_at("", "sys/devices/pci0000:00/0000:9a:00.0/virtio1/.keep");
	add_net("ens3", "0000:9a:00.0/virtio1", "1\n", "unknown\n", "-1\n");
	put_at("1\n", "sys/class/net/ens3/carrier");

	/* Wi-Fi, and a NIC on another bus. */
	add_pci("0000:9b:00.0", "0x8086\n", "0x24fb\n", "0x028000\n", "-1\n");
	add_net("wlp5s0", "0000:9b:00.0", "1\n", "up\n", "-1\n");
	put_at("DEVTYPE=wlan\n", "sys/class/net/wlp5s0/uevent");
	put_at("0\n", "sys/devices/vmbus/abcd/numa_node");
	put_at("1\n", "sys/class/net/vm0/type");
	put_at("up\n", "sys/class/net/vm0/operstate");
	put_link(root, "sys/class/net/vm0/device", "../../../devices/vmbus/abcd");

	/* A management board's Ethernet over USB. */
	add_pci("0000:00:14.0", "0x8086\n", "0xa2af\n", "0x0c0330\n", "0\n");
	put_at("", "sys/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/.keep");
	add_net("usb0", "0000:00:14.0/usb1/1-1/1-1:1.0", "1\n", "up\n", "-1\n");

	/* Software RDMA has no device, and virtual interfaces are not NICs. */
	put_at("4: ACTIVE\n", "sys/class/infiniband/rxe0/ports/1/state");
	add_net("lo", NULL, "772\n", "unknown\n", "-1\n");
	add_net("docker0", NULL, "1\n", "down\n", "-1\n");
	put_at("DEVTYPE=bridge\n", "sys/class/net/docker0/uevent");
}

static const struct inventory_nic *find(const struct inventory *inventory, const char *net,
					const char *rdma)
{
	for (size_t i = 0; i < inventory->nic_count; i++)
		if (strcmp(inventory->nics[i].net, net) == 0 &&
		    strcmp(inventory->nics[i].rdma, rdma) == 0)
			return &inventory->nics[i];
	fail_msg("no NIC %s %s", net, rdma);
	return NULL;
}

static void load(struct inventory *out)
{
	struct inventory_source source = {.topology_file = TOPO "/nic-names.xml", .sys_root = root};
	struct error err = {0};

	if (inventory_discover(&source, out, &err) != 0)
		fail_msg("%s", err.text);
}

static void test_kinds(void **state)
{
	static const struct {
		const char *net, *rdma, *pci;
		int port;
		enum nic_kind kind;
		enum nic_state up;
		int speed_mbps;
		bool management;
	} rows[] = {
		{"eth9", "mlx5_0", "0000:02:00.0", 1, NIC_INFINIBAND, NIC_STATE_UP, 200000, false},
		{"hsn0", "cxi0", "0000:03:00.0", 1, NIC_SLINGSHOT, NIC_STATE_UP, 200000, false},
		{"ib0", "", "0000:04:00.0", 1, NIC_ETHERNET, NIC_STATE_DOWN, -1, true},
		{"eno4np0", "mlx5_1", "0000:05:00.0", 1, NIC_ROCE, NIC_STATE_UP, 25000, true},
		{"", "rdmap6s0", "0000:06:00.0", 1, NIC_EFA, NIC_STATE_UP, 100000, false},
		{"ib8", "mlx4_0", "0000:08:00.0", 1, NIC_INFINIBAND, NIC_STATE_UP, 56000, false},
		{"eth8", "mlx4_0", "0000:08:00.0", 2, NIC_ROCE, NIC_STATE_DOWN, 10000, true},
		{"", "mlx5_9", "0000:99:00.0", 1, NIC_ROCE, NIC_STATE_DOWN, 100000, true},
		{"ens3", "", "0000:9a:00.0", 1, NIC_ETHERNET, NIC_STATE_UP, -1, true},
		{"wlp5s0", "", "0000:9b:00.0", 1, NIC_ETHERNET, NIC_STATE_UP, -1, true},
		{"usb0", "", "", 1, NIC_ETHERNET, NIC_STATE_UP, -1, true},
		{"vm0", "", "", 1, NIC_ETHERNET, NIC_STATE_UP, -1, true},
	};
	struct inventory inventory;

	load(&inventory);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		const struct inventory_nic *nic = find(&inventory, rows[i].net, rows[i].rdma);

		if (strcmp(nic->pci, rows[i].pci) != 0 || nic->port != rows[i].port ||
		    nic->kind != rows[i].kind || nic->state != rows[i].up ||
		    nic->speed_mbps != rows[i].speed_mbps || nic->management != rows[i].management)
			fail_msg("%s %s: %s port %d %s state %d %lld Mb/s management %d", nic->net,
				 nic->rdma, nic->pci, nic->port, nic_kind_name(nic->kind),
				 nic->state, (long long)nic->speed_mbps, nic->management);
	}
	/* hwloc also has the Omni-Path function at 07:00.0, for which /sys has no driver. */
	assert_int_equal(inventory.nic_count, sizeof rows / sizeof *rows + 1);
	assert_true(find(&inventory, "", "")->management);
	/* The locality comes from hwloc if it has the function, else from the NUMA node in /sys. */
	assert_string_equal(ids(find(&inventory, "", "mlx5_9")->numa_os), "0");
	assert_string_equal(ids(find(&inventory, "vm0", "")->numa_os), "0");
	/* "-1" on a machine with one NUMA node. */
	assert_string_equal(ids(find(&inventory, "ens3", "")->numa_os), "0");
	/* In PCI order; a NIC without a PCI address comes last. */
	assert_string_equal(inventory.nics[inventory.nic_count - 1].net, "vm0");
	assert_string_equal(inventory.nics[0].net, "eth9");
	/* Paths: the same host bridge as the GPU, or only the same NUMA node. */
	assert_int_equal(inventory.path[0], PATH_PHB);
	assert_int_equal(inventory.path[inventory.nic_count - 1], PATH_NODE);
	inventory_free(&inventory);
}

/* The only NIC carries the job's traffic, whatever its kind. */
static void test_only_wireless(void **state)
{
	char kept[PATH_MAX];
	struct inventory inventory;

	snprintf(kept, sizeof kept, "%s", root);
	snprintf(root, sizeof root, "%s", make_dir());
	add_pci("0000:9b:00.0", "0x8086\n", "0x24fb\n", "0x028000\n", "-1\n");
	add_net("wlp5s0", "0000:9b:00.0", "1\n", "up\n", "-1\n");
	put_at("DEVTYPE=wlan\n", "sys/class/net/wlp5s0/uevent");
	load(&inventory);
	assert_false(find(&inventory, "wlp5s0", "")->management);
	inventory_free(&inventory);
	remove_tree(root);
	snprintf(root, sizeof root, "%s", kept);
}

/* A list as getifaddrs returns it. */
struct entry {
	struct ifaddrs ifa;
	union {
		struct sockaddr any;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
	} address, mask;
};

static void set_mask(void *bytes, int size, int prefix)
{
	memset(bytes, 0, (size_t)size);
	for (int i = 0; i < prefix; i++)
		((unsigned char *)bytes)[i / 8] |= (unsigned char)(0x80 >> (i % 8));
}

static void fill(struct entry *entry, const char *name, const char *text, int prefix,
		 unsigned flags)
{
	bool six = strchr(text, ':');

	memset(entry, 0, sizeof *entry);
	entry->ifa.ifa_name = strdup(name);
	entry->ifa.ifa_flags = flags;
	entry->ifa.ifa_addr = &entry->address.any;
	entry->ifa.ifa_netmask = &entry->mask.any;
	entry->address.any.sa_family = entry->mask.any.sa_family = six ? AF_INET6 : AF_INET;
	if (six) {
		assert_int_equal(inet_pton(AF_INET6, text, &entry->address.in6.sin6_addr), 1);
		set_mask(&entry->mask.in6.sin6_addr, 16, prefix);
		entry->address.in6.sin6_scope_id = strncmp(text, "fe80", 4) == 0 ? 3 : 0;
	} else {
		assert_int_equal(inet_pton(AF_INET, text, &entry->address.in.sin_addr), 1);
		set_mask(&entry->mask.in.sin_addr, 4, prefix);
	}
}

/* Interfaces with lower interfaces, and interfaces without a device. */
static void make_interfaces(void)
{
	put_at("", "sys/class/net/hsn0/upper_bond0");
	put_at("DEVTYPE=bond\n", "sys/class/net/bond0/uevent");
	put_at("", "sys/class/net/bond0/lower_ib0/.keep");
	put_at("", "sys/class/net/bond0/lower_hsn0/.keep");
	put_at("1\n", "sys/class/net/bond0/type");
	put_at("400000\n", "sys/class/net/bond0/speed");
	put_at("DEVTYPE=vlan\n", "sys/class/net/bond0.7/uevent");
	put_at("", "sys/class/net/bond0.7/lower_bond0/.keep");
	put_at("DEVTYPE=bridge\n", "sys/class/net/br0/uevent");
	put_at("", "sys/class/net/br0/lower_eno4np0/.keep");
	put_at("", "sys/class/net/br0/lower_vnet1/.keep");
	put_at("", "sys/class/net/docker0/lower_veth1/.keep");
	/* A veth in a bridge, and a container's own veth. */
	put_at("1\n", "sys/class/net/veth1/type");
	put_at("9\n", "sys/class/net/veth1/ifindex");
	put_at("8\n", "sys/class/net/veth1/iflink");
	put_at("", "sys/class/net/veth1/master/.keep");
	put_at("1\n", "sys/class/net/eth0/type");
	put_at("5\n", "sys/class/net/eth0/ifindex");
	put_at("77\n", "sys/class/net/eth0/iflink");
	put_at("1\n", "sys/class/net/dummy0/type");
	put_at("6\n", "sys/class/net/dummy0/ifindex");
	put_at("6\n", "sys/class/net/dummy0/iflink");
	put_at("65534\n", "sys/class/net/tun0/type");
	put_at("0x1001\n", "sys/class/net/tun0/tun_flags");
	put_at("1\n", "sys/class/net/vnet1/type");
	put_at("0x1002\n", "sys/class/net/vnet1/tun_flags");
	/* An IPoIB child. */
	put_at("32\n", "sys/class/net/eth9.8001/type");
	put_at("", "sys/class/net/eth9.8001/lower_eth9/.keep");
}

static void test_addresses(void **state)
{
	static const struct {
		const char *name, *address;
		int prefix;
		unsigned flags;
		enum iface_type type;
		const char *net; /* of the NIC; NULL: none */
		int speed_mbps;
	} rows[] = {
		{"lo", "127.0.0.1", 8, IFF_LOOPBACK, IFACE_LOOPBACK, NULL, -1},
		{"lo", "::1", 128, IFF_LOOPBACK, IFACE_LOOPBACK, NULL, -1},
		{"hsn0", "10.1.0.5", 16, 0, IFACE_PHYSICAL, "hsn0", 200000},
		{"hsn0", "fe80::1", 64, 0, IFACE_PHYSICAL, "hsn0", 200000},
		{"hsn0:1", "10.2.0.5", 24, 0, IFACE_PHYSICAL, "hsn0", 200000},
		{"eth9", "10.3.0.5", 20, 0, IFACE_PHYSICAL, "eth9", 200000},
		{"eth9.8001", "10.4.0.5", 20, 0, IFACE_PHYSICAL, "eth9", 200000},
		{"bond0", "10.5.0.5", 30, 0, IFACE_PHYSICAL, "hsn0", 400000},
		{"bond0.7", "10.6.0.5", 30, 0, IFACE_PHYSICAL, "hsn0", 200000},
		{"br0", "10.7.0.5", 30, 0, IFACE_PHYSICAL, "eno4np0", 25000},
		{"docker0", "172.17.0.1", 16, 0, IFACE_VIRTUAL, NULL, -1},
		{"veth1", "172.18.0.1", 16, 0, IFACE_VIRTUAL, NULL, -1},
		{"eth0", "192.168.7.2", 24, 0, IFACE_PHYSICAL, NULL, -1},
		{"dummy0", "192.168.8.2", 24, 0, IFACE_VIRTUAL, NULL, -1},
		{"tun0", "10.8.0.1", 24, 0, IFACE_VIRTUAL, NULL, -1},
		{"vm0", "169.254.3.3", 16, 0, IFACE_PHYSICAL, "vm0", -1},
		{"gone0", "10.9.0.1", 24, 0, IFACE_PHYSICAL, NULL, -1},
		{"bond0", "fd00::5", 64, 0, IFACE_PHYSICAL, "hsn0", 400000},
	};
	enum { COUNT = sizeof rows / sizeof *rows };
	static struct entry entries[COUNT + 1];
	struct inventory inventory;
	struct inventory_source source = {.sys_root = root};
	struct discovery discovery = {.source = &source, .inventory = &inventory};

	load(&inventory);
	free(inventory.addresses);
	inventory.addresses = NULL;
	inventory.address_count = 0;
	make_interfaces();
	for (int i = 0; i < COUNT; i++) {
		fill(&entries[i], rows[i].name, rows[i].address, rows[i].prefix,
		     rows[i].flags | IFF_UP | (i % 2 ? 0 : IFF_RUNNING));
		entries[i].ifa.ifa_next = &entries[i + 1].ifa;
	}
	put_at("127.0.0.1 localhost node\n"
	       "10.6.0.5 other # node\n"
	       "10.300.0.5 node\n"
	       "fe80::1 node\n"
	       "10.3.0.5\talias NODE.example.org # managed: yes\n",
	       "etc/hosts");
	put_at("Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
	       "br0\t00000000\t01000A0A\t0003\t0\t0\t0\t00000000\n"
	       "eth0\t0007A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\n",
	       "proc/net/route");
	free(inventory.node);
	inventory.node = strdup("node");
	/* getifaddrs also lists interfaces without an address. */
	entries[COUNT].ifa.ifa_name = strdup("ifb0");
	assert_int_equal(address_read(&discovery, &entries[0].ifa, NULL), 0);
	assert_int_equal(inventory.address_count, COUNT);
	for (int i = 0; i < COUNT; i++) {
		const struct inventory_address *at = &inventory.addresses[i];
		const char *net = at->nic >= 0 ? inventory.nics[at->nic].net : NULL;
		char text[INET6_ADDRSTRLEN];

		inet_ntop(at->family, at->bytes, text, sizeof text);
		if (at->type != rows[i].type || at->speed_mbps != rows[i].speed_mbps ||
		    at->prefix != rows[i].prefix || strcmp(text, rows[i].address) != 0 ||
		    at->up != (i % 2 == 0) || strchr(at->iface, ':') ||
		    (net ? !rows[i].net || strcmp(net, rows[i].net) != 0 : rows[i].net != NULL))
			fail_msg("%s: %s/%d sort %d nic %s speed %lld", rows[i].name, text,
				 at->prefix, at->type, net, (long long)at->speed_mbps);
		assert_int_equal(at->link_local,
				 strncmp(text, "fe80", 4) == 0 || strncmp(text, "169.254", 7) == 0);
		assert_int_equal(at->kind,
				 at->nic >= 0 ? inventory.nics[at->nic].kind : NIC_ETHERNET);
	}
	assert_int_equal(inventory.addresses[3].scope, 3);
	address_mark_scheduler(&inventory, NULL);
	address_mark_scheduler(&inventory, "192.168.8.7 or so");
	address_mark_scheduler(&inventory, "10.5.0.6");	  /* bond0, a /30 */
	address_mark_scheduler(&inventory, "10.7.0.6");	  /* br0, which has the default route */
	address_mark_scheduler(&inventory, "172.17.3.0"); /* docker0 */
	for (int i = 0; i < COUNT; i++) {
		const char *iface = inventory.addresses[i].iface;
		enum address_use use =
			!strcmp(iface, "hsn0") || !strcmp(iface, "eth9") || !strcmp(iface, "lo")
				? USE_NODE_NAME
			: !strcmp(iface, "br0")	  ? USE_DEFAULT_ROUTE
			: !strcmp(iface, "bond0") ? USE_SCHEDULER
						  : USE_NONE;

		if (inventory.addresses[i].use != use)
			fail_msg("%s has use %d", iface, inventory.addresses[i].use);
	}
	for (int i = 0; i <= COUNT; i++)
		free(entries[i].ifa.ifa_name);
	inventory_free(&inventory);
}

static void test_memory_limit(void **state)
{
	put_at("max\n", "sys/fs/cgroup/slurm/job_7/step_0/memory.max");
	put_at("68719476736\n", "sys/fs/cgroup/slurm/job_7/memory.max");
	put_at("137438953472\n", "sys/fs/cgroup/slurm/memory.max");
	put_at("9223372036854771712\n", "sys/fs/cgroup/memory/pbs/memory.limit_in_bytes");
	put_at("4294967296\n", "sys/fs/cgroup/memory/pbs/job/memory.limit_in_bytes");
	assert_int_equal(cgroup_memory_limit(root, "0::/slurm/job_7/step_0\n"), 68719476736);
	assert_int_equal(cgroup_memory_limit(root, "0::/slurm"), 137438953472);
	assert_int_equal(cgroup_memory_limit(root, "0::/\n"), -1);
	assert_int_equal(cgroup_memory_limit(root, "0::/not/there\n"), -1);
	assert_int_equal(cgroup_memory_limit(root, "5:cpuset:/pbs/job\n4:memory:/pbs/job\n"),
			 4294967296);
	assert_int_equal(cgroup_memory_limit(root, "4:memory:/pbs\n"), -1);
	assert_int_equal(cgroup_memory_limit(root, ""), -1);
	assert_int_equal(cgroup_memory_limit(root, "rubbish\n::\n:"), -1);
}

static void test_cpu_limit(void **state)
{
	put_at("max 100000\n", "sys/fs/cgroup/pod/job/cpu.max");
	put_at("150000 100000\n", "sys/fs/cgroup/pod/cpu.max");
	put_at("rubbish\n", "sys/fs/cgroup/odd/cpu.max");
	put_at("100000 0\n", "sys/fs/cgroup/zero/cpu.max");
	put_at("-1\n", "sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us");
	put_at("100000\n", "sys/fs/cgroup/cpu/docker/cpu.cfs_period_us");
	put_at("400000\n", "sys/fs/cgroup/cpu/docker/a/cpu.cfs_quota_us");
	put_at("50000\n", "sys/fs/cgroup/cpu/docker/a/cpu.cfs_period_us");
	assert_int_equal(cgroup_cpu_limit(root, "0::/pod/job\n"), 1500);
	assert_int_equal(cgroup_cpu_limit(root, "0::/odd\n"), -1);
	assert_int_equal(cgroup_cpu_limit(root, "0::/zero\n"), -1);
	assert_int_equal(cgroup_cpu_limit(root, "2:cpu,cpuacct:/docker/a\n"), 8000);
	assert_int_equal(cgroup_cpu_limit(root, "2:cpuset:/docker/a\n3:cpu:/docker\n"), -1);
	/* The path of another cgroup namespace: the mount is our group. */
	put_at("20000\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us");
	put_at("100000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us");
	assert_int_equal(cgroup_cpu_limit(root, "3:cpu:/kubepods/x\n"), 200);
}

/* berth reads hwloc's I/O objects only if /sys shows a GPU. */
static void test_gpu_on_bus(void **state)
{
	static const struct {
		const char *vendor, *device, *class;
		bool gpu;
	} rows[] = {
		{"0x10de", "0x2335", "0x030200", true},	 {"0x1002", "0x74a0", "0x120000", true},
		{"0x8086", "0x0bd6", "0x038000", true},	 {"0x1a03", "0x2000", "0x030000", false},
		{"0x8086", "0x0b2b", "0x120000", false}, {"0x10de", "0x22a3", "0x068000", false},
		{"0x1002", "0x515e", "0x030000", false}, {"0x15b3", "0x101b", "0x020700", false},
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		const char *dir = make_dir();

		put(dir, "sys/bus/pci/devices/0000:41:00.0/vendor", rows[i].vendor);
		put(dir, "sys/bus/pci/devices/0000:41:00.0/device", rows[i].device);
		put(dir, "sys/bus/pci/devices/0000:41:00.0/class", rows[i].class);
		assert_int_equal(gpu_on_bus(dir), rows[i].gpu);
		remove_tree(dir);
		assert_false(gpu_on_bus(dir));
	}
}

/* Reading the running machine's PCI tree, as with a GPU in /sys, does not change the cores. */
static void test_running_io(void **state)
{
	const char *dir = make_dir();
	struct inventory_source with = {.sys_root = dir, .nvml_library = ""};
	struct inventory_source without = {.nvml_library = "", .no_network = true};
	struct inventory one, two;

	put(dir, "sys/bus/pci/devices/0000:41:00.0/vendor", "0x10de");
	put(dir, "sys/bus/pci/devices/0000:41:00.0/class", "0x030200");
	assert_int_equal(inventory_discover(&with, &one, NULL), 0);
	assert_int_equal(inventory_discover(&without, &two, NULL), 0);
	assert_int_equal(one.core_count, two.core_count);
	assert_true(idset_equal(one.allowed_cpus_os, two.allowed_cpus_os));
	inventory_free(&one);
	inventory_free(&two);
	remove_tree(dir);
}

static void test_pci_text(void **state)
{
	static const struct {
		const char *text;
		bool good;
	} rows[] = {
		{"0000:03:00.0", true},
		{"00000000:03:00.0", true},
		{"10000:E1:1f.7", true},
		{"", false},
		{"0000:03:00", false},
		{"0000:03:00.8", false},
		{"0000:03:20.0", false},
		{"0000:03:00.0 ", false},
		{"virtio1", false},
		{"0000:103:00.0", false},
		{"-000:03:00.0", false},
		{"pci0000:00", false},
		{"000000000000:03:00.0", false},
	};
	struct pci_id id, other;

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if ((pci_parse(rows[i].text, &id) == 0) != rows[i].good)
			fail_msg("\"%s\"", rows[i].text);
	char text[20];
	pci_parse("00000000:E1:1F.7", &id);
	pci_format(id, text);
	assert_string_equal(text, "0000:e1:1f.7");
	pci_parse("10000:00:00.0", &other);
	assert_true(pci_compare(id, other) < 0);
	assert_true(pci_compare(other, id) > 0);
	assert_int_equal(pci_compare(id, id), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kinds),	   cmocka_unit_test(test_only_wireless),
		cmocka_unit_test(test_addresses),  cmocka_unit_test(test_memory_limit),
		cmocka_unit_test(test_cpu_limit),  cmocka_unit_test(test_pci_text),
		cmocka_unit_test(test_gpu_on_bus), cmocka_unit_test(test_running_io),
	};

	snprintf(root, sizeof root, "%s", make_dir());
	make_sys();

	int rc = cmocka_run_group_tests(tests, NULL, NULL);

	remove_tree(root);
	return rc;
}
